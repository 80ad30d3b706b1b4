"""The command line of ``python -m hgemm.bench``: its options, the plan they make, and how a results file keeps them."""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hgemm.bench.contestants import DEFAULT_PATTERNS
from hgemm.bench.outcome import Options
from hgemm.bench.plan import MODES, DutyCycle, Plan
from hgemm.bench.shapes_file import ListedShape, read_shapes
from hgemm.bench.suites import DEFAULT_LAYOUT, DISTRIBUTIONS, DTYPES, LAYOUTS, SUITES, Case, Shape, cases
from hgemm.isolation import LIMIT_SECONDS
from hgemm.program import Parser, names, reading

DESCRIPTION = """Measures backends against each other and against the device's own limits.

  python -m hgemm.bench                                       three shapes, every backend
  python -m hgemm.bench --mnk 4096,4096,4096 --backends torch cuda_tma
  python -m hgemm.bench --suite llm --backends '*:default' --budget 10
  python -m hgemm.bench --resume FILE                         measures what an ended run left out
  python -m hgemm.bench --from FILE --markdown -              tables of a file, without measuring
  python -m hgemm.bench compare A.json B.json                 faster, slower, same or ambiguous, case by case"""

EPILOG = f"""Every contestant is checked before it is timed; nothing changes a clock or a power limit. Results go to
--out, by default hgemm-bench-GPU-TIME.json in the current folder, and are stored after each case: Ctrl-C keeps
them, and --resume goes on.

Exit status: 0, or 1 if a contestant computed a wrong product, broke the device or never ended, or the file is
full; 2 for a usage error or no GPU; 130 after Ctrl-C.

Suites: {"; ".join(f"{name} ({len(shapes)} shapes)" for name, shapes in SUITES.items())}."""

SHARE = {"suite": "squares", "dtypes": ("bf16", "fp16"), "budget": 10.0}
"""What --share measures unless told otherwise."""

_DEFAULTS: dict[str, Any] = {"dtypes": ("bf16",)}


def parser(defaults: Mapping[str, Any] | None = None) -> Parser:
    """The parser; ``defaults`` take the place of its own."""
    parse = Parser(
        "python -m hgemm.bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _what(parse.add_argument_group("what is measured"))
    _how(parse.add_argument_group("how"))
    _output(parse.add_argument_group("output"))
    parse.set_defaults(**(_DEFAULTS | dict(defaults or {})))
    return parse


def add_shapes(group: Any, default: str = "") -> None:
    """The options that ``cases_of`` reads; ``default`` says in the help which suite it is if no shapes are given."""
    group.add_argument("--suite", choices=list(SUITES), help=f"a named list of shapes{default}")
    group.add_argument(
        "--mnk",
        type=reading(Shape.parse),
        nargs="+",
        metavar="M,N,K",
        help="shapes, instead of a suite or with it; BxM,N,K is a batch of B products",
    )
    group.add_argument(
        "--shapes",
        type=reading(lambda text: read_shapes(Path(text))),
        metavar="FILE.csv",
        help="shapes from a file, likewise: columns M,N,K and where wanted batch,dtype,layout,label",
    )
    group.add_argument("--dtypes", type=names(DTYPES, "dtype"), metavar="bf16,fp16", help="(default: bf16)")
    group.add_argument(
        "--layouts",
        type=names(LAYOUTS, "layout"),
        metavar="nn,nt",
        help="of a and b: n row-major, t column-major (default: nn; nt for the suite llm)",
    )


def _what(group: Any) -> None:
    add_shapes(group, default=" (default: quick)")
    group.add_argument(
        "--backends",
        nargs="+",
        metavar="PATTERN",
        default=list(DEFAULT_PATTERNS),
        help=f"NAME, NAME:CONFIG or NAME:default, with * and ? (default: {' '.join(DEFAULT_PATTERNS)})",
    )
    group.add_argument(
        "--ladder",
        action="store_true",
        help="the configurations that each switch on one technique more, at 4096 and 8192 unless shapes are given",
    )
    group.add_argument(
        "--contestant",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file that calls hgemm.register_backend: what it registers takes part",
    )
    group.add_argument(
        "--data", choices=DISTRIBUTIONS, default="normal", help="entries of A and B; zeros are a control"
    )
    group.add_argument("--seed", type=int, default=0, help="of the operands and of the order (default: 0)")


def _how(group: Any) -> None:
    group.add_argument(
        "--mode",
        choices=MODES,
        default="rotating",
        help="rotating: device time, operands rotate through 3x the L2 (default); kernel: the same operands again and "
        "again; cold: each call after a flush of the L2; e2e: the host's time to issue a call, with out= and without",
    )
    group.add_argument("--burst-ms", type=float, metavar="MS", help="length of a burst (default: 8; sustained: 250)")
    group.add_argument(
        "--idle-ms", type=float, metavar="MS", help="idle before each burst, longer after a longer one (default: 20)"
    )
    group.add_argument("--sustained", action="store_true", help="no idle, each timed burst after an untimed one")
    group.add_argument("--rounds", type=int, default=7, help="samples a contestant (default: 7)")
    group.add_argument("--budget", type=float, metavar="MINUTES", help="begin no round after this long")
    group.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        default=LIMIT_SECONDS,
        help="a contestant that takes longer to prepare, compilation included, or to run hangs (default: %(default)g)",
    )
    group.add_argument(
        "--preflight",
        choices=("own", "all", "none"),
        default="own",
        help="who is called first in a process of its own, where a hang or a crash ends nothing else: those from "
        "--contestant (default), all, or none",
    )
    group.add_argument(
        "--tune-cublaslt",
        action="store_true",
        help="before each case, let cublaslt try the algorithms it proposes and keep the fastest: the fair baseline",
    )


