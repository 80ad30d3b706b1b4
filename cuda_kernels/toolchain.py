"""Where the tools that build the CUDA kernels are: nvcc, a C++ compiler, ninja.

Every `find_*` function returns a `Tool` or raises `BuildError` with a message that names the way out. Nothing here
compiles anything, and nothing is searched until a function is called.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

USUAL_CUDA_HOME = Path("/usr/local/cuda")
CXX_NAMES = ("g++", "c++", "clang++")
# The first nvcc with -std=c++20 and sm_90a.
MINIMUM_NVCC = (12, 0)
# nvcc of the wheels is three packages that only work together when their releases agree.
NVCC_WHEELS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")


class BuildError(RuntimeError):
    """A kernel or the binding cannot be built: a tool is missing or does not fit, or the compiler refused the source.

    `output` holds everything the compiler printed; the message holds its first error lines.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class Tool:
    """A program of the toolchain."""

    command: tuple[str, ...]  # what to run; more than one word where CXX says so ("ccache g++")
    version: str  # as the program states it: "13.0.88"
    origin: str  # where it was found: "CUDA_HOME", "PATH", "/usr/local/cuda", "PyPI wheels", "CXX", ...
    flags: tuple[str, ...] = field(default=())  # what this installation needs to find its own files

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor, *_ = [int(part) for part in self.version.split(".")] + [0]
        return major, minor

    def __str__(self) -> str:
        return f"{self.version} ({self.origin}: {shlex.join(self.command)})"


def find_nvcc() -> Tool:
    """nvcc of CUDA_HOME, else of the PATH, else of /usr/local/cuda, else of the PyPI wheels (`nvidia/cu13`).

    Older ones than MINIMUM_NVCC are passed over, unless CUDA_HOME names one. Raises BuildError if none is left, if
    CUDA_HOME names a folder without one, or if the one found cannot be used.
    """
    if sys.platform != "linux":
        raise BuildError(f"the CUDA kernels are built on Linux (or WSL2) only; this is {sys.platform}")
    too_old = ""
    for path, origin in _nvcc_candidates():
        if not path.is_file():
            continue
        version = _version((str(path),), r"release [\d.]+, V([\d.]+)")
        tool = Tool((str(path),), version, origin, _library_flags(path))
        if tool.release < MINIMUM_NVCC:
            too_old = (
                f"nvcc {version} at {path} is too old: the kernels need {MINIMUM_NVCC[0]}.{MINIMUM_NVCC[1]} or newer; "
                "pip install 'hgemm[toolkit]', or set CUDA_HOME to a newer toolkit"
            )
            if origin == "CUDA_HOME":
                raise BuildError(too_old)
            continue
        if origin == "PyPI wheels":
            _check_wheels_agree()
        return tool
    raise BuildError(
        too_old
        or f"no nvcc: looked in CUDA_HOME (not set), on the PATH, in {USUAL_CUDA_HOME} and in the PyPI wheels; "
        "pip install 'hgemm[toolkit]', or set CUDA_HOME to the folder of a CUDA toolkit"
    )


def find_cxx() -> Tool:
    """The C++ compiler: CXX if it is set, else the first of g++, c++ and clang++ on the PATH; or BuildError."""
    named = os.environ.get("CXX", "").strip()
    if named:
        command = tuple(shlex.split(named))
        if shutil.which(command[0]) is None:
            raise BuildError(f"CXX={named!r} names no program: correct or unset it")
        return Tool(command, _version(command, r"(\d+(?:\.\d+)+)"), "CXX")
    for name in CXX_NAMES:
        found = shutil.which(name)
        if found:
            return Tool((found,), _version((found,), r"(\d+(?:\.\d+)+)"), "PATH")
    raise BuildError(
        f"no C++ compiler: looked for {', '.join(CXX_NAMES)} on the PATH; install g++ (apt-get install g++), or set CXX"
    )


def find_ninja() -> Tool:
    """ninja of the `ninja` package, else of the PATH; or BuildError."""
    for path, origin in _ninja_candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return Tool((str(path),), _version((str(path),), r"(\d+(?:\.\d+)+)"), origin)
    raise BuildError("no ninja: it is not installed as a Python package nor on the PATH; pip install ninja")


