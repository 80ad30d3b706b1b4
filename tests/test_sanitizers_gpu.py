"""compute-sanitizer over the shapes of the conformance suite: no byte out of bounds, none read before it was written,
no race in shared memory, no barrier that only some threads reach."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hgemm.cuda_kernels import toolchain

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).with_name("launch_every_case.py")
OURS = "kernel_substring=hgemm"


def sanitizer() -> str:
    try:
        beside_nvcc = Path(toolchain.find_nvcc().command[0]).resolve().with_name("compute-sanitizer")
    except toolchain.BuildError as error:
        pytest.skip(str(error))
    found = str(beside_nvcc) if beside_nvcc.is_file() else shutil.which("compute-sanitizer")
    if found is None:
        pytest.skip("there is no compute-sanitizer, which comes with the CUDA toolkit")
    return found


@pytest.mark.parametrize("backend", ["cuda_cp_async", "cuda_tma"])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_nothing_is_found(tool: str, backend: str) -> None:
    # initcheck has to see the writes of torch's kernels as well.
    only_ours = [] if tool == "initcheck" else ["--kernel-name", OURS]
    command = [sanitizer(), "--tool", tool, *only_ours, "--error-exitcode", "9", sys.executable, str(SCRIPT), backend]
    answer = subprocess.run(command, cwd=SCRIPT.parents[1], capture_output=True, text=True)
    assert answer.returncode == 0, "\n".join(line for line in answer.stdout.splitlines() if "Frame" not in line)[:4000]
    launched = re.search(r"(\d+) products launched", answer.stdout)
    assert launched and int(launched[1]) > 100
