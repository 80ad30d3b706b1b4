"""The emulator and the kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
from pathlib import Path

import pytest

from hgemm.cuda_kernels import toolchain
from hgemm.cuda_kernels.compilation import FOLDER
from hgemm.cuda_kernels.emulator.build import FLAGS

DRIVER = Path(__file__).parent / "emulator_driver.cpp"
SANITIZE = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
LIMIT = 240  # seconds


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    product = tmp_path_factory.mktemp("driver") / "driver"
    flags = [flag for flag in FLAGS if flag not in ("-g1", "-fPIC")]
    sources = (DRIVER, FOLDER / "emulator" / "emulator.cpp")
    command = (*toolchain.find_cxx().command, *flags, *SANITIZE, f"-I{FOLDER}", *sources, "-o", product)
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if "cannot find" in compiled.stderr and "san" in compiled.stderr:
        pytest.skip("this compiler comes without the sanitizers' libraries")
    assert compiled.returncode == 0, compiled.stderr
    return product


def run(driver, *arguments):
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # a thread that is abandoned frees nothing
    return subprocess.run(
        (driver, *arguments), capture_output=True, text=True, timeout=LIMIT, env=environment, errors="replace"
    )


def test_nothing_is_found(driver):
    result = run(driver)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip() == "ok"


def test_a_read_past_the_memory_of_an_operand_is_found(driver):
    result = run(driver, "short")
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr
