"""The main loop that is found in machine code, and the instructions counted in it."""

import re

import pytest
import torch

from hgemm.cuda_kernels.configs import FAMILIES, Unit
from hgemm.cuda_kernels.inspect_code import variants
from hgemm.profile.instructions import main_loop, ptx_mix
from hgemm.triton_kernels.compile_ahead import compile_ahead
from hgemm.triton_kernels.configs import TMA


def listing(*instructions: str) -> str:
    """Machine code as cuobjdump prints it, 16 bytes an instruction."""
    lines = ['\t.headerflags\t@"EF_CUDA_SM90"']
    for number, text in enumerate(instructions):
        lines.append(f"        /*{16 * number:04x}*/                   {text} ;      /* 0x00000a00ff017b82 */")
        lines.append(" " * 97 + "/* 0x000fe20000000800 */")
    return "\n".join(lines)


# The waiting loop of the main loop stands behind the last EXIT, as compilers put it, and jumps back into the middle.
WAITING_OUT_OF_LINE = listing(
    "LDSM.16.M88.4 R4, [R2]",  # 00
    "HMMA.16816.F32.BF16 R8, R4, R6, R8",  # 10: peeled
    "LDSM.16.M88.4 R4, [R2+0x100]",  # 20: the head
    "HMMA.16816.F32.BF16 R8, R4, R6, R8",  # 30
    "@!P1 BRA 0x60",  # 40: only some threads issue the copy
    "UTMALDG.3D [UR4], [UR6], desc[UR8]",  # 50
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R5",  # 60
    "@!P0 BRA 0xb0",  # 70: not yet
    "HMMA.16816.F32.BF16 R8, R4, R6, R8",  # 80
    "@P2 BRA 0x20",  # 90
    "EXIT",  # a0
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R5",  # b0: waits
    "@!P0 BRA 0xb0",  # c0
    "BRA 0x80",  # d0
    "BRA 0xe0",  # e0: what every listing ends with
)

NESTED = listing(
    "MOV R1, R2",  # 00: the head of the loop over tiles
    "HMMA.16816.F32 R8, R4, R6, R8",  # 10: one for a start
    "LDGSTS.E.BYPASS.128 [R3], [R4.64]",  # 20: the head of the loop over K
    "HMMA.16816.F32 R8, R4, R6, R8",  # 30
    "HMMA.16816.F32 R8, R4, R6, R8",  # 40
    "BAR.SYNC.DEFER_BLOCKING 0x0",  # 50
    "BRA P0, 0x20",  # 60: a condition as an operand
    "STS.128 [R3], R4",  # 70
    "@P1 BRA 0x0",  # 80
    "EXIT",  # 90
)


def test_a_wait_behind_the_exit_neither_makes_a_loop_nor_adds_to_one() -> None:
    loop = main_loop(WAITING_OUT_OF_LINE)
    assert loop is not None
    assert loop.counts == {"HMMA": 2, "LDSM": 1, "UTMALDG": 1, "SYNCS": 1}
    assert loop.total == 9  # 20 to 90, and the jump back at d0, but not the two that wait
    assert loop.products_per_ldmatrix == 2.0


def test_the_innermost_loop_is_counted_and_not_the_one_over_tiles() -> None:
    loop = main_loop(NESTED)
    assert loop is not None
    assert loop.counts == {"HMMA": 2, "LDGSTS": 1, "BAR": 1}
    assert loop.total == 5
    assert loop.products == 2
    assert loop.products_per_ldmatrix is None


def test_of_two_loops_the_one_with_more_products_is_the_main_one() -> None:
    loop = main_loop(
        listing("HMMA.1", "@P0 BRA 0x0", "HMMA.1", "HMMA.1", "HMMA.1", "@P0 BRA 0x20", "HMMA.1", "@P0 BRA 0x60", "EXIT")
    )
    assert loop is not None
    assert loop.counts == {"HMMA": 3}


def test_a_divergent_branch_inside_the_loop_comes_back_by_its_barrier() -> None:
    code = listing(
        "HGMMA.64x256x16.F32 R24, gdesc[UR8], R24",  # 00
        "BSSY B0, 0x60",  # 10
        "@P0 BRA 0x40",  # 20
        "BSYNC B0",  # 30: leads to 60
        "LDL R3, [R1]",  # 40
        "BSYNC B0",  # 50
        "@P1 BRA 0x0",  # 60
        "EXIT",  # 70
    )
    loop = main_loop(code)
    assert loop is not None
    assert loop.counts == {"HGMMA": 1, "LDL": 1}
    assert loop.total == 7