def describe() -> dict[str, Tool | str]:
    """Each tool by name, or the reason why there is none: what `python -m hgemm.env` prints."""
    tools: dict[str, Tool | str] = {}
    for name, find in (("nvcc", find_nvcc), ("C++ compiler", find_cxx), ("ninja", find_ninja)):
        try:
            tools[name] = find()
        except BuildError as error:
            tools[name] = str(error)
    return tools


def wheel_folders() -> list[Path]:
    """Toolkit folders that PyPI wheels install, newest first: site-packages/nvidia/cu13, ..."""
    spec = importlib.util.find_spec("nvidia")
    locations = spec.submodule_search_locations if spec else None
    folders = [folder for location in locations or () for folder in Path(location).glob("cu[0-9]*")]
    return sorted(folders, key=lambda folder: folder.name, reverse=True)


def _nvcc_candidates() -> Iterator[tuple[Path, str]]:
    cuda_home = os.environ.get("CUDA_HOME", "").strip()
    if cuda_home:
        path = Path(cuda_home) / "bin" / "nvcc"
        if not path.is_file():
            raise BuildError(
                f"CUDA_HOME={cuda_home} has no bin/nvcc: set it to the folder of a CUDA toolkit, or unset it"
            )
        yield path, "CUDA_HOME"
    on_path = shutil.which("nvcc")
    if on_path:
        yield Path(on_path), "PATH"
    yield USUAL_CUDA_HOME / "bin" / "nvcc", str(USUAL_CUDA_HOME)
    for folder in wheel_folders():
        yield folder / "bin" / "nvcc", "PyPI wheels"


def _library_flags(nvcc: Path) -> tuple[str, ...]:
    """The wheels put their libraries in lib, where nvcc's own profile looks in lib64."""
    home = nvcc.resolve().parent.parent
    if (home / "lib" / "libcudart_static.a").is_file() and not (home / "lib64").exists():
        return (f"-L{home / 'lib'}",)
    return ()


def _check_wheels_agree() -> None:
    """An nvcc wheel asks for 'any' nvvm and crt; another release of them makes PTX that its ptxas cannot read."""
    releases = {}
    for package in NVCC_WHEELS:
        try:
            releases[package] = importlib.metadata.version(package).split(".")[:2]
        except importlib.metadata.PackageNotFoundError:
            raise BuildError(
                f"nvcc of the PyPI wheels lacks the package {package}: pip install 'hgemm[toolkit]'"
            ) from None
    wanted = ".".join(releases[NVCC_WHEELS[0]])
    if len({tuple(release) for release in releases.values()}) > 1:
        found = ", ".join(f"{package} {'.'.join(release)}" for package, release in releases.items())
        pins = " ".join(f"'{package}=={wanted}.*'" for package in NVCC_WHEELS[1:])
        raise BuildError(f"the nvcc wheels are of different releases ({found}): pip install {pins}")


def _ninja_candidates() -> Iterator[tuple[Path, str]]:
    if importlib.util.find_spec("ninja"):
        import ninja

        yield Path(ninja.BIN_DIR) / "ninja", "Python package"
    on_path = shutil.which("ninja") or shutil.which("ninja-build")
    if on_path:
        yield Path(on_path), "PATH"


def _version(command: tuple[str, ...], pattern: str) -> str:
    """The version that `command --version` states; asked once for each state of the program file."""
    program = Path(shutil.which(command[0]) or command[0])
    return _ask_version(command, pattern, program.stat().st_mtime_ns)


@functools.cache
def _ask_version(command: tuple[str, ...], pattern: str, modified: int) -> str:
    shown = shlex.join((*command, "--version"))
    try:
        answer = subprocess.run((*command, "--version"), capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{shown} does not run: {error}") from error
    version = re.search(pattern, answer.stdout)
    if answer.returncode != 0 or version is None:
        raise BuildError(f"{shown} does not state a version: {(answer.stderr or answer.stdout).strip()[:200]!r}")
    return version.group(1)
