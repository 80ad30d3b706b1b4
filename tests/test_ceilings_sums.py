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


def random_words(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**32, count, dtype=np.uint32)


def small_integers(count: int) -> torch.Tensor:
    """From -2 to 2: three sums of 16 products are integers up to 192, which bf16 holds."""
    return torch.randint(-2, 3, (count,), generator=torch.Generator().manual_seed(0)).float()


def l2_sums(words: np.ndarray, blocks: int) -> np.ndarray:
    """A tile is 8 rows of one 16-byte vector a thread. Block b begins with tile b."""
    tiles = words.reshape(-1, 8, 512, 4).sum(axis=(1, 3), dtype=np.uint32)
    return np.stack([sum(tiles[(b + i) % len(tiles)] for i in range(ITERATIONS)) for b in range(blocks)])


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


def expected(name: str, data: np.ndarray | torch.Tensor, blocks: int) -> np.ndarray:
    if isinstance(data, torch.Tensor):
        return mma_sums(data, MMA[name], blocks)
    return l2_sums(data, blocks) if name == "l2" else shared_sums(data, blocks)


@pytest.mark.parametrize("name", ceilings.KERNELS)
def test_in_the_emulator(name: str) -> None:
    library = ctypes.CDLL(str(build_library(f"ceiling_{name}", ceilings.source(name))))
    ceilings.declare(library)
    blocks, tiles = 5, 4 if name == "l2" else 1
    size = tiles * library.hgemm_ceiling_tile_bytes() // 4
    if name in MMA:
        data = small_integers(2 * size)
        memory = data.to(MMA[name])
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
    """Of one block in one iteration: 8 warps of 32 products of 16 x 8 x 16, or a vector for each thread and load."""
    return {"l2": 512 * 8 * 16, "shared": 256 * 8 * 16}.get(name, 8 * 32 * 2 * 16 * 8 * 16)


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
    if name in MMA:
        accumulator = torch.float16 if name == "mma_f16_f16" else torch.float32
        kernel = ceilings.mma_ceiling(MMA[name], device, accumulator)
        data = small_integers(kernel.data.numel())
        kernel.data.copy_(data)
    else:
        kernel = ceilings.l2_ceiling(device) if name == "l2" else ceilings.shared_ceiling(device)
        data = kernel.data.cpu().numpy().view(np.uint32)
    blocks, threads = kernel.sums.shape
    assert blocks % properties.multi_processor_count == 0
    # 1,024 threads with up to 128 bytes each in flight for the L2, enough warps for the others.
    assert blocks * threads // properties.multi_processor_count == {"l2": 1024, "shared": 512}.get(name, 256)
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


def test_an_accumulator_that_the_instruction_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float16 operands alone, found torch\.bfloat16"):
        ceilings.mma_ceiling(torch.bfloat16, torch.device("cuda"), torch.float16)
