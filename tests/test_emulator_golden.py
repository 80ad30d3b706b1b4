"""The emulated instructions against what a GPU answered, and against their definitions in the PTX ISA."""

import ctypes
import json
import warnings

import numpy as np
import pytest
import torch

from hgemm.cuda_kernels.emulator import golden


@pytest.fixture(scope="module")
def emulated():
    return golden.emulate()


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers beyond fp16 are meant
        return {case.name: case for case in golden.cases()}


@pytest.mark.skipif(not golden.FILE.exists(), reason="no answers of a GPU are recorded yet")
def test_the_emulator_answers_as_the_gpu_did(emulated):
    recorded = json.loads(golden.FILE.read_text())["answers"]
    assert len(recorded) >= len(golden.INSTRUCTIONS)
    assert golden.differences(recorded, emulated) == []


def test_a_changed_answer_is_noticed(emulated):
    wrong = dict(emulated)
    wrong["ldmatrix_x4"], wrong["pack"] = wrong["ldmatrix_x4_trans"], wrong["ldmatrix_x4"]
    wrong["mma_bf16 real"] = wrong["mma_f16 real"]
    found = golden.differences(wrong, emulated)
    assert [text.split(":")[0] for text in found] == ["ldmatrix_x4", "mma_bf16 real", "pack"]


@pytest.mark.parametrize("name", ["ldmatrix_x4", "ldmatrix_x4_trans"])
def test_ldmatrix(emulated, cases, name):
    rows = cases[name].given[:128].view(np.uint16).reshape(32, 8)
    matrices = rows[(np.arange(32) * 5 + 3) % 32].reshape(4, 8, 8)
    if name.endswith("trans"):
        matrices = matrices.transpose(0, 2, 1)
    # Lane l holds row l / 4, columns 2 (l % 4) and the next, of each matrix.
    expected = matrices.reshape(4, 32, 2).transpose(1, 0, 2)
    assert np.array_equal(cases[name].decode(emulated[name]).view(np.uint16).reshape(32, 4, 2), expected)


def exact_product(words, dtype):
    """Of the operands and the accumulator that an mma case is given, four elements a lane."""
    halves = words[:256].view(np.uint16)
    bits = halves.astype(np.uint32) << 16
    values = (halves.view(np.float16).astype(np.float64) if dtype == "f16" else bits.view(np.float32)).astype(
        np.float64
    )
    registers_a, registers_b = values[:256].reshape(32, 4, 2), values[256:].reshape(32, 4, 2)
    d = words[256:384].view(np.float32).reshape(32, 4)
    a, b, sums = np.empty((16, 16)), np.empty((16, 8)), np.empty((16, 8))
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i in range(2):
            for register, (row, k) in enumerate([(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]):
                a[row, k + i] = registers_a[lane, register, i]
            b[2 * t + i, g], b[2 * t + 8 + i, g] = registers_b[lane, 0, i], registers_b[lane, 1, i]
            sums[g, 2 * t + i], sums[g + 8, 2 * t + i] = d[lane, i], d[lane, 2 + i]
    # Rows g and g + 8, columns 2t and the next.
    return (a @ b + sums).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)


