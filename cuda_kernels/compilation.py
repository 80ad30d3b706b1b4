"""One source text that becomes one file, and one ninja run that makes several of them."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hgemm.cuda_kernels import cache
from hgemm.cuda_kernels.toolchain import Tool

FOLDER = Path(__file__).resolve().parent
LOG = "compiler.log"
SHOWN_LINES = 30

Progress = Callable[[int, int, str], None]
"""Called with the number of finished and of all compilations, and with the name of what goes on."""


@dataclass(frozen=True)
class Compilation:
    """One source text and how it becomes one file."""

    name: str
    text: str
    suffix: str  # of the source file: ".cu" or ".cpp"
    product: str  # name of the file that is made
    compiler: Tool
    flags: tuple[str, ...]  # all that decides what is made, beyond text, compiler and requirements
    paths: tuple[str, ...] = ()  # where things lie; what is found there is known by content or by version
    requirements: tuple[str, ...] = ()  # versions of what else the product depends on

    @functools.cached_property
    def entry(self) -> str:
        """Its name in the cache, with a hash of the text, of every file it includes, and of flags and versions."""
        included = cache.included_files(self.text, FOLDER)
        contents = [part for name in sorted(included) for part in (name, included[name])]
        versions = (self.compiler.version, *self.requirements)
        return f"{self.name}-{cache.key(self.product, self.text, shlex.join(self.flags), *versions, *contents)}"

    def command(self, source: Path, product: Path) -> str:
        """The shell command that compiles `source` into `product`."""
        where = (f"-I{FOLDER}", *self.paths, *self.compiler.flags)
        return shlex.join((*self.compiler.command, *self.flags, *where, str(source), "-o", str(product)))


def verbose() -> bool:
    """Whether HGEMM_VERBOSE asks for commands and compiler output."""
    return os.environ.get("HGEMM_VERBOSE", "").strip() not in ("", "0")


def run_all(staged: Mapping[Compilation, Path], ninja: Tool, folder: Path, report: Progress) -> dict[Compilation, str]:
    """Makes every product in its staging folder, several at a time; `folder` is scratch space for ninja.

    Returns the compilations that failed, each with what its compiler printed, or what ninja did if that is nothing.
    """
    (folder / "build.ninja").write_text(_ninja_file(staged))
    output = _run_ninja(ninja, folder, len(staged), report)
    if verbose():
        print(output, *(_log(staging) for staging in staged.values()), sep="\n", file=sys.stderr)
    return {
        item: _log(staging) or output or "the compiler was killed and left no message"
        for item, staging in staged.items()
        if not (staging / item.product).is_file()
    }


def error_lines(log: str) -> str:
    """The part of a compiler's output that says what is wrong: all of a short one, else the lines with errors."""
    lines = [line for line in log.splitlines() if line.strip()]
    if len(lines) > SHOWN_LINES:
        telling = [line for line in lines if re.search(r"\b(error|fatal|undefined reference)\b", line)]
        lines = (telling or lines)[:SHOWN_LINES]
    return "\n".join(f"  {line}" for line in lines)


def _ninja_file(staged: Mapping[Compilation, Path]) -> str:
    lines = ["ninja_required_version = 1.5", "rule compile", "  command = $run", "  description = $name", ""]
    for item, staging in staged.items():
        source, product, partial = staging / f"{item.name}{item.suffix}", staging / item.product, staging / "partial"
        source.write_text(item.text)
        move = shlex.join(("mv", str(partial), str(product)))  # a compiler that is killed leaves no product
        run = f"{item.command(source, partial)} > {shlex.quote(str(staging / LOG))} 2>&1 && {move}"
        lines += [
            f"build {_escape_path(product)}: compile {_escape_path(source)}",
            f"  run = {run.replace('$', '$$')}",
            f"  name = {item.name}",
        ]
    return "\n".join(lines) + "\n"


def _escape_path(path: Path) -> str:
    return re.sub(r"([$ :])", r"$\1", str(path))


def _run_ninja(ninja: Tool, folder: Path, total: int, report: Progress) -> str:
    """Runs build.ninja in `folder` to its end, reporting as compilations finish. Returns what ninja printed."""
    command = [*ninja.command, "-k", "0", "-j", str(_jobs()), *(["-v"] if verbose() else [])]
    status = "[%f/%t] "
    lines = []
    report(0, total, "compiling")
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "NINJA_STATUS": status},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line)
                if finished := re.match(r"\[(\d+)/\d+\]", line):
                    report(int(finished.group(1)), total, "compiling")
        except BaseException:
            process.terminate()  # ninja ends its compilers
            raise
    return "".join(lines)


def _jobs() -> int:
    """Compilers at work at a time: MAX_JOBS, else one for each processor this process may use."""
    named = os.environ.get("MAX_JOBS", "").strip()
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0))


def _log(staging: Path) -> str:
    path = staging / LOG
    return path.read_text(errors="replace").strip() if path.is_file() else ""
