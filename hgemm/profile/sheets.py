"""The tables of a profile, and what each of their columns means."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hgemm.bench.suites import Case
from hgemm.profile.counters import Counted, SharedKind
from hgemm.profile.metrics import METRICS, STALLS
from hgemm.profile.ncu import Cause
from hgemm.profile.static import Facts, Gpu

TOP_STALLS = 3
NOT_COUNTED = "n/a"


@dataclass
class Profile:
    """One contestant: its facts on each GPU, or by the GPU's title why there are none, and what one call did, or why
    that is unknown, with the cause."""

    backend: str
    config: str | None
    facts: list[Facts] = field(default_factory=list)
    no_facts: dict[str, str] = field(default_factory=dict)
    counted: Counted | None = None
    no_counters: str | None = None
    cause: Cause | None = None

    @property
    def label(self) -> str:
        return f"{self.backend} {self.config}" if self.config else self.backend


@dataclass(frozen=True)
class Report:
    """``note``: why there are no counters at all. If there are: ``ncu``, its version, and ``counted_on``, the GPU."""

    case: Case
    gpus: Sequence[Gpu]
    profiles: Sequence[Profile]
    note: str | None
    ncu: str | None
    counted_on: str | None


@dataclass(frozen=True)
class Column:
    heading: str
    meaning: str


@dataclass(frozen=True)
class Sheet:
    """One table; the first two columns are the contestant's backend and configuration."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()


RESOURCES = (
    Column("registers", "32-bit registers a thread; 65,536 for all threads of a multiprocessor, 255 a thread at most"),
    Column("spills", "bytes a thread that did not fit its registers and go through local memory: should be 0"),
    Column("shared", "bytes of shared memory a block: the ring of stages, mostly"),
    Column("threads", "threads a block"),
    Column("blocks", "blocks a multiprocessor: with two or more, one multiplies while another waits or stores"),
    Column("warps", "warps of these blocks"),
    Column("occupancy", "these warps, of all that a multiprocessor can hold: a matrix product needs no high one"),
    Column(
        "room", "blocks that there is room for by registers / shared memory / threads / block slots: the least counts"
    ),
    Column("limited by", "what of a multiprocessor is used up first: less of it a block would let another one in"),
)
TILES = (
    Column(
        "tiles",
        "tiles of C, one a block, or one after the other where the grid is persistent; a cluster's if K is split",
    ),
    Column("at once", "tiles that all multiprocessors work on together"),
    Column("waves", "tiles for each place: the time is that of the next whole number"),
    Column(
        "last wave",
        "places taken in the last wave: the rest idles while it runs, unless its tiles are shared out (tail)",
    ),
    Column(
        "inside C",
        "computed elements that lie inside C: the rest is the overhang of tiles, and of clusters, at the edges",
    ),
)
LOOP = (
    Column("HMMA", "tensor-core products of a warp (mma.sync) in one pass through the main loop"),
    Column("HGMMA", "tensor-core products of four warps (wgmma), which read shared memory by themselves"),
    Column("LDSM", "ldmatrix: fragments from shared memory into registers"),
    Column("HMMA/LDSM", "products for each ldmatrix: it grows with the warp tile, and shared memory is asked for less"),
    Column("LDS", "other loads from shared memory"),
    Column("STS", "stores to shared memory"),
    Column("LDGSTS", "cp.async: each thread copies its part of the tile"),
    Column("UTMALDG", "TMA: one thread asks for whole boxes"),
    Column("SYNCS", "mbarrier operations: arriving, and waiting for a stage"),
    Column("BAR", "barriers of the whole block"),
    Column("LDL+STL", "spilled registers read and written in the loop: should be 0"),
    Column("all", "instructions in one pass, for each warp: what is neither product nor ldmatrix is overhead"),
)
ACTIVITY = tuple(
    Column(name, METRICS[name].meaning)
    for name in ("time", "clock", "tensor pipe", "shared pipe", "issue", "warps active", "registers launched", "grid")
)
SHARED = (
    Column("access", "kind of access to shared memory"),
    Column("wavefronts", "passes through shared memory of at most 128 bytes; what wgmma reads is not among them"),
    Column("least", "wavefronts without conflicts: 4 an ldmatrix.x4; of TMA's bytes a 128th"),
    Column("ratio", "wavefronts for each that is needed: 1.00 means no conflict"),
    Column("conflicts", "repeated passes; in the rows of the pipe also waits for TMA writes, which are none"),
)
BYTES = (
    Column("compulsory", "A, B and C, each once: no kernel moves less"),
    Column("L2", METRICS["L2"].meaning),
    Column("L2/compulsory", "how often the L2 serves each byte: larger tiles lower it"),
    Column("L2 hits", METRICS["L2 hits"].meaning),
    Column("DRAM read", METRICS["DRAM read"].meaning),
    Column("DRAM written", METRICS["DRAM written"].meaning),
    Column("DRAM/compulsory", "device memory against what is compulsory: above 1, the L2 lost what was needed again"),
)