def _output(group: Any) -> None:
    group.add_argument("--out", type=Path, metavar="FILE", help="results file; an existing one is not overwritten")
    group.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on with an incomplete file, with its options, on the same machine and sources",
    )
    group.add_argument("--from", dest="source", type=Path, metavar="FILE", help="show a results file; measure nothing")
    group.add_argument(
        "--share",
        action="store_true",
        help="measure what a file for others should hold (squares, both dtypes, 10 minutes) and say how to send it in",
    )
    group.add_argument("--json", action="store_true", help="print the results as JSON, and store them only with --out")
    group.add_argument("--csv", metavar="FILE", help="also write a line a contestant as CSV; - prints it")
    group.add_argument("--markdown", metavar="FILE", help="also write the tables in Markdown; - prints them")
    group.add_argument("--quiet", action="store_true", help="no tables, no progress")


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan that the options ask for. Raises ValueError for options that do not fit together."""
    duty = DutyCycle.sustained() if options.sustained else DutyCycle()
    if options.sustained and options.idle_ms:
        raise ValueError(f"--sustained means no idle, found --idle-ms {options.idle_ms:g}; leave one of them out")
    for name in ("burst_ms", "idle_ms", "budget", "limit"):
        value = getattr(options, name)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"--{name.replace('_', '-')} must be a finite number, found {value}")
    if abs(options.seed) >= 2**63:
        raise ValueError(f"--seed must be below 2^63 on either side of 0, found {options.seed}")
    return Plan(
        cases=cases_of(options),
        patterns=tuple(options.backends),
        mode=options.mode,
        duty=DutyCycle(
            duty.burst_ms if options.burst_ms is None else options.burst_ms,
            duty.idle_ms if options.idle_ms is None else options.idle_ms,
            duty.lead_in_bursts,
        ),
        rounds=options.rounds,
        seed=options.seed,
        tune_cublaslt=options.tune_cublaslt,
        budget_s=None if options.budget is None else 60 * options.budget,
        limit_s=options.limit,
    )


def recorded(options: argparse.Namespace) -> Options:
    """The options as a results file keeps them: what was measured and how, and not where it was stored."""
    return {
        "suite": options.suite or (None if options.mnk or options.shapes else "quick"),
        "mnk": [str(shape) for shape in options.mnk or ()],
        "shapes": [shape.text for shape in options.shapes or ()],
        "dtypes": list(options.dtypes),
        "layouts": None if options.layouts is None else list(options.layouts),
        "backends": list(options.backends),
        "contestants": [hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in options.contestant],
        "data": options.data,
        "seed": options.seed,
        "mode": options.mode,
        "burst_ms": options.burst_ms,
        "idle_ms": options.idle_ms,
        "sustained": options.sustained,
        "rounds": options.rounds,
        "tune_cublaslt": options.tune_cublaslt,
        "budget_minutes": options.budget,
    }


def restored(options: Options) -> dict[str, Any]:
    """Defaults for ``parser`` under which ``recorded`` returns these options, those of a sitting left out."""
    known = ("suite", "mnk", "shapes", "dtypes", "layouts", "backends", "data", "seed", "mode", "burst_ms", "idle_ms")
    values: dict[str, Any] = {name: options[name] for name in (*known, "sustained", "rounds", "tune_cublaslt")}
    values["mnk"] = [Shape.parse(text) for text in values["mnk"]] or None
    values["shapes"] = tuple(ListedShape.parse(text) for text in values["shapes"]) or None
    values["dtypes"] = tuple(values["dtypes"])
    values["layouts"] = None if values["layouts"] is None else tuple(values["layouts"])
    return values


def cases_of(options: argparse.Namespace) -> tuple[Case, ...]:
    """Those of the suite, of --mnk and of --shapes, dtype by dtype, none twice."""
    suite = options.suite or (None if options.mnk or options.shapes else "quick")
    filled = {"distribution": options.data, "seed": options.seed}
    layouts = options.layouts or ("nn",)
    found: list[Case] = []
    if suite:
        of_suite = options.layouts or (DEFAULT_LAYOUT.get(suite, "nn"),)
        found += cases(SUITES[suite], options.dtypes, layouts=of_suite, **filled)
    found += cases(tuple(options.mnk or ()), options.dtypes, layouts=layouts, **filled)
    for listed in options.shapes or ():
        dtypes = (listed.dtype,) if listed.dtype else options.dtypes
        found += cases((listed.shape,), dtypes, layouts=(listed.layout,) if listed.layout else layouts, **filled)
    order = list(dict.fromkeys(case.dtype for case in found))
    return tuple(sorted(dict.fromkeys(found), key=lambda case: order.index(case.dtype)))
