"""What nvcc makes of the kernels that measure the roofs: nothing in their loops but what they are to measure."""

from __future__ import annotations

import functools
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from hgemm.cuda_kernels import architectures, build
from hgemm.cuda_kernels.ceilings import KERNELS, source
from hgemm.cuda_kernels.inspect_code import find_cuobjdump, resident_blocks

pytestmark = pytest.mark.nvcc

ARCHITECTURES = ("90a", "120f")
MMA = {"mma_f16": "HMMA.16816.F32", "mma_bf16": "HMMA.16816.F32.BF16", "mma_f16_f16": "HMMA.16816.F16"}
# A warp tile, in 16 by 8 products: fragments of 16 rows of A and of 16 columns of B, of which an ldmatrix loads one.
FRAGMENTS = {"64x64": (4, 4), "96x64": (6, 4)}
# What the compiler puts between the products for sm_120 adds 0 to 0 and keeps nothing.
NOTHING = ("NOP", "UIADD3 URZ, UPT, UPT, URZ, URZ, URZ")


@functools.cache
def cubin(name: str, arch: str) -> Path:
    compilation = build._nvcc(f"ceiling_{name}_{arch}", source(name), (arch,), ("-cubin",), "code.cubin")
    return build._build([compilation], None)[0]


def cuobjdump(option: str, path: Path) -> str:
    return subprocess.run([find_cuobjdump(), option, path], capture_output=True, text=True, check=True).stdout


@functools.cache
def main_loop(name: str, arch: str) -> tuple[str, ...]:
    """The instructions of the loop with the most of them, without what never executes."""
    code = cuobjdump("-sass", cubin(name, arch))
    instructions = [
        (int(address, 16), re.sub(r"^@!?U?P\w+ ", "", text))
        for address, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+([^;]+?)\s*;", code)
    ]
    loops = []
    for end, text in instructions:
        target = re.search(r"\bBRA.* 0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < end:
            start = int(target[1], 16)
            loops.append([text for address, text in instructions if start <= address <= end])
    return tuple(text for text in max(loops, key=len) if text not in NOTHING)


def operations(name: str, arch: str) -> Counter[str]:
    return Counter(text.split()[0] for text in main_loop(name, arch))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", MMA)
def test_the_tensor_core_loop_holds_mma_alone(name: str, arch: str) -> None:
    """32 a warp, four times; beside them the loop's own count and branch."""
    found = operations(name, arch)
    assert found[MMA[name]] == 4 * 32
    assert found.total() - 4 * 32 <= 4


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", MMA)
def test_no_mma_waits_for_the_accumulator_of_the_one_before(name: str, arch: str) -> None:
    targets = [re.findall(r"\bR(\d+)", text)[0] for text in main_loop(name, arch) if text.startswith("HMMA")]
    for start in range(0, 128, 32):
        assert len(set(targets[start : start + 32])) == 32


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("warp_tile", FRAGMENTS)
def test_the_loop_over_tiles_loads_each_fragment_once_and_multiplies(warp_tile: str, dtype: str, arch: str) -> None:
    """Four steps of K a tile, as in a product; beside them addresses, the loop's count and its branch. Ahead of the
    loop stand the loads of one step, or as many as the rolling form holds at a time, and no product."""
    name = f"ldmatrix_{warp_tile}_{dtype}"
    (rows, columns), found = FRAGMENTS[warp_tile], operations(name, arch)
    loads, products = 4 * (rows + columns), 4 * rows * 2 * columns
    assert (found["LDSM.16.M88.4"], found[MMA[f"mma_{dtype}"]]) == (loads, products)
    assert not {kind for kind in found if kind.startswith(("LD", "ST", "BAR", "SYNCS")) and kind != "LDSM.16.M88.4"}
    assert found.total() - loads - products <= 28
    first = (rows if warp_tile == "64x64" else 1) + columns
    code = cuobjdump("-sass", cubin(name, arch))
    assert (code.count("LDSM"), code.count("HMMA")) == (first + loads, products)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "load"), [("l2", "LDG.E.128.STRONG.GPU"), ("read", "LDG.E.128.STRONG.GPU"), ("shared", "LDS.128")]
)
def test_a_memory_loop_holds_16_byte_loads_and_their_sum(name: str, load: str, arch: str) -> None:
    """Eight a thread, twice. STRONG.GPU is what .cg becomes: L2 answers, as the point of coherence, and not L1."""
    found = operations(name, arch)
    assert found[load] == 2 * 8
    assert {kind for kind in found if kind.startswith(("LD", "ST", "ATOM", "RED")) and "LDC" not in kind} == {load}
    # Two additions of two words for each load, and little for addresses: far less than the loads take.
    assert found.total() <= 2 * 8 * 4


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", ["l2", "read"])
def test_the_loads_of_l2_and_of_memory_are_in_flight_together(name: str, arch: str) -> None:
    """64 KB a multiprocessor at the least: 1,024 threads with four loads each before the first is waited for."""
    kinds = [text.split()[0] for text in main_loop(name, arch)]
    loads = [number for number, kind in enumerate(kinds) if kind == "LDG.E.128.STRONG.GPU"]
    destinations = [re.findall(r"\bR(\d+)", main_loop(name, arch)[number])[0] for number in loads]
    first_use = next(
        number
        for number, text in enumerate(main_loop(name, arch))
        if number > loads[0] and text.startswith("IADD3") and re.search(rf"\bR{destinations[0]}\b", text)
    )
    assert sum(number < first_use for number in loads) >= 4


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "threads", "blocks", "shared_bytes"), [("l2", 512, 2, 0), ("read", 512, 2, 0), ("shared", 256, 2, 32768)]
)
def test_two_blocks_fit_a_multiprocessor(name: str, threads: int, blocks: int, shared_bytes: int, arch: str) -> None:
    usage = cuobjdump("-res-usage", cubin(name, arch))
    registers = int(re.search(r"REG:(\d+)", usage)[1])
    capability = architectures.capability_of(arch)
    assert resident_blocks(capability, registers, shared_bytes, threads) >= blocks


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_spills(name: str, arch: str) -> None:
    usage = cuobjdump("-res-usage", cubin(name, arch))
    assert re.findall(r"(?:STACK|LOCAL):(\d+)", usage) == ["0", "0"]
