"""Plants faults in the kernels and demands that the emulator finds each of them.

    python -m hgemm.cuda_kernels.emulator.mutants [--json] [--until-caught] [NAME ...]

Exit status 0 if every one is caught by the check that should catch it, 1 if one survives, 2 if one does not apply.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hgemm.cuda_kernels import toolchain
from hgemm.cuda_kernels.binding import HgemmProblem
from hgemm.cuda_kernels.compilation import FOLDER, error_lines
from hgemm.cuda_kernels.configs import FAMILIES, Unit
from hgemm.cuda_kernels.emulator import (
    mutants_cp_async,
    mutants_multicast,
    mutants_multicast_rotating,
    mutants_parts,
    mutants_producer,
    mutants_producer_tail,
    mutants_rolling,
    mutants_shared,
    mutants_split,
    mutants_store,
    mutants_tail,
    mutants_tma,
    mutants_tma_rotating,
)
from hgemm.cuda_kernels.emulator.build import FLAGS, LIBRARY_FLAGS, core_object
from hgemm.cuda_kernels.emulator.library import EmulatedLibrary, Memory, Progress, in_thread
from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

MUTANTS = (
    *mutants_cp_async.MUTANTS,
    *mutants_tma.MUTANTS,
    *mutants_tma_rotating.MUTANTS,
    *mutants_rolling.MUTANTS,
    *mutants_producer.MUTANTS,
    *mutants_producer_tail.MUTANTS,
    *mutants_multicast.MUTANTS,
    *mutants_multicast_rotating.MUTANTS,
    *mutants_split.MUTANTS,
    *mutants_parts.MUTANTS,
    *mutants_tail.MUTANTS,
    *mutants_store.MUTANTS,
    *mutants_shared.MUTANTS,
)
SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1", "random,seed=2")
SECONDS = 30  # for one run; a right one takes a few hundredths


class DoesNotApply(ValueError):
    """A mutant's text is not found exactly once, or what it makes does not compile."""


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant: under each schedule the kinds of fault that were found."""

    name: str
    what: str
    file: str
    expected: tuple[str, ...]
    found: dict[str, tuple[str, ...]]
    places: tuple[str, ...]  # lines that the reports name

    @property
    def caught(self) -> bool:
        return any(set(kinds) & set(self.expected) for kinds in self.found.values())


def run(mutant: Mutant, core: Path, until_caught: bool = False) -> Outcome:
    """Compiles the mutant and runs it under every schedule, or until one finds it. Raises DoesNotApply."""
    with tempfile.TemporaryDirectory(prefix="hgemm-mutant-") as folder:
        library = EmulatedLibrary(compile_mutant(mutant, core, Path(folder)))
        found, places = {}, set()
        for schedule in SCHEDULES:
            kinds, lines = multiply(library, mutant, schedule)
            found[schedule] = kinds
            places |= lines
            if until_caught and set(kinds) & set(mutant.caught_by):
                break
        library.close()
    return Outcome(mutant.name, mutant.what, mutant.file, mutant.caught_by, found, tuple(sorted(places)))


def compile_mutant(mutant: Mutant, core: Path, folder: Path) -> Path:
    """Path of the mutant's configuration, compiled from kernels of which one file is changed."""
    text = (FOLDER / mutant.file).read_text()
    if (count := text.count(mutant.original)) != 1:
        raise DoesNotApply(
            f"{mutant.name}: {mutant.original!r} is in {mutant.file} {count} times, and must be there once"
        )
    for path in FOLDER.iterdir():
        if path.suffix in (".cuh", ".h") or path.name == "emulator":
            (folder / path.name).symlink_to(path)
    (folder / mutant.file).unlink()
    (folder / mutant.file).write_text(text.replace(mutant.original, mutant.changed))
    source, product = folder / "unit.cpp", folder / "unit.so"
    unit = Unit(mutant.family, "f16").source()
    source.write_text(only_config(unit, FAMILIES[mutant.family].index(mutant.config)))
    # Compiling is most of the time: each is run a few times at most.
    flags = [flag for flag in FLAGS if flag != "-g1"]
    compiler = (*toolchain.find_cxx().command, *flags, "-O0", *LIBRARY_FLAGS, f"-I{folder}")
    command = [*compiler, str(source), str(core), "-o", str(product)]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if compiled.returncode:
        raise DoesNotApply(f"{mutant.name} does not compile:\n{error_lines(compiled.stderr)}")
    return product


def only_config(unit: str, index: int) -> str:
    """The text of a unit with one kernel; the others would only take time to compile."""
    using = re.search(r"^using ThisUnit = hgemm::Unit<(.*)>;$", unit, flags=re.MULTILINE)
    if using is None:
        raise DoesNotApply(
            "the text of a unit does not name its kernels in a line 'using ThisUnit = hgemm::Unit<...>;'"
        )
    kernel = re.split(r"(?<=>), ", using[1])[index]
    others = rf"^struct Config_(?!{index}\b)\d+ [^}}]*}};\nstatic_assert[^\n]*\n"
    return re.sub(others, "", unit, flags=re.MULTILINE).replace(using[0], f"using ThisUnit = hgemm::Unit<{kernel}>;")


