"""Nsight Compute: where ``ncu`` is, how it is run on one call, and what its CSV says.

Nothing changes a clock (``--clock-control none``), so that a counter in percent of a peak rate holds at whatever clock
the device chose. Counters that do not fit into one pass are read by running the kernel again, its memory restored in
between (``--replay-mode kernel``), each time with caches flushed (``--cache-control all``): bytes are those of a call
that finds nothing in the L2.

HGEMM_VERBOSE=1 shows the command and all that ncu prints.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import hgemm
from hgemm.cuda_kernels.compilation import verbose
from hgemm.profile.launch import Answer, Launch

LIMIT_SECONDS = 300.0
"""For one contestant: a Python with torch, the kernel's compilation, some dozens of passes."""

PERMISSION = (
    "the driver lets only administrators read counters (ERR_NVGPUCTRPERM): run as root, in a container also with "
    "--cap-add=SYS_ADMIN, or have an administrator set the option NVreg_RestrictProfilingToAdminUsers=0 of the module "
    "nvidia; see https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
LIBRARY = (
    "ncu cannot initialise the profiler: the container or virtual machine offers no access to the driver's profiling "
    "interface; run on the host, or give the container the driver capability 'all' (NVIDIA_DRIVER_CAPABILITIES=all)"
)
MISSING = (
    "no ncu: looked on the PATH, in CUDA_HOME/bin, /usr/local/cuda/bin and /opt/nvidia/nsight-compute; it comes with "
    "the CUDA toolkit (package cuda-nsight-compute) or from https://developer.nvidia.com/nsight-compute"
)

BEFORE_METRICS = frozenset(
    {
        *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
        *("Block Size", "Grid Size", "Device", "CC", "Section Name"),
    }
)
"""Columns of the raw page that are no metrics."""


Cause = Literal["contestant", "refused", "wrong", "machine"]
"""What stands in the way: the contestant's call, its rules, its wrong product, or this machine, for all alike."""


class NoCounters(Exception):
    """Counters could not be read; the message says why."""

    def __init__(self, reason: str, cause: Cause = "contestant") -> None:
        super().__init__(reason)
        self.cause = cause


@dataclass(frozen=True)
class Value:
    """A number as ncu states it; ``unit`` is its own word: "byte", "ns", "%", or nothing for a count."""

    number: float
    unit: str


@dataclass(frozen=True)
class KernelCounters:
    """One kernel that the call launched. A metric that the device lacks is missing."""

    name: str
    values: Mapping[str, Value]


def find() -> Path:
    """ncu of the PATH, else of CUDA_HOME, else of the usual places, of those the newest. Raises NoCounters."""
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise NoCounters(MISSING, "machine")


@functools.cache
def version(ncu: Path) -> str:
    """As it states it: "2025.3.1.0"; empty if it does not."""
    try:
        answer = subprocess.run((ncu, "--version"), capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"Version (\d[\d.]*\d)", answer.stdout)
    return found[1] if found else ""


def command(ncu: Path, metrics: Sequence[str], spec: Path, answer: Path) -> list[str]:
    """The command line that profiles one call and prints its metrics; the files are those of ``launch``."""
    return [
        *(str(ncu), "--profile-from-start", "off", "--target-processes", "all"),
        *("--clock-control", "none", "--cache-control", "all", "--replay-mode", "kernel"),
        *("--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics)),
        *(sys.executable, "-m", "hgemm.profile.launch", str(spec), str(answer)),
    ]


def collect(ncu: Path, metrics: Sequence[str], launch: Launch, limit: float = LIMIT_SECONDS) -> list[KernelCounters]:
    """The counters of every kernel that one call launches, in the order of launching.

    Metrics that this ncu does not know by name are left out. Raises NoCounters with the reason if there are none.
    """
    with tempfile.TemporaryDirectory(prefix="hgemm-profile-") as folder:
        spec, path = Path(folder) / "launch.json", Path(folder) / "answer.json"
        spec.write_text(launch.dumps())
        output = _run(command(ncu, metrics, spec, path), limit)
        unknown = _unknown_metrics(output)
        known = [name for name in metrics if not any(f"{name}.".startswith(f"{other}.") for other in unknown)]
        if len(known) < len(metrics) and not parse(output):
            output = _run(command(ncu, known, spec, path), limit)
        answer = Answer.read(path)
    kernels = parse(output)
    if answer and answer.status == "wrong":
        raise NoCounters(f"the product is wrong and was not profiled: {answer.reason}", "wrong")
    if answer and answer.status == "refused":
        raise NoCounters(f"it does not take this product: {answer.reason}", "refused")
    if answer and answer.status == "failed":
        hindrance = _explained(output)
        raise (
            hindrance if hindrance and hindrance.cause == "machine" else NoCounters(f"the call failed: {answer.reason}")
        )
    if not any(kernel.values for kernel in kernels):
        raise _explained(output) or NoCounters(f"ncu printed no counters: {_last_words(output)}")
    return kernels


def parse(output: str) -> list[KernelCounters]:
    """Reads the raw page in CSV: a line of names, one of units, one for each kernel; ncu's own lines, which begin with
    ``==``, may stand anywhere between. An empty list if there is no table."""
    lines = [line for line in output.splitlines() if not line.startswith("==")]
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"') and '"Kernel Name"' in line), None)
    if start is None:
        return []
    names, *rows = csv.reader(lines[start:])
    rows = [row for row in rows if len(row) == len(names)]
    if not rows:
        return []
    units, kernels = rows[0], rows[1:]
    name_column = names.index("Kernel Name")
    return [
        KernelCounters(
            row[name_column],
            {
                name: Value(number, unit)
                for name, unit, text in zip(names, units, row, strict=True)
                if name not in BEFORE_METRICS and (number := _number(text)) is not None
            },
        )
        for row in kernels
    ]


def _number(text: str) -> float | None:
    """1,234.5 with separators of thousands; None for "n/a", "(!) n/a", "nan", nothing, and words."""
    if not re.fullmatch(r"-?\d[\d,]*(\.\d+)?([eE][+-]?\d+)?", text.strip()):
        return None
    return float(text.replace(",", ""))


def _run(arguments: Sequence[str], limit: float) -> str:
    package = str(Path(hgemm.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "LC_ALL": "C.UTF-8"}
    try:
        # A session of its own, so that what ncu has started ends with it.
        process = subprocess.Popen(
            arguments,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise NoCounters(f"ncu does not run: {error}", "machine") from None
    with process:
        try:
            output = "\n".join(process.communicate(timeout=limit))
        except BaseException as error:
            # Not after an orderly end: then the number may be another's already.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise NoCounters(f"ncu did not end within {limit:g} s") from None
            raise
    if verbose():
        print(shlex.join(arguments), output, sep="\n", file=sys.stderr)
    return output


def _explained(output: str) -> NoCounters | None:
    """What stands in the way on this machine, and how to allow it, if ncu's own lines tell."""
    errors = [line for line in output.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    text = "\n".join(errors)
    if "NVGPUCTRPERM" in text or "ermission" in text:
        return NoCounters(PERMISSION, "machine")
    if "LibraryNotLoaded" in text or "initialize the profiler" in text:
        return NoCounters(LIBRARY, "machine")
    if serious := [line.removeprefix("==ERROR==").strip() for line in errors if line.startswith("==ERROR==")]:
        return NoCounters(f"ncu says: {'; '.join(dict.fromkeys(serious))}")
    return None


def _unknown_metrics(output: str) -> list[str]:
    """Metrics that ncu reports not to find; it may quote them as a regular expression."""
    found = re.findall(r"Failed to find metrics?:? (?:regex:\^)?(\S+)", output)
    return [re.sub(r"\\|\(.*|\$$|[,'\"]", "", name).rstrip(".") for name in found]


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it printed nothing"


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("ncu"):
        yield Path(on_path)
    if home := os.environ.get("CUDA_HOME", "").strip():
        yield Path(home) / "bin" / "ncu"
    yield Path("/usr/local/cuda/bin/ncu")
    releases = Path("/opt/nvidia/nsight-compute").glob("*/ncu")
    yield from sorted(releases, key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))], reverse=True)
