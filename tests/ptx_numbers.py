"""Computes a product from the PTX of a specialised kernel: ``ptx_block`` with the elements that it leaves out.

TMA copies swizzled boxes, wgmma reads shared memory where its descriptors point, and what stmatrix and stores leave is
C, or the sums of a part. A product of small integers is then exact, in whatever order it is summed.
"""

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from ptx_block import LANES, PARAMETERS, A, B, Block, C, Warp, box_shapes, run_cluster

from hgemm.config import Config
from hgemm.triton_kernels.specialized_configs import specialized_options

WORKSPACE = 1 << 40  # an address
SWIZZLE_BYTES = {1: 128, 2: 64, 3: 32}  # by the number in a descriptor of wgmma
CHUNKS = {128: 7, 64: 3, 32: 1}  # the bits of a row's number that its 16-byte chunks are exchanged by


def swizzled(address: np.ndarray, width: int) -> np.ndarray:
    return address ^ ((address >> 7 & CHUNKS[width]) << 4)


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)


def from_bits(numbers: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(numbers.astype(np.uint16).view(np.int16)).view(dtype).double().numpy()


class Product:
    """Of ``a`` and ``b``, by a configuration: ``c``, NaN where nothing was stored, and the ``sums`` of parts. How
    often each of the ``pieces`` of ``c`` was stored, by its corner."""

    def __init__(self, config: str, layout: str, a: torch.Tensor, b: torch.Tensor, whole: int, parts: int) -> None:
        self.options, self.blocks = specialized_options(config), Config.parse(config).cluster
        self.dtype, self.shape = a.dtype, (a.shape[0], b.shape[1], a.shape[1])
        self.whole, self.parts = whole, parts
        self.stored = {A: bits(a if layout[0] == "n" else a.t()), B: bits(b if layout[1] == "n" else b.t())}
        self.c = torch.full(self.shape[:2], torch.nan, dtype=a.dtype)
        self.c_bits = self.c.view(torch.int16).numpy().view(np.uint16)
        self.pieces: Counter[tuple[int, int]] = Counter()
        m, n = self.options["BLOCK_M"], self.options["BLOCK_N"]
        self.tiles = -(-a.shape[0] // m) * -(-b.shape[1] // n)
        self.sums = np.full((parts, self.tiles - whole, m, n), np.nan)
        self.boxes = box_shapes(config, layout)

    def run(self, ptx: str, programs: int, seed: int) -> None:
        numbers, size = [*self.shape, self.whole, self.parts], self.blocks
        for program in range(programs):
            seeds = [8 * seed + 4 * program + rank for rank in range(size)]
            run_cluster([NumberBlock(self, ptx, numbers, program, programs, seeds[i], i, size) for i in range(size)])


class NumberBlock(Block):
    def __init__(
        self,
        product: Product,
        ptx: str,
        numbers: list[int],
        program: int,
        programs: int,
        seed: int,
        rank: int,
        size: int,
    ) -> None:
        super().__init__(ptx, numbers, product.boxes, program, programs, seed, rank, size)
        self.product, self.bytes = product, np.zeros(1 << 18, np.uint8)  # of shared memory

    def value(self, warp: Warp, text: str, kind: str) -> np.ndarray:
        if text.startswith("0f"):
            return np.full(32, int(text[2:], 16))
        return super().value(warp, text, kind)

    def floats(self, warp: Warp, text: str) -> np.ndarray:
        return self.value(warp, text, "b32").astype(np.uint32).view(np.float32)

    def receive(self, turn: int, numbers: list[int]) -> None:
        super().receive(turn, numbers)
        destination, matrix, x, y, _ = numbers
        rows, row_bytes = self.box_shapes[matrix - PARAMETERS]
        box = np.zeros((rows, row_bytes // 2), np.uint16)  # zeros outside of the matrix
        inside = self.product.stored[matrix - PARAMETERS][y : y + rows, x : x + row_bytes // 2]
        box[: inside.shape[0], : inside.shape[1]] = inside
        self.bytes[swizzled(destination + np.arange(box.nbytes), row_bytes)] = box.view(np.uint8).ravel()

    def multiply(self, warp: Warp, name: str, operands: list[str]) -> None:
        super().multiply(warp, name, operands)
        if not name.startswith("wgmma.mma_async"):
            return
        columns = int(re.findall(r"m64n(\d+)k16", name)[0])
        registers, used = operands[: columns // 2], self.value(warp, operands[columns // 2 + 2], "pred")[0]
        descriptors = [int(self.value(warp, text, "u64")[0]) for text in operands if text.startswith("%rd")]
        rows = 16 * (warp.index % 4) + np.arange(16)  # of a warp
        a, b = (
            self.operand(descriptor, elements, across_k == "1")
            for descriptor, elements, across_k in zip(
                descriptors, (rows, np.arange(columns)), operands[-2:], strict=True
            )
        )
        index = np.arange(len(registers))[:, None]
        row, column = LANES // 4 + 8 * (index // 2 % 2), 8 * (index // 4) + 2 * (LANES % 4) + index % 2
        total = (a @ b.T)[row, column]
        if used:
            total += [self.floats(warp, register) for register in registers]
        results = total.astype(np.float32).view(np.uint32).astype(np.int64)
        warp.registers |= zip(registers, results, strict=True)

    def operand(self, descriptor: int, elements: np.ndarray, across_k: bool) -> np.ndarray:
        """Rows of A or columns of B, 16 of K each. Contiguous across K it is patterns of as many elements as a swizzled
        row has, with a row for each of K; else one of 8 elements, each with a row."""
        start, apart, apart_8 = ((descriptor >> bit & 0x3FFF) * 16 for bit in (0, 16, 32))
        width, k = SWIZZLE_BYTES[descriptor >> 62], np.arange(16)
        if across_k:
            of_element = elements // (width // 2) * apart + 2 * (elements % (width // 2))
            of_k = k // 8 * apart_8 + k % 8 * width
        else:
            of_element, of_k = elements // 8 * apart_8 + elements % 8 * width, 2 * k
        at = swizzled(start + of_element[:, None] + of_k[None], width)
        return from_bits(self.bytes[at] | self.bytes[at + 1].astype(np.uint16) << 8, self.product.dtype)

    def compute(self, warp: Warp, stem: str, name: str, kind: str, operands: list[str]) -> None:
        if re.fullmatch(r"cvt\.rn\.(bf16|f16)x2\.f32", name):
            high, low = (bits(torch.from_numpy(self.floats(warp, x)).to(self.product.dtype)) for x in operands[1:])
            warp.registers[operands[0]] = high.astype(np.int64) << 16 | low
        elif re.fullmatch(r"cvt\.rn\.(bf16|f16)\.f32", name):
            rounded = torch.from_numpy(self.floats(warp, operands[1])).to(self.product.dtype)
            warp.registers[operands[0]] = bits(rounded).astype(np.int64)
        elif name == "stmatrix.sync.aligned.m8n8.x4.shared.b16":
            super().compute(warp, stem, name, kind, operands)
            rows = self.value(warp, operands[0], "u32")
            for index, text in enumerate(operands[1:]):
                at = rows[8 * index + LANES // 4] + 4 * (LANES % 4)
                for byte in range(4):
                    self.bytes[at + byte] = self.value(warp, text, "b32") >> 8 * byte & 255
        elif name == "st.global.v2.b32":
            assert operands[1:3] == ["+", "0"]
            at = (self.value(warp, operands[0], "u64") - WORKSPACE) // 4
            for index, text in enumerate(operands[3:]):
                assert np.isnan(self.product.sums.ravel()[at + index]).all()
                self.product.sums.ravel()[at + index] = self.floats(warp, text)
        elif name == "ld.param.b64":
            warp.registers[operands[0]] = np.full(32, WORKSPACE)
        elif stem in ("mul", "mad") and ".wide." in name:
            factor, other, *more = (self.value(warp, text, "b64") for text in operands[1:])
            warp.registers[operands[0]] = factor * other + sum(more)
        else:
            super().compute(warp, stem, name, kind, operands)

    def synchronise(self, warp: Warp, name: str, operands: list[str], active: np.ndarray) -> Callable[[], bool]:
        if name.startswith("cp.async.bulk.tensor.2d.global"):
            _, x, y, source = (int(self.value(warp, text, "u64")[0]) for text in operands)
            rows, row_bytes = self.box_shapes[C]
            columns = row_bytes // 2
            self.product.pieces[x, y] += 1
            at = swizzled(source + np.arange(rows * row_bytes), row_bytes)
            inside = self.product.c_bits[y : y + rows, x : x + columns]
            inside[:] = self.bytes[at].view(np.uint16).reshape(rows, columns)[: inside.shape[0], : inside.shape[1]]
        return super().synchronise(warp, name, operands, active)
