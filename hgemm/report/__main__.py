"""python -m hgemm.report: one HTML page with the answer, the charts and the tables of results files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from rich.console import Console

from hgemm.bench.results import ResultsError, packaged
from hgemm.plot import NothingToDraw, reason_of
from hgemm.plot.source import default_folder
from hgemm.program import Parser, end_with
from hgemm.report import MARKER, Source, read, render

EPILOG = """Without --from the measurements that come with the package are shown, newest first; nothing is measured. The
page needs no network and carries the files. An earlier page of this tool is replaced, any other file is left alone.
Exit status: 0, 2 if a file or an option cannot be used."""


STDOUT = "-"


class NotOurs(ValueError):
    """There is a file where the page would go, and this tool did not write it."""


def parser() -> Parser:
    parse = Parser("python -m hgemm.report", description=__doc__, epilog=EPILOG)
    parse.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        action="extend",
        metavar="FILE",
        help="results files of hgemm.bench, a section each",
    )
    parse.add_argument("--out", metavar="FILE", help="the page (default: report.html in plots/); - prints it")
    parse.add_argument("--json", action="store_true", help="print what was written, and from what, as JSON")
    return parse


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parse = parser()
    options = parse.parse_args(argv)
    printed = options.out == STDOUT
    if printed and options.json:
        parse.error("only one of --json, --out - can be printed; name a file for the page")
    mpl.use("Agg")  # no window, no display needed
    console = Console(stderr=True, highlight=False)
    out = Path(options.out) if options.out else default_folder() / "report.html"
    try:
        if not printed:
            _refuse_foreign(out)
        paths, sources = _sources(options.sources)
        with console.status("", spinner="dots") as status:
            page = render(sources, lambda text: status.update(text))
        if printed:
            sys.stdout.write(page)
            return 0
        if options.out is None:
            out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except BrokenPipeError:
        raise
    except (NotOurs, NothingToDraw, ResultsError, OSError) as error:
        print(f"hgemm.report: {reason_of(error)}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"file": str(out), "bytes": len(page.encode()), "sources": [str(path) for path in paths]}))
    else:
        print(out)
    return 0


def _refuse_foreign(out: Path) -> None:
    """Raises NotOurs if ``out`` exists and is no page of this tool, OSError if it cannot be read."""
    if not out.exists():
        return
    if not out.is_file():
        raise NotOurs(f"{out} is not a file; name the page itself with --out")
    with out.open("rb") as file:
        beginning = file.read(4096)
    if MARKER.encode() not in beginning:
        raise NotOurs(f"{out} exists, and is no page of hgemm.report; name another file with --out, or remove it")


def _sources(named: list[Path] | None) -> tuple[list[Path], list[Source]]:
    """The files to show: those named, each once, or else every packaged one in which somebody was timed."""
    if named:
        paths = list({path.resolve(): path for path in named}.values())
        return paths, [read(path) for path in paths]
    found = []
    for path in packaged():
        try:
            found.append((path, read(path)))
        except (NothingToDraw, ResultsError):
            continue
    if not found:
        raise NothingToDraw("no measurements come with this package; name a results file with --from")
    return [path for path, _ in found], [source for _, source in found]


if __name__ == "__main__":
    end_with(main)
