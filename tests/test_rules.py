"""The rules of the house (CONTRIBUTING.md) that a search of the source text can hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "cuda_kernels"
EMULATOR = KERNELS / "emulator"
# Host code: it starts kernels, so it alone may include the CUDA runtime. Every other .cuh is a kernel header.
LAUNCHER = KERNELS / "launch.cuh"

# The only files with inline assembly.
PTX = [KERNELS / "ptx.cuh", KERNELS / "ptx_cluster.cuh"]

KERNEL_LINES = 250
PYTHON_LINES = 330
TEST_LINES = 400


def files(folder: Path, *patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.rglob(pattern) if "__pycache__" not in path.parts)


CUDA_SOURCES = files(KERNELS, "*.cuh", "*.h", "*.hpp", "*.cpp")
KERNEL_HEADERS = [path for path in files(KERNELS, "*.cuh") if path != LAUNCHER]
PYTHON_SOURCES = (
    files(KERNELS, "*.py")
    + files(ROOT / "triton_kernels", "*.py")
    + files(ROOT / "tests", "*.py")
    # The links under hgemm/ lead to the folders above.
    + [path for path in files(ROOT / "hgemm", "*.py") if not {"cuda_kernels", "triton_kernels"} & set(path.parts)]
)


def code(path: Path) -> str:
    """The text of a C++ file with its comments blanked out; line numbers stay."""
    text = path.read_text()
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def lines_matching(pattern: str, path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(pattern, line):
            yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def violations(pattern: str, paths: list[Path]) -> list[str]:
    return [line for path in paths for line in lines_matching(pattern, path, code(path))]


def test_there_is_source_to_check() -> None:
    names = {path.name for path in KERNEL_HEADERS}
    assert {"ptx.cuh", "layout.cuh", "pipeline.cuh", "mainloop.cuh", "epilogue.cuh", "raster.cuh"} <= names
    assert {"cp_async.cuh", "tma.cuh"} <= names
    assert len(PYTHON_SOURCES) > 20


def test_an_instruction_is_spelt_once() -> None:
    elsewhere = [path for path in CUDA_SOURCES if path not in PTX and EMULATOR not in path.parents]
    assert violations(r"\b(__)?asm(__)?\b\s*(volatile)?\s*\(", elsewhere) == []


def test_kernel_headers_include_only_fixed_width_integers_and_each_other() -> None:
    includes = violations(r"^\s*#\s*include\b", KERNEL_HEADERS)
    foreign = [
        line for line in includes if "<stdint.h>" not in line and not re.search(r'#\s*include\s+"[\w./]+"', line)
    ]
    assert foreign == []
    names = [match for line in includes for match in re.findall(r'"([\w./]+)"', line)]
    # A quoted name has to be a file of ours too, or torch's and CUDA's headers come in through the other spelling.
    assert [name for name in names if not (KERNELS / name).exists() and not name.startswith("emulator/")] == []


def test_no_torch_header_but_in_the_binding() -> None:
    outside = [path for path in CUDA_SOURCES if path.name != "binding.cpp"]
    assert violations(r'#\s*include\s+[<"](torch|ATen|c10)/', outside) == []


def test_kernels_are_launched_through_launch() -> None:
    assert violations(r"<<<", CUDA_SOURCES) == []


def test_shared_memory_is_one_dynamic_buffer() -> None:
    declarations = violations(r"\b__shared__\b", CUDA_SOURCES)
    assert len(declarations) == 1, declarations
    assert re.match(r"cuda_kernels/ptx\.cuh:\d+: extern __shared__ ", declarations[0])


@pytest.mark.parametrize("path", KERNEL_HEADERS, ids=lambda path: path.name)
def test_a_kernel_file_is_read_in_one_sitting(path: Path) -> None:
    if path.name == "ptx.cuh":
        pytest.skip("a list of instructions, looked up and not read through")
    assert len(path.read_text().splitlines()) <= KERNEL_LINES


@pytest.mark.parametrize("path", PYTHON_SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_python_module_is_read_in_one_sitting(path: Path) -> None:
    limit = TEST_LINES if ROOT / "tests" in path.parents else PYTHON_LINES
    assert len(path.read_text().splitlines()) <= limit


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, inside functions too, by its full name."""
    folders = path.relative_to(ROOT).parts[:-1]
    package = ".".join(("hgemm", *folders) if folders[0] in ("cuda_kernels", "triton_kernels") else folders)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("hgemm/bench", r"hgemm\.(plot|study|report)\b"),
        ("hgemm/plot", r"hgemm\.(study|report)\b"),
        ("hgemm/report", r"hgemm\.study\b"),
        ("cuda_kernels", r"hgemm\.(bench|plot|check|study)\b"),
        ("triton_kernels", r"hgemm\.(bench|plot|check|study)\b"),
    ],
)
def test_arrows_point_down(folder: str, forbidden: str) -> None:
    sources = files(ROOT / folder, "*.py")
    assert sources
    upward = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources
        for name in imported(path)
        if re.match(forbidden, name)
    ]
    assert upward == []


def test_imports_of_kernels_go_through_the_package() -> None:
    # A top-level package called triton_kernels is the Triton project's own.
    stray = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in PYTHON_SOURCES
        for name in imported(path)
        if re.match(r"(cuda_kernels|triton_kernels)\b", name)
    ]
    assert stray == []


def test_nothing_names_the_machine_it_was_written_on() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.txt"), *ROOT.glob(".ci/*"), ROOT / "Makefile"]
    results = files(ROOT / "plots", "*.json", "*.md", "*.svg")
    pattern = re.compile(rf"(?<![\w.}}])(?:/(?:work|root|tmp/bash\w*)|{re.escape(str(Path.home()))})/")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in [*documents, *results, *CUDA_SOURCES, *PYTHON_SOURCES]
        for match in [pattern.search(path.read_text())]
        if match
    ]
    assert found == []


def test_one_place_pins_versions_and_names_no_registry() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)$", constraints, flags=re.M))
    assert pins["torch"] == "2.13.0"
    assert pins["triton"] == "3.7.1"
    assert [line for line in constraints.splitlines() if line and not re.match(r"#|[\w-]+==[\w.]+$", line)] == []
    project = (ROOT / "pyproject.toml").read_text()
    for block in re.findall(r"^(?:dependencies|test|dev|toolkit) = \[(.*?)\]$", project, flags=re.M | re.S):
        for name in re.findall(r'"([\w-]+)', block):
            assert name in pins or name == "hgemm", f"{name} is a dependency without a pin in constraints.txt"
