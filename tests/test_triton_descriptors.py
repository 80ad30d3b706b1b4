"""Descriptors that the host makes for Triton's plain kernels: what is compiled for them, and what is launched with them
by Triton's own path and by address. Compiled for sm_90 and sm_120; the C functions only record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
import triton
from test_triton_ahead_of_time import OLDEST, hold_their_registers, loop_of
from test_triton_bound import CALLS, ENCODED, SCRATCH, arguments_of, by_tensor_and_by_address, c_function
from test_triton_launcher import RECORD, compilations, hopper, operands

from hgemm.arrangement import arrange
from hgemm.backends import get
from hgemm.problem import LAYOUTS, Problem
from hgemm.reference import exact_integers
from hgemm.triton_kernels import descriptors, launcher, tensor_maps, tma
from hgemm.triton_kernels.compile_ahead import compile_ahead
from hgemm.triton_kernels.configs import DESCRIBED_BY_PROGRAMS, TMA, Family
from hgemm.triton_kernels.specialized_configs import is_specialized

__all__ = ["c_function", "compilations", "hopper"]  # fixtures
WHOLE, SPLIT = "16x64x128_s5_w16x16", "16x64x128_s5_w16x16_split4"
DIFFERENT = (WHOLE, SPLIT, "16x32x256_s5_w16x8", "128x128x64_s4_w64x32")
PLAIN = [
    (family, entry.config.name)
    for family in (TMA,)
    for entry in family.configs
    if not is_specialized(entry.config.name) and entry.config.name not in DESCRIBED_BY_PROGRAMS
]


def named(value: object) -> str:
    return value.name if isinstance(value, Family) else str(value)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        # With another Triton the four of the next test, which are different kernels.
        pytest.param(family, config, marks=[] if config in DIFFERENT else [pytest.mark.one_triton])
        for family, config in PLAIN
    ],
    ids=named,
)
def test_programs_that_make_none_need_the_same_shared_memory(family: Family, config: str) -> None:
    on_host, own = (
        compile_ahead(family, config, torch.bfloat16, 90, layout="tt", on_host=here) for here in (True, False)
    )
    assert on_host.shared_bytes == own.shared_bytes == family.shared_bytes(config, 90, "tt")
    assert (on_host.scratch_bytes, on_host.ptx.count("tensormap")) == (0, 0)
    assert own.scratch_bytes == 128 * (2 if family.find(config).config.parts > 1 else 3)
    assert "tensormap.replace" in own.ptx
    assert not on_host.spill_loads or "LDL" not in loop_of(on_host)


# Every pair of a configuration, a target and a layout; with another Triton each of them once or twice.
FORMS = [
    pytest.param(config, target, layout, marks=[] if row in (column, 3 - column) else [pytest.mark.one_triton])
    for row, config in enumerate(DIFFERENT)
    for column, layout in enumerate(LAYOUTS)
    for target in [(90, 120)[(row + column) % 2]]
]


@pytest.mark.parametrize(("config", "target", "layout"), FORMS)
def test_no_program_makes_descriptors_whatever_the_layout(config: str, target: int, layout: str) -> None:
    made = compile_ahead(TMA, config, torch.float16, target, layout=layout)
    own = compile_ahead(TMA, config, torch.float16, target, layout=layout, on_host=False)
    hold_their_registers(made, config, target, layout)
    assert (made.scratch_bytes, own.scratch_bytes > 0) == (0, True)
    assert not re.search(r"tensormap|fence\.proxy\.tensormap|\bmembar", made.ptx)
    assert made.shared_bytes == own.shared_bytes
    assert made.registers <= own.registers + (10 if OLDEST else 8)
    assert len(made.ptx) < len(own.ptx)


# Rows and columns of a matrix as it is stored, the elements from a row to the next, and of the box that one copy fills:
# 64 columns at most, of 128 bytes.
BOXES = {
    (WHOLE, "nn"): (([200, 520], 520, [16, 64]), ([520, 136], 136, [128, 64]), ([200, 136], 136, [16, 64])),
    (WHOLE, "tt"): (([520, 200], 200, [128, 16]), ([136, 520], 520, [64, 64]), ([200, 136], 136, [16, 64])),
    (SPLIT, "nt"): (([200, 520], 520, [16, 64]), ([136, 520], 520, [64, 64])),
    ("16x32x256_s5_w16x8", "nn"): (
        ([200, 520], 520, [16, 64]),
        ([520, 136], 136, [256, 32]),
        ([200, 136], 136, [16, 32]),
    ),
    ("128x256x64_s3_w64x64_persistent", "nt"): (
        ([200, 520], 520, [128, 64]),
        ([136, 520], 520, [256, 64]),
        ([200, 136], 136, [128, 64]),
    ),
}
SWIZZLES = {64: 3, 32: 2, 16: 1}  # by columns of the box: CU_TENSOR_MAP_SWIZZLE_128B, _64B, _32B


@pytest.mark.parametrize(("config", "layout"), BOXES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_by_either_path_each_matrix_is_described_as_it_is_stored(
    config: str, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tma, "_resident_programs", lambda device: 132)
    a, b, out = operands(200, 136, 520, dtype)
    a = a.t().contiguous().t() if layout[0] == "t" else a
    b = b.t().contiguous().t() if layout[1] == "t" else b
    by_tensor, by_address = by_tensor_and_by_address(tma, config, (a, b, out))
    assert by_address == by_tensor
    boxes = BOXES[config, layout]
    half = {torch.float16: 6, torch.bfloat16: 9}[dtype]  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _BFLOAT16
    expected = [
        (each.data_ptr(), SWIZZLES[box[1]], 2, half, box, shape, [stride, 1], 0)
        for each, (shape, stride, box) in zip((a, b, out), boxes, strict=False)
    ]
    described = len(boxes)
    assert ENCODED[:described] == ENCODED[-described:] == expected  # by Triton, and for the addresses
    assert len(ENCODED) == 3 * described  # and what was tried when it was bound
    # What is asked for is the workspace of a split product alone, 4 parts in fp32.
    assert [call[:2] for call in SCRATCH if call[0] == "given"] == (
        [("given", 4 * 200 * 136 * 4)] if config == SPLIT else []
    )


def test_the_kernel_is_given_what_it_was_compiled_for(compilations: list[str]) -> None:
    tensors = operands(16, 136, 520)
    launch = tma.bind(Problem.from_tensors(*tensors), WHOLE)
    assert launch is not None
    assert compilations == ["matmul_tma"]
    tma.launch(*tensors, WHOLE)
    tma.launch(*operands(1, 8, 8), WHOLE)
    assert compilations == ["matmul_tma"]  # neither the path nor the shape is another form
    (form,) = tma._launcher.forms.values()
    assert form.kernel.metadata.global_scratch_size == 0
    launches = len(RECORD.kernels)
    tma.launch(*(x.expand(2, *x.shape).contiguous() for x in tensors), WHOLE)
    assert compilations == ["matmul_tma"] * 2
    assert len(RECORD.kernels) == launches + 1
    scratch = [form.kernel.metadata.global_scratch_size for form in tma._launcher.forms.values()]
    assert scratch == [0, 3 * 128]  # a batch's programs make theirs


def test_of_a_split_product_the_workspace_is_no_descriptor() -> None:
    launch = tma.bind(Problem.from_tensors(*operands(16, 136, 520)), SPLIT)
    assert launch is not None
    for addresses, asked in (((16, 32, 48), [16, 32]), ((16, 32, 64), []), ((32, 32, 48), [32])):
        CALLS.clear()
        ENCODED.clear()
        launch(*addresses)
        assert [each[0] for each in ENCODED] == asked
        parts, addition = (list(arguments_of(call)) for call in CALLS)
        assert sum(isinstance(x, tuple) and x[0] == "tensor map" for x in parts) == 2
        assert addresses[2] not in parts
        assert addresses[2] in addition
        (workspace,) = {x for x in parts if type(x) is int and x > 2**20} & {x for x in addition if type(x) is int}
        assert parts[parts.index(workspace) + 1 :][:3] == [16, 136, 520]


@pytest.mark.parametrize("why", ["another Triton", "another closure", "another descriptor", "switched off"])
@pytest.mark.parametrize("config", [WHOLE, SPLIT])
def test_where_it_cannot_be_by_address_or_is_not_wanted_tensors_are_launched(
    why: str, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "another Triton":
        monkeypatch.setattr(launcher, "_ORDERS", {"3.5": "scratch first"})
    elif why == "another closure":
        monkeypatch.setattr(tensor_maps.inspect, "getclosurevars", lambda _: {}["launcher"])
    elif why == "another descriptor":
        monkeypatch.setattr(tensor_maps, "TensorMaps", lambda *_: {}["elem_type"])
    else:
        monkeypatch.setattr(descriptors, "MADE_ON_HOST", False)
    tensors = operands(16, 136, 520)
    launch = tma.bind(Problem.from_tensors(*tensors), config)
    assert (launch is None) == (why != "switched off")
    CALLS.clear()
    ENCODED.clear()
    tma.launch(*tensors, config)
    assert len(CALLS) == (2 if config == SPLIT else 1)
    described = 0 if why == "switched off" else 2 if config == SPLIT else 3
    assert [each[0] for each in ENCODED] == [x.data_ptr() for x in tensors[:described]]
    form = next(iter(tma._launcher.forms.values()))
    assert (form.kernel.metadata.global_scratch_size == 0) == (described > 0)


def various() -> Iterator[tuple[Any, ...]]:
    for layout in LAYOUTS:
        for M, N, K in ((3, 24, 40), (1, 8, 8)):
            a, b, expected = exact_integers(M, N, K, torch.bfloat16, "cpu", torch.Generator().manual_seed(M))
            yield layout, a, b, expected


def test_a_descriptor_says_where_each_element_lies() -> None:
    """By its shape and strides alone, from the first element on, a matrix is found again in its memory."""
    for layout, a, b, _ in various():
        placed = []
        for x, letter in zip((a, b), layout, strict=True):
            rows, columns = x.shape if letter == "n" else x.shape[::-1]
            stored = torch.zeros(rows, columns // 8 * 8 + 16, dtype=x.dtype)[:, :columns]
            placed.append((stored if letter == "n" else stored.t()).copy_(x))
        out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
        p = arrange(*(y for x in (*placed, out) for y in (x.shape, x.stride())))
        blocks = descriptors.tile_blocks({"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128}, p.a_layout, p.b_layout)
        kept = descriptors.Descriptors(descriptors.TensorDescriptor, a.dtype, p, blocks)
        made = kept.of(*placed, out)
        assert [each.base for each in kept.of(1, 2, 3)] == [1, 2, 3]  # those of another launch
        for descriptor, x, letter in zip(made, (*placed, out), (*layout, "n"), strict=True):
            found = descriptor.base.as_strided(descriptor.shape, descriptor.strides)
            assert torch.equal(found if letter == "n" else found.t(), x)


def test_the_interpreter_makes_them_in_each_program() -> None:
    if triton.__version__.startswith("3.6.") and tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip(f"{get('triton').unavailable('cpu')}")
    for config in (WHOLE, SPLIT):
        a, b, expected = exact_integers(17, 72, 520, torch.bfloat16, "cpu", torch.Generator().manual_seed(1))
        out = torch.full_like(expected, torch.nan)
        get("triton").run(a, b, out, config)
        assert torch.equal(out, expected)
    assert ENCODED == []
