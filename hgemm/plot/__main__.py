"""python -m hgemm.plot: draw charts from a results file, or from a measurement made now if there is a CUDA GPU."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import matplotlib as mpl
import torch
from rich.console import Console

from hgemm.bench.results import ResultsError
from hgemm.cuda_kernels.toolchain import BuildError
from hgemm.plot import FORMATS, KINDS, NothingToDraw, draw, mechanism, save
from hgemm.plot.source import default_folder, load, newest_packaged

EPILOG = """Without --from a CUDA GPU is measured (the quick suite of python -m hgemm.bench); on a machine with none the
newest measurements that come with the package are drawn. Exit status: 0, 2 if a file or an option cannot be used."""


ALL_KINDS = (*KINDS, *mechanism.KINDS)


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser("python -m hgemm.plot", description=__doc__, epilog=EPILOG)
    parse.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(ALL_KINDS)} (default: roofline)")
    parse.add_argument("--from", dest="source", type=Path, metavar="FILE", help="results file of hgemm.bench")
    parse.add_argument("--out", type=Path, metavar="DIR", help="folder for the pictures (default: plots/)")
    parse.add_argument(
        "--format", type=_formats, default=("svg", "png"), metavar="svg,png", help="among svg, png and pdf"
    )
    parse.add_argument("--json", action="store_true", help="print what was drawn, and from what, as JSON")
    mechanism.add_options(parse)
    return parse


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parse = parser()
    options = parse.parse_args(argv)
    kinds = list(dict.fromkeys(options.kinds or ["roofline"]))
    for kind in kinds:
        if kind not in ALL_KINDS:
            parse.error(f"a picture is one of {', '.join(ALL_KINDS)}; found {kind!r}")
    chosen = mechanism.read_options(parse, options, kinds)
    mpl.use("Agg")  # no window, no display needed
    folder = options.out or default_folder()
    console = Console(stderr=True, highlight=False)
    answer: dict[str, object] = {}
    try:
        of_kernels = [kind for kind in kinds if kind in mechanism.KINDS]
        files, answer["kernels"] = mechanism.draw_all(of_kernels, chosen, folder, options.format, save)
        if charts := [kind for kind in kinds if kind in KINDS]:
            source = options.source or _default_source(folder, console)
            if not options.source:
                console.print(f"drawing {source}", soft_wrap=True)
            results = load(source)
            answer |= {"source": str(source), "gpu": results.env.gpu}
            files += [path for kind in charts for path in draw(results, kind, folder, options.format)]
    except (NothingToDraw, ResultsError, BuildError, OSError) as error:
        print(f"hgemm.plot: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({**answer, "files": [str(path) for path in files]}))
    else:
        for path in files:
            print(path)
    return 0


def _default_source(folder: Path, console: Console) -> Path:
    """The newest packaged file, or with a CUDA GPU one that is measured now and stored beside the pictures."""
    if not torch.cuda.is_available():
        return newest_packaged()
    from hgemm.bench.__main__ import default_path
    from hgemm.bench.__main__ import main as bench

    folder.mkdir(parents=True, exist_ok=True)
    path = default_path(torch.cuda.get_device_name(), folder)
    status = bench(["--suite", "quick", "--out", str(path)], console=console)
    if not path.exists():
        raise NothingToDraw(f"the measurement ended with status {status} and left nothing to draw")
    return path


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(f"a format is one of {', '.join(FORMATS)}, found {name!r}")
    return names


if __name__ == "__main__":
    sys.exit(main())