@pytest.mark.parametrize("kind", ["integers", "real"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_mma(emulated, cases, dtype, kind):
    case = cases[f"mma_{dtype} {kind}"]
    found, expected = case.decode(emulated[case.name]).view(np.float32), exact_product(case.given, dtype).ravel()
    if kind == "integers":
        assert np.array_equal(found, expected)
    else:
        assert np.allclose(found, expected, rtol=0, atol=17 * 17 * 2.0**-24)


def test_mma_with_fp16_accumulation(emulated, cases):
    case = cases["mma_f16_f16 integers"]
    found = case.decode(emulated[case.name]).view(np.float16).reshape(32, 2, 4)
    expected = exact_product(case.given, "f16")
    assert np.abs(expected).max() <= 2048  # where every integer is an fp16 number
    assert np.array_equal(found[:, 0], expected)  # the two registers, written twice
    assert np.array_equal(found[:, 1], expected)


@pytest.mark.parametrize("size", [16, 8, 4])
def test_cp_async_fills_with_zeros(emulated, cases, size):
    case = cases[f"cp_async_{size}"]
    given = case.given.view(np.uint8)
    expected = given[:512].copy()
    for lane in range(32):
        count = lane % (size + 1) // 2 * 2
        expected[lane * size : (lane + 1) * size] = 0
        expected[lane * size : lane * size + count] = given[512 + lane * size : 512 + lane * size + count]
    assert np.array_equal(case.decode(emulated[case.name]), expected)


def test_pack_rounds_to_nearest_even(emulated, cases):
    values = torch.from_numpy(cases["pack"].given.view(np.float32).reshape(32, 4).copy())
    packed = cases["pack"].decode(emulated["pack"]).view(np.int16).reshape(32, 2, 4)
    for which, dtype in enumerate((torch.float16, torch.bfloat16)):
        expected = torch.where(values.isnan(), 0x7FFF, values.to(dtype).view(torch.int16))
        assert np.array_equal(packed[:, which], expected.numpy())


TMA = [
    (span, width, place)
    for span in golden.SPANS
    for width in (golden.FULL_COLUMNS, golden.CUT_COLUMNS)
    for place in golden.PLACES
]


@pytest.mark.parametrize(("span", "width", "place"), TMA)
def test_tma(emulated, cases, span, width, place):
    columns, (column, row, batch) = span // 2 or 48, place
    chunks = columns // 8
    box_rows, box_chunks = np.indices((golden.BOX_ROWS, chunks))
    # A chunk goes to chunk ^ row % 8 for 128 bytes, ^ row / 2 % 4 for 64, ^ row / 4 % 2 for 32.
    masks = {128: box_rows % 8, 64: box_rows // 2 % 4, 32: box_rows // 4 % 2, 0: 0 * box_rows}
    swizzled = box_chunks ^ masks[span]

    def elements(words):
        return words.view(np.uint16).copy()

    case = cases[f"tma_load_3d span {span} columns {width} at {place}"]
    tensor = elements(case.given).reshape(2, golden.ROWS, golden.STRIDE)[:, :, :width]
    wide = np.zeros((6, golden.ROWS + 40, width + 160), np.uint16)  # zeros all around
    wide[2:4, 20 : 20 + golden.ROWS, 80 : 80 + width] = tensor
    box = wide[2 + batch, 20 + row : 20 + row + golden.BOX_ROWS, 80 + column : 80 + column + columns]
    expected = np.empty((golden.BOX_ROWS, chunks, 8), np.uint16)
    expected[box_rows, swizzled] = box.reshape(golden.BOX_ROWS, chunks, 8)
    assert np.array_equal(case.decode(emulated[case.name]).view(np.uint16), expected.ravel())

    if min(place) < 0:  # no place for a store
        return
    case = cases[f"tma_store_3d span {span} columns {width} at {place}"]
    box = elements(case.given).reshape(golden.BOX_ROWS, chunks, 8)[box_rows, swizzled].reshape(golden.BOX_ROWS, columns)
    expected = elements(case.output).reshape(2, golden.ROWS, golden.STRIDE)
    limit = -(-width // 8) * 8  # whole chunks
    for i in range(golden.BOX_ROWS):
        if batch < 2 and 0 <= row + i < golden.ROWS:
            first, end = column, min(limit, column + columns)
            expected[batch, row + i, first:end] = box[i, first - column : end - column]
    assert np.array_equal(case.decode(emulated[case.name]).view(np.uint16), expected.ravel())


def test_the_library_refuses_what_cuda_would():
    library = ctypes.CDLL(str(golden.build_emulated()))
    library.golden_tma.restype = ctypes.c_char_p
    memory = golden._Aligned().place(np.zeros(4096, np.uint32))
    address = memory.ctypes.data
    right = (24, 128, 160, 16, 64, 128, 0, 0, 0)

    def refusal(offset=0, **changed):
        names = ("rows", "columns", "stride", "box_rows", "box_columns", "span", "column", "row", "batch")
        values = [changed.get(name, value) for name, value in zip(names, right, strict=True)]
        pointer = ctypes.c_void_p(address)
        return library.golden_tma(0, ctypes.c_void_p(address + offset), pointer, *values)

    assert refusal() is None
    for words, change in [
        ("no multiple of 16 bytes", {"offset": 2}),
        ("no multiple of 16 below", {"stride": 132}),
        ("within 1 to 256", {"box_rows": 257}),
        ("wider than the swizzle", {"box_columns": 72}),
        ("no multiple of 16", {"box_columns": 60}),
        ("is 0, which is not within", {"rows": 0}),
    ]:
        assert words in (refusal(**change) or b"").decode(), change