@pytest.mark.parametrize("code", ["", listing("HMMA.16816.F32 R8, R4, R6, R8", "EXIT"), listing("NOP", "BRA 0x0")])
def test_no_loop_with_products_is_no_main_loop(code: str) -> None:
    assert main_loop(code) is None


def test_a_jump_backwards_is_no_loop_if_its_target_can_be_reached_without_it() -> None:
    """Straight code that waits once, the waiting loop behind the EXIT."""
    code = listing(
        "HMMA.16816.F32 R8, R4, R6, R8",  # 00
        "@!P0 BRA 0x40",  # 10: not yet
        "HMMA.16816.F32 R8, R4, R6, R8",  # 20
        "EXIT",  # 30
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R5",  # 40
        "@!P0 BRA 0x40",  # 50
        "BRA 0x20",  # 60
    )
    assert main_loop(code) is None


def test_ptx_is_counted_by_kind_and_comments_are_not() -> None:
    ptx = """
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r2, %r3}], [%r1];
    cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
    wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, %p1, 1, 1, 0, 1;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %f1 }, { %r1 }, { %r2 }, { %f1 };
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5]; // not mma.sync, not wgmma.mma_async
    mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;
    bar.sync 0;
    barrier.sync 1;
    setmaxnreg.dec.sync.aligned.u32 40;
    """
    expected = ("TMA load", "TMA store", "cp.async", "wgmma", "mma.sync", "ldmatrix", "mbarrier", "setmaxnreg")
    assert ptx_mix(ptx) == {**dict.fromkeys(expected, 1), "bar.sync": 2}


@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "dtype"), [("90a", "f16"), ("120f", "bf16")])  # as in test_machine_code
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_pass_through_a_cuda_kernel_is_one_step_of_k(family: str, arch: str, dtype: str) -> None:
    """Products and ldmatrix follow from the tile: one mma is 16 x 8 x 16, one ldmatrix.x4 16 x 16 elements."""
    for name, functions in variants(Unit(family, dtype), arch).items():
        kernel = next(kernel for kernel in FAMILIES[family].configs if kernel.name == name)
        if not kernel.geforce and arch == "120f":
            continue  # it has no room there, see test_machine_code
        config = kernel.config
        steps = config.tile_k // 16
        fragments = steps * (config.warp_m // 16 + config.warp_n // 16)
        for function in functions:
            loop = main_loop(function.sass)
            assert loop is not None, name
            assert loop.counts["HMMA"] == steps * (config.warp_m // 16) * (config.warp_n // 8), name
            assert loop.counts["LDSM"] == fragments, name
            assert loop.counts.get("BAR", 0) == (0 if {"rotate", "producer"} & set(config.flags) else 1), (
                name
            )  # stages freed by mbarriers
            assert "LDL" not in loop.counts and "STL" not in loop.counts, name
            if "producer" in config.flags:
                assert "UTMALDG" not in loop.counts, name  # in a loop of its own
            elif family == "tma":
                # Row-major A has a box for each 64 of K, of 32 too; B one for each 64 columns.
                boxes = -(-config.tile_k // 64) + config.tile_n // 64
                assert loop.counts["UTMALDG"] == boxes, name
        # Cut to 16 bytes a thread, A and B take this many copies; half as wide, twice as many.
        copies = 2 * config.tile_k * (config.tile_m + config.tile_n) // (16 * config.threads)
        if family == "cp_async":
            assert [f.copy_bytes for f in functions] == [16, 8, 4, 2], name
            found = [main_loop(function.sass) for function in functions]
            assert [loop.counts.get("LDGSTS", 0) for loop in found if loop] == [copies, 2 * copies, 4 * copies, 0], name


def test_a_pass_through_a_triton_kernel_is_one_step_of_k() -> None:
    # wgmma is 64 x N x 16 for four warps: for 128 x 128 over eight warps 4 steps of 16, and N the whole 128.
    hopper = main_loop(compile_ahead(TMA, "128x128x64_s3_w64x32", torch.bfloat16, 90).sass)
    assert hopper is not None
    assert (hopper.counts["HGMMA"], hopper.counts["UTMALDG"], "LDSM" in hopper.counts) == (4, 2, False)
    made = compile_ahead(TMA, "128x128x64_s3_w64x32", torch.bfloat16, 120)
    geforce = main_loop(made.sass)
    assert geforce is not None
    assert (geforce.counts["HMMA"], geforce.counts["LDSM"], geforce.counts["UTMALDG"]) == (64, 24, 2)
    assert ptx_mix(made.ptx)["mma.sync"] == len(re.findall(r"\bHMMA\b", made.sass)) == 64
    assert made.threads == 256
