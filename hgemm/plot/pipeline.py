"""How copies overlap with the work: each stage of the ring over time, from running the kernel in the emulator.

The emulator notes when copies into a stage are issued, when they have landed and when ldmatrix reads it. Its clock
counts the instructions of the block's warps, which run one after another; it knows nothing of microseconds. Under the
schedule "lazy" a copy lands as late as the kernel's own waits allow, under "eager" at once: a GPU is in between.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from hgemm.plot import style
from hgemm.plot.mechanism import Functions, Kernel, Options, Picture, footer, kernel
from hgemm.plot.source import NothingToDraw

K_TILES = 8
LANE_INCHES = 0.27

DEFAULT = (
    ("cuda_cp_async:128x128x32_s2_w64x32", "lazy"),
    ("cuda_cp_async:128x128x32_s3_w64x32", "lazy"),
    ("cuda_tma:128x128x32_s3_w64x32", "lazy"),
    ("cuda_tma:128x128x32_s3_w64x32", "eager"),
)

LOADING: dict[str, Any] = {"facecolor": "#fdf3dc", "edgecolor": style.ORANGE, "hatch": "////", "linewidth": 0.8}
FULL: dict[str, Any] = {"facecolor": "#a9d8f5", "edgecolor": style.SKY, "linewidth": 0.8}
READ: dict[str, Any] = {"facecolor": style.BLUE, "edgecolor": style.BLUE, "linewidth": 0.8}

SCHEDULES = {"lazy": "copies land as late as the kernel's waits allow", "eager": "copies land at once"}


@dataclass(frozen=True)
class Fill:
    """One use of a stage: what happened when, in steps of the emulator."""

    stage: int
    k_tile: int
    issued: int
    """The first copy into it was issued."""
    landed: int
    """The last one had landed."""
    first_read: int
    last_read: int


@dataclass(frozen=True)
class Run:
    """One block of a kernel, over K_TILES tiles of K."""

    kernel: Kernel
    schedule: str
    fills: tuple[Fill, ...]

    @property
    def end(self) -> int:
        return max(fill.last_read for fill in self.fills)

    @property
    def period(self) -> float:
        """Steps from one tile to the next: the work on one."""
        starts = [fill.first_read for fill in self.fills]
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(starts))

    @property
    def slack(self) -> float:
        """How long copies were under way, in tiles of work: the median over those issued once the work had begun."""
        start = min(fill.first_read for fill in self.fills)
        return statistics.median(fill.landed - fill.issued for fill in self.fills if fill.issued > start) / self.period


def fills(trace: Iterable[tuple[int, str, int]], stages: int) -> tuple[Fill, ...]:
    """The uses of a ring's stages in the order of K, which is that of their copies, from a trace of the emulator.

    A stage that is read is used until the next copy into it is issued. What is copied and never read is left out.
    """
    uses: list[dict[str, int]] = []
    current: dict[int, dict[str, int]] = {}
    for step, happening, stage in trace:
        if stage >= stages:
            continue
        if happening == "issued" and (stage not in current or "first_read" in current[stage]):
            current[stage] = {"stage": stage, "issued": step}
            uses.append(current[stage])
        use = current[stage]
        if happening == "landed":
            use["landed"] = step
        elif happening == "read":
            use.setdefault("first_read", step)
            use["last_read"] = step
    read = [use for use in uses if "first_read" in use]
    return tuple(Fill(k_tile=number, **use) for number, use in enumerate(read))


def run(chosen: Kernel, schedule: str) -> Run:
    """Executes one block of the kernel in the emulator. Raises BuildError, or EmulatorError if it breaks a rule."""
    from hgemm.cuda_kernels.emulator.report import Report
    from hgemm.emulation import EmulatorError, describe

    shape = chosen.config.config
    library = Functions(chosen).library
    K = shape.tile_k * K_TILES * shape.parts  # of which the block has one part
    a, b = torch.zeros(shape.tile_m, K, dtype=torch.float16), torch.zeros(K, shape.tile_n, dtype=torch.float16)
    out = torch.empty(shape.tile_m, shape.tile_n, dtype=torch.float16)
    problem, memories = describe(a, b, out, "nn")
    _, found = library.run(
        lambda: library.launch(problem, chosen.index), memories, schedule, trace_bytes=chosen.stage_bytes
    )
    report = Report.from_dict(found, library.path)
    if not report.clean:
        raise EmulatorError(report)
    return Run(chosen, schedule, fills(map(tuple, found["trace"]), shape.stages))


def picture(options: Options) -> Picture:
    """cp.async with 2 and 3 stages and TMA with 3; a chosen configuration lazily and eagerly. Raises BuildError, and
    NothingToDraw for blocks that share tiles: while one waits for the other, its steps stand still."""
    wanted = [(kernel(name), schedule) for name, schedule in DEFAULT]
    if options.config:
        if (cluster := options.config.config.config.cluster) > 1:
            raise NothingToDraw(
                f"{options.config.label}: {cluster} blocks fill each other's stages, and the clock of this picture is "
                "one block's; take another --config"
            )
        wanted = [(options.config, "lazy"), (options.config, "eager")]
    runs = [run(chosen, schedule) for chosen, schedule in wanted]
    return Picture(_figure(runs), {"runs": [_facts(each) for each in runs]})


def _facts(each: Run) -> dict[str, Any]:
    return {
        "kernel": each.kernel.label,
        "schedule": each.schedule,
        "steps_per_tile": each.period,
        "tiles_under_way": round(each.slack, 2),
        "fills": [asdict(fill) for fill in each.fills],
    }


def _figure(runs: Sequence[Run]) -> Figure:
    lanes = [each.kernel.config.config.stages for each in runs]
    top, bottom, above, gap = 1.0, 1.12, 0.34, 0.16
    height = top + bottom + sum(LANE_INCHES * count + above for count in lanes) + gap * (len(runs) - 1)
    end = max(each.end for each in runs) * 1.01
    with style.context():
        figure = style.new_figure(height)
        y = height - top
        for each, count in zip(runs, lanes, strict=True):
            figure.text(0.012, (y - 0.1) / height, _heading(each), fontsize=9.5, fontweight="bold", va="top")
            figure.text(0.988, (y - 0.115) / height, _remark(each), fontsize=8.5, va="top", ha="right")
            y -= above + LANE_INCHES * count
            axes = style.add_axes(figure, 0.72, y, style.WIDTH_INCHES - 0.9, LANE_INCHES * count)
            _panel(axes, each, end, is_last=each is runs[-1])
            y -= gap
        style.title(
            figure,
            "The pipeline: what each stage of the ring does while K is worked through",
            f"one block, {K_TILES} tiles of K, numbered; warps wait for a copy that takes longer than its hatched bar",
        )
        _legend(figure, height)
        footer(
            figure,
            "The kernel itself, executed in the emulator. A step is an instruction of one of the block's warps, "
            "which run one after another there: an order of events, not a time.",
            " · ".join(dict.fromkeys(each.kernel.label for each in runs)),
        )
    return figure


def _heading(each: Run) -> str:
    stages = each.kernel.config.config.stages
    return f"{each.kernel.family.backend}, {stages} stages: {SCHEDULES[each.schedule]}"


def _remark(each: Run) -> str:
    work = f"{each.period:.0f} steps a tile"
    return f"a copy may take {each.slack:.1f} tiles of work; {work}" if each.schedule == "lazy" else work


def _panel(axes: Axes, each: Run, end: float, is_last: bool) -> None:
    stages = each.kernel.config.config.stages
    for fill in each.fills:
        spans: tuple[tuple[int, int, dict[str, Any]], ...] = (
            (fill.issued, fill.landed, LOADING),
            (fill.landed, fill.first_read, FULL),
            (fill.first_read, fill.last_read, READ),
        )
        for start, stop, look in spans:
            if stop > start:
                axes.add_patch(Rectangle((start, fill.stage + 0.13), stop - start, 0.74, **look))
        middle = (fill.first_read + fill.last_read) / 2
        axes.text(
            middle,
            fill.stage + 0.51,
            str(fill.k_tile),
            color="white",
            fontsize=9,
            fontweight="bold",
            ha="center",
            va="center_baseline",
        )
    axes.set(xlim=(0, end), ylim=(stages, 0))
    axes.set_yticks([stage + 0.5 for stage in range(stages)], [f"stage {stage}" for stage in range(stages)], fontsize=8)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for line in range(stages + 1):
        axes.axhline(line, color=style.GRID, linewidth=0.8, zorder=0)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= end])
    axes.tick_params(axis="x", labelbottom=is_last, length=3 if is_last else 0)
    axes.grid(True, axis="x")
    if is_last:
        axes.set_xlabel("steps of the emulator", fontsize=8.5)


def _legend(figure: Figure, height: float) -> None:
    looks: Sequence[tuple[str, dict[str, Any]]] = (
        ("loading: copies issued, not all landed", LOADING),
        ("full: landed, not yet read", FULL),
        ("being read by ldmatrix", READ),
        ("free", {"facecolor": "white", "edgecolor": style.GRID}),
    )
    figure.legend(
        handles=[Patch(label=text, **look) for text, look in looks],
        loc="upper left",
        bbox_to_anchor=(0.005, 1 - 0.66 / height),
        ncols=4,
        frameon=False,
        fontsize=8.5,
        handlelength=2.2,
        columnspacing=1.6,
        borderaxespad=0,
    )