def sheets(report: Report) -> Iterator[Sheet]:
    """The tables that there is anything to say in."""
    for gpu in report.gpus:
        rows = [(p, f) for p in report.profiles for f in p.facts if f.gpu == gpu]
        where = f"on {gpu.title} (sm_{gpu.architecture}, {gpu.multiprocessors} multiprocessors)"
        resources = [[*_who(p), *_resources(f)] for p, f in rows]
        remarks = _grouped([(p.label, p.no_facts[gpu.title]) for p in report.profiles if gpu.title in p.no_facts])
        yield Sheet(f"Resources {where}", RESOURCES if rows else (), resources, remarks)
        if rows:
            yield Sheet(f"Tiles of C {where}", TILES, [[*_who(p), *_tiles(f)] for p, f in rows])
            loops = [[*_who(p), *_loop(f)] for p, f in rows]
            yield _dense(Sheet(f"One pass of the main loop, sm_{gpu.architecture}", LOOP, loops))
        if ptx := [(p, f.code.ptx) for p, f in rows if f.code.ptx]:
            names = list(dict.fromkeys(name for _, counts in ptx for name in counts))
            columns = [Column(name, f"{name} in the PTX of the whole kernel") for name in names]
            cells = [[*_who(p), *(str(counts.get(name, 0)) for name in names)] for p, counts in ptx]
            yield Sheet(f"PTX of the Triton kernels, sm_{gpu.architecture}", columns, cells)
    yield from _counter_sheets(report)


def _counter_sheets(report: Report) -> Iterator[Sheet]:
    counted = [(p, p.counted) for p in report.profiles if p.counted]
    missing = _grouped([(p.label, p.no_counters) for p in report.profiles if p.no_counters])
    if not counted:
        return
    sentences = _grouped([(p.label, c.sentence) for p, c in counted if c.sentence])
    names = [f"{p.label}: the kernel is {c.kernel}{_besides(c)}" for p, c in counted if c.others or not p.config]
    yield Sheet(
        f"What one call did on {report.counted_on} (ncu {report.ncu})",
        ACTIVITY,
        [[*_who(p), *_activity(c)] for p, c in counted],
        [*names, *missing],
    )
    kinds = [[*(_who(p) if n == 0 else ["", ""]), *_kind(kind)] for p, c in counted for n, kind in enumerate(c.shared)]
    yield Sheet("Shared memory", SHARED, kinds, sentences)
    compulsory = report.case.compulsory_bytes
    yield Sheet("Bytes, the L2 empty at first", BYTES, [[*_who(p), *_bytes(c, compulsory)] for p, c in counted])
    top = {stall.reason for _, c in counted for stall in c.stalls[:TOP_STALLS]}
    columns = [Column(f"{rank}.", "share of the time that warps are resident") for rank in range(1, TOP_STALLS + 1)]
    cells = []
    for p, c in counted:
        shown = [f"{stall.reason} {stall.share:.0%}" for stall in c.stalls[:TOP_STALLS]]
        cells.append([*_who(p), *shown, *[""] * (TOP_STALLS - len(shown))])
    meanings = [f"{reason}: {meaning}" for reason, meaning in STALLS.items() if reason in top]
    yield Sheet("Why warps do not issue", columns, cells, meanings)


def _grouped(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """Contestants and a reason, each reason told once."""
    together: dict[str, list[str]] = {}
    for label, reason in reasons:
        together.setdefault(reason, []).append(label)
    return [f"{', '.join(labels)}: {reason}" for reason, labels in together.items()]


def _who(profile: Profile) -> list[str]:
    return [profile.backend, profile.config or ""]


def _resources(facts: Facts) -> list[str]:
    code = facts.code
    numbers = (code.registers, code.spill_bytes, code.shared_bytes, code.threads, facts.blocks, facts.warps)
    room = "/".join(str(count) for count in facts.room.values())
    return [*(f"{number:,}" for number in numbers), f"{facts.occupancy:.1%}", room, facts.limited_by]


def _tiles(facts: Facts) -> list[str]:
    if facts.waves is None or facts.last_wave is None:
        return [f"{facts.tiles:,}", "0", "does not fit", "", ""]
    numbers = (f"{facts.tiles:,}", f"{facts.at_once:,}", f"{facts.waves:.2f}", f"{facts.last_wave:.0%}")
    return [*numbers, f"{facts.inside:.1%}"]


def _loop(facts: Facts) -> list[str]:
    loop = facts.code.loop
    if loop is None:
        return [NOT_COUNTED] * len(LOOP)
    cells = {name: str(loop.counts.get(name, 0)) for name in (column.heading for column in LOOP)}
    per_ldmatrix = loop.products_per_ldmatrix
    cells["HMMA/LDSM"] = "" if per_ldmatrix is None else f"{per_ldmatrix:.2f}"
    cells["LDL+STL"] = str(loop.counts.get("LDL", 0) + loop.counts.get("STL", 0))
    cells["all"] = str(loop.total)
    return list(cells.values())


def _activity(counted: Counted) -> list[str]:
    return [_figure(counted.values[column.heading], METRICS[column.heading].unit) for column in ACTIVITY]


def _kind(kind: SharedKind) -> list[str]:
    ratio = NOT_COUNTED if kind.ratio is None else f"{kind.ratio:.2f}"
    return [kind.kind, _count(kind.wavefronts), _count(kind.least), ratio, _count(kind.conflicts)]


def _bytes(counted: Counted, compulsory: int) -> list[str]:
    values = counted.values
    read, written = values["DRAM read"], values["DRAM written"]
    dram = None if read is None or written is None else read + written
    return [
        _figure(compulsory, "bytes"),
        _figure(values["L2"], "bytes"),
        _times(values["L2"], compulsory),
        _figure(values["L2 hits"], "%"),
        _figure(read, "bytes"),
        _figure(written, "bytes"),
        _times(dram, compulsory),
    ]


def _besides(counted: Counted) -> str:
    return f"; besides it the call launched {', '.join(counted.others)}" if counted.others else ""


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return NOT_COUNTED
    if unit == "bytes":
        return f"{value * 1e-6:,.1f} MB"
    return f"{value:,.1f}%" if unit == "%" else f"{value:,.1f} {unit}" if unit else f"{value:,.0f}"


def _count(value: float | None) -> str:
    return NOT_COUNTED if value is None else f"{value:,.0f}"


def _times(value: float | None, base: float) -> str:
    return NOT_COUNTED if value is None else f"{value / base:.2f}"


def _dense(sheet: Sheet) -> Sheet:
    """Without the columns that say 0 or nothing everywhere."""
    kept = [n for n in range(len(sheet.columns)) if any(row[n + 2] not in ("0", "") for row in sheet.rows)]
    rows = [[*row[:2], *(row[n + 2] for n in kept)] for row in sheet.rows]
    return dataclasses.replace(sheet, columns=[sheet.columns[n] for n in kept], rows=rows)
