"""Every Triton configuration, compiled with no GPU: memory, registers and instructions are what the table says."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import triton

from hgemm.config import warp_tile
from hgemm.cuda_kernels.inspect_code import block_limits
from hgemm.devices import LIMITS
from hgemm.profile.instructions import main_loop
from hgemm.triton_kernels.compile_ahead import Compiled, compile_ahead, disassemble
from hgemm.triton_kernels.configs import DESCRIBED_BY_PROGRAMS, FAMILIES, GLUON, MMA_SYNC, POINTER, SKINNY, TMA, Family
from hgemm.triton_kernels.specialized_configs import is_specialized

BF16, FP16 = torch.bfloat16, torch.float16
MMA_TYPE = {BF16: "bf16", FP16: "f16"}
# Those of specialized.py, which is for sm_90 alone, have tests of their own.
CONFIGS = [
    (family, entry.config.name)
    for family in FAMILIES
    for entry in family.configs
    if not is_specialized(entry.config.name)
]
STUDIED = (90, 120)


def of_each(configs: list[tuple[Family, str]]) -> list[Any]:
    """Cases (family, configuration, target, type): bf16 for every target that is meant, and fp16, which differs in the
    name of the product, for one of them in turn. What another Triton makes is compiled in bf16 for the other one."""
    cases = []
    for number, (family, config) in enumerate(configs):
        targets = [target for target in STUDIED if target in family.find(config).targets]
        in_both = targets[number % len(targets)]
        cases += [pytest.param(family, config, in_both, FP16, marks=pytest.mark.one_triton)]
        for target in targets:
            again = target == in_both and len(targets) > 1
            cases.append(pytest.param(family, config, target, BF16, marks=[pytest.mark.one_triton] if again else []))
    return cases


CASES = of_each(CONFIGS)
FOR_ANY_TRITON = [case.values for case in CASES if not case.marks]

# Registers that are put aside before the loop and read back behind it: two of one configuration for sm_90, and those of
# Triton 3.6, whose ptxas is an older one.
PUT_ASIDE = {"16x128x128_s3_w16x32": 2}
if OLDEST := triton.__version__.startswith("3.6."):
    PUT_ASIDE = {
        "128x128x32_s4_w64x32": 3,
        "16x128x128_s3_w16x32": 2,
        "16x32x256_s5_w16x8": 2,
        "16x64x128_s5_w16x16_split4": 4,
        "32x64x128_s5_w32x16_split4": 3,
    }
# Those of which Triton 3.6 reads registers back in each step of the loop, where the host makes its descriptors.
SPILLS_IN_3_6 = {("16x32x256_s5_w16x8", 120, "tt"), ("16x64x128_s5_w16x16", 120, "tt")}

compiled_ones: dict[tuple[Family, str, torch.dtype, int, bool], Compiled] = {}


@pytest.fixture(autouse=True, scope="module")
def kept_for_this_file(own_cache: None) -> Iterator[None]:
    yield
    compiled_ones.clear()


def compiled(family: Family, config: str, dtype: torch.dtype, target: int, aligned: bool = True) -> Compiled:
    key = family, config, dtype, target, aligned
    if key not in compiled_ones:
        compiled_ones[key] = compile_ahead(*key)
    return compiled_ones[key]


def limit(target: int) -> int:
    return LIMITS[divmod(target, 10)].shared_bytes_per_block


def by_wgmma(family: Family, config: str, target: int) -> bool:
    """wgmma multiplies 64 rows at least."""
    return target == 90 and family not in (MMA_SYNC, GLUON) and family.find(config).config.tile_m >= 64


def is_split(family: Family, config: str) -> bool:
    return family.find(config).config.parts > 1


# ptxas puts one instruction for another, and to disassemble takes longer than to compile: the machine code is looked at
# once for each kernel, target and instruction of the product.
DISASSEMBLED = {
    (family, target, is_split(family, config), by_wgmma(family, config, target)): config
    for family, config, target, dtype in reversed([*FOR_ANY_TRITON, *(case.values for case in CASES)])
    if dtype == BF16
}


def is_disassembled(family: Family, config: str, target: int, dtype: torch.dtype) -> bool:
    kind = family, target, is_split(family, config), by_wgmma(family, config, target)
    return dtype == BF16 and DISASSEMBLED[kind] == config


def named(value: object) -> str:
    return value.name if isinstance(value, Family) else str(value).removeprefix("torch.")


def loop_of(made: Compiled) -> dict[str, int]:
    """How often each instruction that ``main_loop`` counts stands in the loop over K. Triton 3.6 disassembles code for
    sm_120 with notes on its schedule."""
    loop = main_loop(re.sub(r"\s[?&][^\s;]+", "", made.sass))
    assert loop is not None
    assert loop.products > 0
    return dict(loop.counts)


def hold_their_registers(made: Compiled, config: str, target: int, layout: str) -> None:
    """The steps of the loop over K: none reads back what did not fit."""
    spills = made.spill_loads > 0 and "LDL" in loop_of(made)
    assert not spills or (OLDEST and (config, target, layout) in SPILLS_IN_3_6)


def test_what_any_triton_compiles_is_every_configuration_and_each_kernel_for_each_target() -> None:
    every = [case.values for case in CASES]
    assert {case[:3] for case in every if case[3] == BF16} == {
        (family, config, target)
        for family, config in CONFIGS
        for target in STUDIED
        if target in family.find(config).targets
    }
    assert {case[:2] for case in every if case[3] == FP16} == {case[:2] for case in FOR_ANY_TRITON} == set(CONFIGS)

    def kinds(cases: list[Any]) -> set[tuple[Any, ...]]:
        return {
            (family, target, is_split(family, config), by_wgmma(family, config, target))
            for family, config, target, dtype in cases
            if dtype == BF16
        }

    assert kinds(FOR_ANY_TRITON) == kinds(every)


@pytest.mark.parametrize(("family", "config", "target", "dtype"), CASES, ids=named)
def test_a_configuration_fits_where_it_is_meant_to_run(
    family: Family, config: str, target: int, dtype: torch.dtype
) -> None:
    entry = family.find(config)
    made = compiled(family, config, dtype, target)
    room = block_limits(divmod(target, 10), made.registers, made.shared_bytes, made.threads)
    blocks = min(room.values())
    print(  # pytest -rP shows it
        f"{family.name} {config} on sm_{target}: {made.shared_bytes:,} bytes of shared memory a block, "
        f"{made.registers} registers a thread, {blocks} blocks a multiprocessor"
    )
    assert made.spill_loads <= PUT_ASIDE.get(config, 0)
    hold_their_registers(made, config, target, "nn")
    assert made.shared_bytes <= entry.shared_bytes[target] <= limit(target)
    assert made.threads == entry.config.threads
    assert blocks >= 1, room


@pytest.mark.parametrize(
    ("family", "config"),
    [
        # With another Triton of each family one: what is no more than stated is seen above.
        pytest.param(*pair, marks=[] if pair[1] == pair[0].configs[0].config.name else [pytest.mark.one_triton])
        for pair in CONFIGS
    ],
    ids=named,
)
def test_the_table_states_the_shared_memory_that_the_compiler_reports(family: Family, config: str) -> None:
    variants = (True, False) if family is POINTER else (True,)
    entry = family.find(config)
    found = {
        target: max(compiled(family, config, BF16, target, aligned).shared_bytes for aligned in variants)
        for target in entry.shared_bytes
    }
    assert found == dict(entry.shared_bytes)
    assert set(entry.targets) <= set(found)
    assert (set(found) == {90}) if family is MMA_SYNC else ({90, 120} <= set(found))


@pytest.mark.parametrize(
    ("family", "config", "target", "dtype"), [case for case in CASES if case.values[0] is not POINTER], ids=named
)
def test_descriptors_become_tma_and_products_the_tensor_cores_instruction(
    family: Family, config: str, target: int, dtype: torch.dtype
) -> None:
    made = compiled(family, config, dtype, target)
    on_host = family is TMA and config not in DESCRIBED_BY_PROGRAMS
    assert ("tensormap.replace" in made.ptx) == (not on_host)
    assert (made.scratch_bytes == 0) == on_host
    assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared::\w+\.global", made.ptx)
    # The parts of a split product go to the workspace 16 bytes a thread.
    split = is_split(family, config)
    assert split == (set(re.findall(r"st\.global\.(\S+)", made.ptx)) == {"v4.b32"})
    assert split != ("cp.async.bulk.tensor.2d.global.shared::cta" in made.ptx)
    assert not re.search(r"\bcp\.async\.c[ag]\.", made.ptx)
    assert not re.search(r"\bst\.global\b[^\n]*\.b16", made.ptx)
    holds_the_right_product(made, dtype, by_wgmma(family, config, target))
    if is_disassembled(family, config, target, dtype):
        assert "UTMALDG" in made.sass
        assert split != ("UTMASTG" in made.sass)
        machine_code_does(made, by_wgmma(family, config, target))


@pytest.mark.parametrize(
    ("family", "config", "target", "dtype"), [case for case in CASES if case.values[0] is POINTER], ids=named
)
def test_pointer_loads_become_16_byte_cp_async(family: Family, config: str, target: int, dtype: torch.dtype) -> None:
    made = compiled(POINTER, config, dtype, target)
    copies = re.findall(r"cp\.async\.(c[ag])\.shared\.global\s*\[[^]]*\]\s*,\s*\[[^]]*\]\s*,\s*(\w+)", made.ptx)
    assert copies
    assert {(kind, int(size, 0)) for kind, size in copies} == {("cg", 16)}
    assert "cp.async.bulk" not in made.ptx
    holds_the_right_product(made, dtype, by_wgmma(POINTER, config, target))
    if is_disassembled(POINTER, config, target, dtype):
        assert "LDGSTS" in made.sass
        machine_code_does(made, by_wgmma(POINTER, config, target))


def holds_the_right_product(made: Compiled, dtype: torch.dtype, wgmma: bool) -> None:
    """fp32 accumulation, all of it by one instruction."""
    kind = MMA_TYPE[dtype]
    by_wgmma = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.(\S+)", made.ptx)
    mma = re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.(\S+)", made.ptx)
    assert set(by_wgmma) == ({f"f32.{kind}.{kind}"} if wgmma else set())
    assert set(mma) == (set() if wgmma else {f"f32.{kind}.{kind}.f32"})
    assert ("wgmma" in made.ptx) == wgmma


def machine_code_does(made: Compiled, wgmma: bool) -> None:
    assert ("HGMMA" in made.sass) == wgmma
    assert bool(re.search(r"\bHMMA", made.sass)) != wgmma
    assert wgmma or "LDSM" in made.sass  # ldmatrix
    assert made.spill_loads == made.sass.count("LDL")  # nothing is read from a stack that is none


@pytest.mark.parametrize("fails", [False, True])
def test_compiling_for_mma_sync_leaves_the_environment_as_found(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Triton says that a target is unknown only when it comes to compile for it.
    target = 1 if fails else 90
    for before in (None, "0"):
        if before is not None:
            monkeypatch.setenv("DISABLE_MMA_V3", before)
        with pytest.raises(Exception) if fails else nullcontext():
            holds_the_right_product(compile_ahead(MMA_SYNC, "128x128x32_s4_w64x32", BF16, target), BF16, wgmma=False)
        assert os.environ.get("DISABLE_MMA_V3") == before
        # The same configuration, in the same cache.
        holds_the_right_product(compile_ahead(TMA, "128x128x32_s4_w64x32", BF16, 90), BF16, wgmma=True)


def test_the_ring_of_mma_sync_on_sm_90_is_that_of_its_twin() -> None:
    # S - 1 buffers in Triton's S stages: 3 x 32 KiB and 3 x 16 KiB, as of cuda_tma, and 16 bytes a barrier at most.
    for name, buffers in (("128x128x64_s4_w64x32", 98_304), ("128x128x32_s4_w64x32", 49_152)):
        assert 0 <= compiled(MMA_SYNC, name, BF16, 90).shared_bytes - buffers <= 48
        assert compiled(TMA, name, BF16, 120).shared_bytes == compiled(MMA_SYNC, name, BF16, 90).shared_bytes
    made, limits = compiled(MMA_SYNC, "128x128x32_s4_w64x32", BF16, 90), LIMITS[9, 0]
    assert 2 * (made.shared_bytes + 1024) <= limits.shared_bytes_per_multiprocessor
    assert 2 * 256 * (-(-made.registers // 8) * 8) <= limits.registers_per_multiprocessor


@pytest.mark.parametrize("config", [entry.config.name for entry in MMA_SYNC.configs if not entry.config.flags])
def test_a_step_of_mma_sync_has_several_barriers_for_the_same_products_and_loads(config: str) -> None:
    """Why it is behind cuda_tma, which has one in each step (test_profile_instructions)."""
    loop, tile = loop_of(compiled(MMA_SYNC, config, BF16, 90)), MMA_SYNC.find(config).config
    k_steps = tile.tile_k // 16
    assert loop["HMMA"] == k_steps * (tile.warp_m // 16) * (tile.warp_n // 8)  # m16n8k16
    assert loop["LDSM"] == k_steps * (tile.warp_m // 16 + tile.warp_n // 16)  # four 8x8 matrices each
    assert loop["UTMALDG"] == 2
    assert loop["BAR"] == 3 if triton.__version__.startswith("3.7.") else loop["BAR"] > 1


# With another Triton the one that the table is held to.
ONE, *MORE = (entry.config.name for entry in POINTER.configs)


@pytest.mark.parametrize("config", [ONE, *(pytest.param(config, marks=pytest.mark.one_triton) for config in MORE)])
def test_what_is_not_aligned_is_loaded_without_cp_async_and_without_spills(config: str) -> None:
    for target in STUDIED:
        made = compiled(POINTER, config, BF16, target, aligned=False)
        assert "cp.async" not in made.ptx
        assert made.spill_loads == 0


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_are_buffers_in_flight(stages: int) -> None:
    made = compiled(POINTER, f"128x128x32_s{stages}_w64x32", BF16, 90)
    tile_bytes = (128 * 32 + 32 * 128) * 2
    assert made.shared_bytes == stages * tile_bytes
    # On sm_120 the step being multiplied is in registers.
    assert compiled(POINTER, f"128x128x32_s{stages}_w64x32", BF16, 120).shared_bytes == (stages - 1) * tile_bytes


@pytest.mark.one_triton
@pytest.mark.parametrize(("family", "config"), CONFIGS, ids=named)
def test_the_warp_tile_of_a_name_follows_from_its_warps(family: Family, config: str) -> None:
    parsed = family.find(config).config
    assert (parsed.warp_m, parsed.warp_n) == warp_tile(parsed.tile_m, parsed.tile_n, parsed.warps)
    assert parsed.warps in (4, 8)


def test_two_blocks_share_a_multiprocessor_of_sm_120() -> None:
    made = compiled(TMA, "128x128x32_s4_w64x32", BF16, 120)
    limits = LIMITS[12, 0]
    assert 2 * (made.shared_bytes + 1024) <= limits.shared_bytes_per_multiprocessor
    assert 2 * 256 * (-(-made.registers // 8) * 8) <= limits.registers_per_multiprocessor


# Bytes under way that a multiprocessor needs for its share of the memory's rate: H200 4.8 TB/s over 132, RTX 5090 1.79
# over 170, each for 0.8 us.
NEEDED_IN_FLIGHT = {90: 29_091, 120: 8_424}


@pytest.mark.parametrize(
    ("config", "target"),
    [
        pytest.param(config, target, marks=case.marks)
        for case in CASES
        for family, config, target, dtype in [case.values]
        if dtype == BF16 and any(entry is family.find(config) for entry in SKINNY)
    ],
)
def test_few_rows_keep_enough_bytes_of_b_in_flight(config: str, target: int) -> None:
    entry, limits = TMA.find(config), LIMITS[divmod(target, 10)]
    made = compiled(TMA, config, BF16, target)
    a_buffer, b_buffer = (2 * rows * entry.config.tile_k for rows in (entry.config.tile_m, entry.config.tile_n))
    buffers = made.shared_bytes // (a_buffer + b_buffer)
    assert buffers == entry.config.stages - 1
    # One of a block's buffers is being read; one block alone has to do, where there are no more tiles.
    assert (buffers - 1) * b_buffer >= NEEDED_IN_FLIGHT[target]
    blocks = limits.shared_bytes_per_multiprocessor // (made.shared_bytes + 1024)
    assert blocks >= (2 if target == 90 and 120 in entry.targets else 1)
    assert blocks * made.threads * (-(-made.registers // 8) * 8) <= limits.registers_per_multiprocessor


@pytest.mark.parametrize("wide", [("M",), ("N",), ("K",), ("stride_a", "stride_b", "stride_c")], ids=str)
def test_pointers_compile_for_extents_and_strides_beyond_32_bits(wide: tuple[str, ...]) -> None:
    made = compile_ahead(POINTER, "128x128x32_s2_w64x32", BF16, 90, wide=wide)
    assert made.spill_loads == 0
    assert "cp.async.cg" in made.ptx


def test_spills_are_seen_where_there_are_some() -> None:
    # 128 x 256 fp32 sums over 4 warps are 256 registers a thread, and a thread has 255.
    made = compile_ahead(TMA, "128x256x32_s2_w64x128", BF16, 120)
    assert made.spill_loads > 10
    assert made.stack_bytes > 0


def test_a_failing_disassembler_is_not_taken_for_a_kernel_without_spills() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="cuobjdump"):
        disassemble(b"not a cubin")
