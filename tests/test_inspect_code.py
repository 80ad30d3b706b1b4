"""What is read out of compiled code: which kernel belongs to which configuration, and how many blocks fit."""

import re

import pytest

from hgemm.cuda_kernels import inspect_code
from hgemm.cuda_kernels.configs import FAMILIES, Unit


@pytest.mark.parametrize(
    ("mangled", "index"),
    [
        ("_ZN5hgemm8tma_gemmINS_3f16E8Config_2EEvNS_4ArgsE", "2"),
        ("_Z1kI8Config_23f16Evv", "2"),  # the 3 belongs to the next identifier
        ("_Z1kI3f169Config_17EvT_", "17"),  # the 16 belongs to the one before
        ("_Z1kI10Config_123EvT_", "123"),
    ],
)
def test_the_index_is_read_by_its_stated_length(mangled, index):
    found = inspect_code._CONFIG.search(mangled)
    assert next(digits for digits in found.groups() if digits) == index


@pytest.mark.parametrize(
    ("capability", "registers", "shared_bytes", "threads", "blocks"),
    [
        ((12, 0), 128, 49_176, 256, 2),  # 2 x (49,176 + 1,024) = 100,400 of 102,400; registers: 65,536 / 32,768 = 2
        ((12, 0), 128, 50_177, 256, 1),  # one byte too many for two
        ((12, 0), 129, 49_176, 256, 1),  # 129 x 32 rounds up to 4,352 a warp: 8 warps take 34,816
        ((9, 0), 128, 98_328, 256, 2),
        ((9, 0), 32, 0, 1024, 2),  # 2,048 threads
        ((12, 0), 16, 0, 32, 24),  # 24 slots for blocks
    ],
)
def test_resident_blocks_against_sums_by_hand(capability, registers, shared_bytes, threads, blocks):
    assert inspect_code.resident_blocks(capability, registers, shared_bytes, threads) == blocks


@pytest.mark.nvcc
def test_real_code_is_attributed_to_every_configuration():
    unit = Unit("cp_async", "f16")
    kernels = {kernel.name: kernel for kernel in FAMILIES["cp_async"].configs}
    usage, code = inspect_code.resource_usage(unit, "90a"), inspect_code.machine_code(unit, "90a")
    assert list(usage) == list(code) == list(kernels)
    for name, resources in usage.items():
        assert resources.threads == kernels[name].config.threads
        assert resources.shared_bytes == kernels[name].shared_bytes
        assert 64 <= resources.registers <= 255  # 64 accumulators a thread at a 64x32 warp tile
        functions = re.findall(r"Function : (\S+)", code[name])
        assert functions and all(f"8Config_{list(kernels).index(name)}" in function for function in functions)
        assert "HMMA.16816.F32 " in code[name]
        assert "EXIT" in code[name]
