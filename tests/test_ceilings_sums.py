"""The kernels that measure the roofs do the work they claim: the word that each thread leaves is made of all of it.

The same sources run in the emulator and, where there is one, on a GPU.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from hgemm.cuda_kernels import ceilings
from hgemm.cuda_kernels.emulator.build import build_library

ITERATIONS = 3
LANES = 32
MMA = {"mma_f16": torch.float16, "mma_bf16": torch.bfloat16, "mma_f16_f16": torch.float16}
# By name: dtype, the tile of a block, its warps along either side, and how many of a warp's rows lie together.
FRAGMENTS = {
    f"ldmatrix_{warp_tile}_{tag}": (dtype, *shape)
    for warp_tile, shape in {"64x64": (256, 128, 4, 2, 64), "96x64": (192, 256, 2, 4, 32)}.items()
    for tag, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16))
}
OPERANDS = MMA | {name: shape[0] for name, shape in FRAGMENTS.items()}


def random_words(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**32, count, dtype=np.uint32)


def small_integers(count: int) -> torch.Tensor:
    """From -2 to 2: three sums of 16 products are integers up to 192, which bf16 holds."""
    return torch.randint(-2, 3, (count,), generator=torch.Generator().manual_seed(0)).float()


def l2_sums(words: np.ndarray, blocks: int) -> np.ndarray:
    """A tile is 8 rows of one 16-byte vector a thread. Block b begins with tile b."""
    tiles = words.reshape(-1, 8, 512, 4).sum(axis=(1, 3), dtype=np.uint32)
    return np.stack([sum(tiles[(b + i) % len(tiles)] for i in range(ITERATIONS)) for b in range(blocks)])


def read_sums(words: np.ndarray, blocks: int) -> np.ndarray:
    """Tiles as those of l2. Block b of n takes tiles b, b + n, b + 2n and so on, and then begins again."""
    tiles = words.reshape(-1, 8, 512, 4).sum(axis=(1, 3), dtype=np.uint32)
    assert len(tiles) % blocks == 0
    mine = [[*range(b, len(tiles), blocks)] for b in range(blocks)]
    return np.stack([sum(tiles[own[i % len(own)]] for i in range(ITERATIONS)) for own in mine])


def shared_sums(words: np.ndarray, blocks: int) -> np.ndarray:
    """Eight rows of one vector a thread; each time a warp reads what the next one read before."""
    vectors = words.reshape(8, 256, 4).sum(axis=(0, 2), dtype=np.uint32)
    return np.tile(sum(np.roll(vectors, -LANES * i) for i in range(ITERATIONS)), (blocks, 1))


def mma_sums(elements: torch.Tensor, result: torch.dtype, blocks: int) -> np.ndarray:
    """Two elements a word; 4 fragments of A of 4 words a thread, then 8 of B of 2; lane 4g + t of 8 warps."""
    words = elements.double().reshape(-1, 8, 8, 4, 2)  # word, warp, g, t, element
    a = words[:16].reshape(4, 2, 2, 8, 8, 4, 2)  # fragment, half of k, half of the rows, warp, g, t, element
    a = a.permute(3, 0, 2, 4, 1, 5, 6).reshape(8, 4, 1, 16, 16)  # warp, fragment, -, row, k
    b = words[16:].reshape(8, 2, 8, 8, 4, 2)  # fragment, half of k, warp, g, t, element
    b = b.permute(2, 0, 1, 4, 5, 3).reshape(8, 1, 8, 16, 8)  # warp, -, fragment, k, column
    paired = b[:, :, [1, 0, 3, 2, 5, 4, 7, 6]]  # every other time
    product = ((ITERATIONS + 1) // 2 * (a @ b) + ITERATIONS // 2 * (a @ paired)).reshape(
        8, 4, 8, 2, 8, 4, 2
    )  # ..., half of the rows, g, t, element
    packed = product.to(result).view(torch.int32).numpy().view(np.uint32)[..., 0]
    return np.tile(packed.sum(axis=(1, 2, 3), dtype=np.uint32).reshape(256), (blocks, 1))


def fragment_sums(elements: torch.Tensor, name: str, blocks: int) -> np.ndarray:
    """Rows of 64 elements in chunks of 8, of which chunk c of row r lies at c ^ (r % 8): those of A, then of B. The
    second tile, which is used every other time, begins 64 rows below the first."""
    dtype, M, N, warps_m, warps_n, together = FRAGMENTS[name]
    stored = elements.double().reshape(-1, 8, 8)  # row, chunk, element
    assert len(stored) == M + N + 64
    chunks = torch.arange(8) ^ (torch.arange(len(stored)) % 8)[:, None]
    rows = stored[torch.arange(len(stored))[:, None], chunks].reshape(-1, 64)
    first, second = (rows[at : at + M] @ rows[at + M : at + M + N].T for at in (0, 64))
    product = (ITERATIONS + 1) // 2 * first + ITERATIONS // 2 * second
    packed = product.to(dtype).view(torch.int32).numpy().view(np.uint32)
    # Lane 4g + t has row g of every eight and pair t of every eight columns.
    packed = packed.reshape(-1, warps_m, together // 8, 8, warps_n, 8, 4).sum(axis=(0, 2, 5), dtype=np.uint32)
    return np.tile(packed.transpose(0, 2, 1, 3).reshape(256), (blocks, 1))


def expected(name: str, data: np.ndarray | torch.Tensor, blocks: int) -> np.ndarray:
    if name in FRAGMENTS:
        return fragment_sums(data, name, blocks)
    if isinstance(data, torch.Tensor):
        return mma_sums(data, MMA[name], blocks)
    return {"l2": l2_sums, "read": read_sums, "shared": shared_sums}[name](data, blocks)


@pytest.mark.parametrize("name", ceilings.KERNELS)
def test_in_the_emulator(name: str) -> None:
    library = ctypes.CDLL(str(build_library(f"ceiling_{name}", ceilings.source(name))))
    ceilings.declare(library)
    blocks = 5
    tiles = {"l2": 4, "read": 10}.get(name, 1)  # both come to an end of the data, and begin again
    size = tiles * library.hgemm_ceiling_tile_bytes() // 4
    if name in OPERANDS:
        data = small_integers(2 * size)
        memory = data.to(OPERANDS[name])
    else:
        data = random_words(size)
        memory = torch.from_numpy(data.view(np.int32))
    sums = torch.zeros(blocks, library.hgemm_ceiling_threads(), dtype=torch.int32)
    assert library.hgemm_ceiling_launch(memory.data_ptr(), tiles, sums.data_ptr(), ITERATIONS, blocks, None) is None
    assert np.array_equal(sums.numpy().view(np.uint32), expected(name, data, blocks))


def test_sums_in_float16_stay_finite() -> None:
    """Entries of 60 times N(0, 1), so that few iterations do for what otherwise takes thousands."""
    library = ctypes.CDLL(str(build_library("ceiling_mma_f16_f16", ceilings.source("mma_f16_f16"))))
    ceilings.declare(library)
    size = library.hgemm_ceiling_tile_bytes() // 2
    data = 60 * torch.randn(size, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    threads = library.hgemm_ceiling_threads()
    assert size == 2 * threads * ceilings.MMA_WORDS

    def sums(iterations: int) -> np.ndarray:
        found = torch.zeros(1, threads, dtype=torch.int32)
        assert library.hgemm_ceiling_launch(data.data_ptr(), 1, found.data_ptr(), iterations, 1, None) is None
        return found.numpy()

    grown = sums(7)
    ceilings.alternate_signs(data)
    once, often = sums(1), sums(7)
    assert not np.array_equal(once, grown)
    assert np.array_equal(once, often)  # back near 0 after each second time


def work_by_hand(name: str) -> int:
    """Of one block in one iteration: 8 warps of 32 products of 16 x 8 x 16, or a vector for each thread and load, or a
    tile of 64 along K."""
    if name in FRAGMENTS:
        _, M, N, *_ = FRAGMENTS[name]
        return 2 * M * N * 64
    return {"l2": 512 * 8 * 16, "read": 512 * 8 * 16, "shared": 256 * 8 * 16}.get(name, 8 * 32 * 2 * 16 * 8 * 16)


@pytest.mark.parametrize("name", ceilings.KERNELS)
def test_the_work_of_a_block_is_what_its_instructions_do(name: str) -> None:
    library = ctypes.CDLL(str(build_library(f"ceiling_{name}", ceilings.source(name))))
    ceilings.declare(library)
    assert library.hgemm_ceiling_work() == work_by_hand(name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ceilings.KERNELS)
def test_on_the_device(name: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(device)
    if name in OPERANDS:
        if name in FRAGMENTS:
            kernel = ceilings.fragment_ceiling(OPERANDS[name], device, name.split("_")[1])
        else:
            accumulator = torch.float16 if name == "mma_f16_f16" else torch.float32
            kernel = ceilings.mma_ceiling(MMA[name], device, accumulator)
        data = small_integers(kernel.data.numel())
        kernel.data.copy_(data)
    else:
        make = {"l2": ceilings.l2_ceiling, "read": ceilings.read_ceiling, "shared": ceilings.shared_ceiling}
        kernel = make[name](device)
        data = kernel.data.cpu().numpy().view(np.uint32)
    blocks, threads = kernel.sums.shape
    assert blocks % properties.multi_processor_count == 0
    # 1,024 threads with up to 128 bytes each in flight for the L2 and for memory, enough warps for the others.
    expected_threads = {"l2": 1024, "read": 1024, "shared": 512}.get(name, 256)
    assert blocks * threads // properties.multi_processor_count == expected_threads
    kernel.launch(ITERATIONS)
    torch.cuda.synchronize()
    assert np.array_equal(kernel.sums.cpu().numpy().view(np.uint32), expected(name, data, blocks))
    assert kernel.work(ITERATIONS) == work_by_hand(name) * blocks * ITERATIONS


@pytest.mark.gpu
def test_the_data_of_the_l2_kernel_fit_half_of_it_and_are_not_one_block_s() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    kernel = ceilings.l2_ceiling(device)
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    assert l2_bytes / 5 < kernel.data_bytes <= l2_bytes / 2
    assert kernel.data.unique().numel() > 0.9 * kernel.data.numel()  # real data, no pattern


@pytest.mark.parametrize(
    ("data_bytes", "tiles"),
    [(100, 5), (10 * 65536 - 1, 5), (10 * 65536, 10), (14 * 65536, 10), (1 << 30, 16380)],
)
def test_every_block_reads_as_many_tiles_of_device_memory(data_bytes: int, tiles: int) -> None:
    assert ceilings.whole_tiles("read", data_bytes, 65536, 5) == tiles
    assert ceilings.whole_tiles("l2", data_bytes, 65536, 5) == max(1, data_bytes // 65536)


@pytest.mark.gpu
def test_a_launch_of_the_reads_takes_all_of_a_buffer_of_many_times_the_l2_once() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    kernel = ceilings.read_ceiling(device)
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    assert 8 * l2_bytes < kernel.data_bytes <= 16 * l2_bytes
    iterations = kernel.data_bytes // kernel.work(1)
    assert kernel.work(iterations) == kernel.data_bytes
    kernel.launch(iterations)
    total = int(kernel.data.sum(dtype=torch.int64)) % 2**32  # every word counted once, in the words of all threads
    assert int(kernel.sums.sum(dtype=torch.int64)) % 2**32 == total


def test_an_accumulator_that_the_instruction_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float16 operands alone, found torch\.bfloat16"):
        ceilings.mma_ceiling(torch.bfloat16, torch.device("cuda"), torch.float16)