def multiply(library: EmulatedLibrary, mutant: Mutant, schedule: str) -> tuple[tuple[str, ...], set[str]]:
    """The kinds of fault found in a product of small integers, `VALUES` among them if it is wrong, and their lines."""
    M, N, K = mutant.shape
    random = np.random.default_rng(7)
    a = aligned(random.integers(-4, 5, (mutant.batch, M, K)).astype(np.float16))
    b_row = (N + 7) // 8 * 8
    b = aligned(random.integers(-4, 5, (mutant.batch, K, b_row)).astype(np.float16))[..., :N]
    expected = np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
    if mutant.part_starts:
        # 1 + 2^24 is rounded to 2^24, so that only the sum in this order, or with the first two exchanged, is the last.
        a[...], b[...] = 0, 1
        for start, value in zip(mutant.part_starts, (1, 4096, -4096, 3), strict=False):
            a[..., 64 * start] = value
            b[:, 64 * start] = 4096 if abs(value) == 4096 else 1
        expected[...] = 3 if len(mutant.part_starts) == 4 else 0
    row = (N + 15) // 8 * 8 if mutant.aligned_rows else N
    c = aligned(np.full((mutant.batch, M, row), np.nan, np.float16))[..., :N]
    problem = HgemmProblem(a.ctypes.data, b.ctypes.data, c.ctypes.data, M, N, K, mutant.batch)
    problem.a_row_stride, problem.b_row_stride, problem.c_row_stride = K, b_row, row
    problem.a_column_stride = problem.b_column_stride = problem.c_column_stride = 1
    problem.a_batch_stride, problem.b_batch_stride, problem.c_batch_stride = M * K, K * b_row, M * row
    memories = []
    for name, matrix in (("a", a), ("b", b), ("c", c)):
        (batch, rows, columns), strides = matrix.shape, [stride // 2 for stride in matrix.strides]
        sizes, steps = (batch, rows, columns), (strides[0], strides[1], strides[2])
        memories.append(Memory(name, matrix.ctypes.data, sizes, steps, writable=name == "c"))
    progress = Progress()
    deadline = time.monotonic() + SECONDS
    answers, blocks = [], mutant.resident_blocks

    def work() -> None:
        call = lambda: library.launch(problem, 0)  # noqa: E731
        answers.append(library.run(call, memories, schedule, threads=1, progress=progress, resident_blocks=blocks))

    def watch() -> None:
        if time.monotonic() > deadline:
            progress.cancel = 1

    in_thread(work, watch, progress)
    error, report = answers[0]
    kinds = [event["kind"] for event in report["events"]]
    if error and not kinds:
        kinds = ["refused"]
    if not np.array_equal(c, expected):
        kinds.append(VALUES)
    places = {f"{Path(event['file']).name}:{event['line']}" for event in report["events"] if event["line"]}
    return tuple(dict.fromkeys(kinds)), places


def aligned(values: np.ndarray) -> np.ndarray:
    """The same values in memory of 64-byte alignment."""
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def run_all(mutants: Sequence[Mutant], report: Callable[[Outcome], None], until_caught: bool = False) -> list[Outcome]:
    """Runs mutants on all processors, calling `report` for each as it is done. Raises DoesNotApply, BuildError."""
    core = core_object()
    outcomes: dict[str, Outcome] = {}
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        running = [workers.submit(run, mutant, core, until_caught) for mutant in mutants]
        try:
            for done in concurrent.futures.as_completed(running):
                outcome = done.result()
                outcomes[outcome.name] = outcome
                report(outcome)
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise
    return [outcomes[mutant.name] for mutant in mutants]


def line(outcome: Outcome) -> str:
    """One mutant in a few words: what it does, and under which schedules what was found."""
    by: dict[tuple[str, ...], list[str]] = {}
    for schedule, kinds in outcome.found.items():
        by.setdefault(kinds, []).append(schedule)
    found = "; ".join(f"{' + '.join(kinds) or 'nothing'} under {', '.join(names)}" for kinds, names in by.items())
    return f"{'caught  ' if outcome.caught else 'SURVIVED'} {outcome.name}: {outcome.what} -> {found}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hgemm.cuda_kernels.emulator.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; all if left out")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--until-caught", action="store_true", help="no further schedule for what one has caught")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(mutant.name for mutant in MUTANTS)}")
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]

    def report(outcome: Outcome) -> None:
        if not options.json:
            print(line(outcome), flush=True)
        elif sys.stderr.isatty():
            print(f"{outcome.name}: {'caught' if outcome.caught else 'SURVIVED'}", file=sys.stderr, flush=True)

    try:
        outcomes = run_all(chosen, report, options.until_caught)
    except (DoesNotApply, toolchain.BuildError) as error:
        print(error, file=sys.stderr)
        return 2
    survivors = [outcome.name for outcome in outcomes if not outcome.caught]
    if options.json:
        print(json.dumps([{**asdict(outcome), "caught": outcome.caught} for outcome in outcomes], indent=2))
    else:
        print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
