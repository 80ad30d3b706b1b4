"""python -m hgemm.plot: draw charts from a results file, or from a measurement made now if there is a CUDA GPU.

roofline: speed over arithmetic intensity. ceiling: one case in % of the mma.sync rate. sizes: speed over size. heatmap:
ratios to a baseline. samples: every sample of one case. timeline: speed, clock, power and temperature over the run.
ladder: what each technique adds, from a file of python -m hgemm.bench --ladder.

Of the kernels themselves, without any measurement: swizzle (the banks that ldmatrix touches), pipeline (what each stage
of the ring does over K), raster (the order of the tiles, in waves of a GPU).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from rich.console import Console

from hgemm.bench.results import ResultsError
from hgemm.bench.schema import Results
from hgemm.bench.suites import Shape
from hgemm.cuda_kernels.toolchain import BuildError
from hgemm.plot import (
    FORMATS,
    KINDS,
    OPTIONS,
    NothingToDraw,
    Options,
    draw,
    ladder,
    mechanism,
    reason_of,
    save,
    terminal,
    timed_dtypes,
)
from hgemm.plot.source import default_folder, fullest_packaged, load
from hgemm.program import Parser, end_with, names, reading

EPILOG = """Without --from a CUDA GPU is measured (the quick suite of python -m hgemm.bench); on a machine with none the
fullest measurements that come with the package are drawn. Exit status: 0, 2 if a file or an option cannot be used."""


def parser() -> Parser:
    parse = Parser("python -m hgemm.plot", description=__doc__, epilog=EPILOG)
    kinds = f"{', '.join(KINDS)}, or all of these (default: roofline); {LADDER}; {', '.join(mechanism.KINDS)}"
    parse.add_argument("kinds", nargs="*", metavar="KIND", help=kinds)
    parse.add_argument("--from", dest="source", type=Path, metavar="FILE", help="results file of hgemm.bench")
    parse.add_argument("--out", type=Path, metavar="DIR", help="folder for the pictures (default: plots/)")
    parse.add_argument(
        "--format",
        type=names(FORMATS, "format"),
        default=("svg", "png"),
        metavar="svg,png",
        help="among svg, png and pdf",
    )
    parse.add_argument(
        "--mnk",
        type=reading(_shape),
        metavar="M,N,K",
        help="the case to show of ceiling, samples or raster (default: 4096³, or the largest)",
    )
    parse.add_argument("--baseline", metavar="NAME", help="backend[:config] to compare with (default: torch)")
    parse.add_argument("--contestant", metavar="NAME", help="one backend[:config], over M and N")
    parse.add_argument("--sustained", type=Path, metavar="FILE", help="of ladder: the same under sustained load")
    parse.add_argument("--text", action="store_true", help="the roofline as text on the terminal, no picture")
    parse.add_argument("--json", action="store_true", help="print what was drawn, and from what, as JSON")
    mechanism.add_options(parse)
    return parse


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parse = parser()
    given = parse.parse_args(argv)
    kinds = _kinds(parse, given)
    mpl.use("Agg")  # no window, no display needed
    folder = given.out or default_folder()
    console = Console(stderr=True, highlight=False)
    answer: dict[str, Any] = {}
    try:
        of_kernels = [kind for kind in kinds if kind in mechanism.KINDS]
        chosen = mechanism.Options(given.config, given.gpu, Shape(*given.mnk) if given.mnk else None)
        files, facts = mechanism.draw_all(of_kernels, chosen, folder, given.format, save)
        answer |= {"kernels": facts} if facts else {}
        if charts := [kind for kind in kinds if kind in KINDS or kind == LADDER]:
            source = given.source or _default_source(folder, console)
            if not given.source:
                console.print(f"drawing {source}", soft_wrap=True)
            results = load(source)
            answer |= {"source": str(source), "gpu": results.env.gpu}
            if given.text:
                _print_text(results, answer, as_json=given.json)
                return 0
            asked = {name: value for name in _ASKED if (value := getattr(given, name)) is not None}
            if LADDER in kinds:
                files += _draw_ladder(results, given.sustained, folder, given.format)
                charts.remove(LADDER)
            files += _draw_all(results, charts, folder, given.format, Options(**asked), console, "all" in given.kinds)
    except BrokenPipeError:
        raise
    except (NothingToDraw, ResultsError, BuildError, OSError) as error:
        print(f"hgemm.plot: {reason_of(error)}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(answer | {"files": [str(path) for path in files]}))
    else:
        for path in files:
            print(path)
    return 0


LADDER = "ladder"
"""A kind that takes a second results file."""

ALL_KINDS = (*KINDS, LADDER, *mechanism.KINDS)

_ASKED = ("mnk", "baseline", "contestant")


def _kinds(parse: Parser, given: argparse.Namespace) -> list[str]:
    """The kinds asked for, once each; ends the program over one that does not exist, or an option that none takes."""
    kinds = list(dict.fromkeys(given.kinds or ["roofline"]))
    for kind in kinds:
        if kind not in ALL_KINDS and kind != "all":
            parse.error(f"a picture is one of {', '.join(ALL_KINDS)}, or all; found {kind!r}")
    if "all" in kinds:
        kinds = [*KINDS, *(kind for kind in kinds if kind not in (*KINDS, "all"))]
    if given.text and kinds != ["roofline"]:
        parse.error(f"--text shows the roofline and nothing else; found {' '.join(given.kinds)}")
    if given.text and given.out:
        parse.error(f"--text draws no picture; leave out --out {given.out}")
    if given.sustained and LADDER not in kinds:
        parse.error(f"--sustained is for {LADDER}; found {' '.join(kinds)}")
    if given.source and not set(kinds) & {*KINDS, LADDER}:
        parse.error(f"--from is for charts of measurements; found {' '.join(kinds)}, which need no results file")
    for name in dict.fromkeys((*_ASKED, *mechanism.OPTIONS)):
        takers = [kind for kind, names in OPTIONS.items() if name in names]
        takers += mechanism.OPTIONS.get(name, ())
        if getattr(given, name) is not None and not set(takers) & set(kinds):
            parse.error(f"--{name} is for {' and '.join(takers)}; found {' '.join(kinds)}")
    return kinds


def _draw_all(
    results: Results,
    kinds: list[str],
    folder: Path,
    formats: tuple[str, ...],
    options: Options,
    console: Console,
    whatever_there_is: bool,
) -> list[Path]:
    """Every kind. One that has nothing to show is an error, or a remark if ``whatever_there_is`` was asked for."""
    files: list[Path] = []
    missing: list[str] = []
    for kind in kinds:
        try:
            files += draw(results, kind, folder, formats, options)
        except NothingToDraw as error:
            if not whatever_there_is:
                raise NothingToDraw(f"{kind}: {error}") from None
            missing.append(f"{kind}: {error}")
            console.print(f"no {kind}: {error}", soft_wrap=True, markup=False)
    if missing and not files:
        raise NothingToDraw("; ".join(missing))
    return files


def _draw_ladder(results: Results, sustained: Path | None, folder: Path, formats: tuple[str, ...]) -> list[Path]:
    """One picture a dtype that has rungs. Raises NothingToDraw if none has."""
    other = load(sustained) if sustained else None
    files: list[Path] = []
    reasons = []
    for dtype in timed_dtypes(results):
        try:
            figure = ladder.draw(results, dtype, other)
        except NothingToDraw as error:
            reasons.append(str(error))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for form in formats:
            files.append(folder / f"{LADDER}-{dtype}.{form}")
            save(figure, files[-1])
    if not files:
        raise NothingToDraw(f"{LADDER}: {'; '.join(reasons)}")
    return files


def _print_text(results: Results, answer: dict[str, Any], *, as_json: bool) -> None:
    """The roofline of every dtype that has one."""
    dtypes = timed_dtypes(results)
    if as_json:
        print(json.dumps(answer | {"rooflines": [terminal.data(results, dtype) for dtype in dtypes]}))
        return
    width = Console().width if sys.stdout.isatty() else terminal.USUAL_WIDTH
    unicode = "utf" in (sys.stdout.encoding or "").lower()
    print("\n\n\n".join(terminal.text(results, dtype, width, unicode=unicode) for dtype in dtypes))


def _default_source(folder: Path, console: Console) -> Path:
    """The fullest packaged file, or with a CUDA GPU one that is measured now and stored beside the pictures."""
    if not torch.cuda.is_available():
        return fullest_packaged()
    from hgemm.bench.__main__ import default_path
    from hgemm.bench.__main__ import main as bench

    folder.mkdir(parents=True, exist_ok=True)
    path = default_path(torch.cuda.get_device_name(), folder)
    status = bench(["--suite", "quick", "--out", str(path)], console=console)
    if not path.exists():
        raise NothingToDraw(f"the measurement ended with status {status} and left nothing to draw")
    return path


def _shape(text: str) -> tuple[int, int, int]:
    shape = Shape.parse(text)
    return shape.M, shape.N, shape.K


if __name__ == "__main__":
    end_with(main)
