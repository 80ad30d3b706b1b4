"""The swizzle and the raster order that the compiled kernels use, called through the C interface of a real unit.

The libraries are built by nvcc and their exported functions run on the host, so no GPU is needed. Every unit exports
the same functions, and those of this family compile in the least time.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

import pytest

from hgemm.cuda_kernels.build import build_units
from hgemm.cuda_kernels.configs import Unit

pytestmark = pytest.mark.nvcc

BANKS, BANK_BYTES, CHUNK_BYTES = 32, 4, 16


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    (path,) = build_units([Unit("cp_async", "bf16")])
    library = ctypes.CDLL(str(path))
    library.hgemm_swizzle.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    library.hgemm_swizzle.restype = ctypes.c_uint32
    index = ctypes.POINTER(ctypes.c_int64)
    library.hgemm_raster.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, index, index]
    return library


def documented_swizzle(span: int, address: int) -> int:
    """TMA's swizzle as NVIDIA documents it, bit by bit: which address bits are replaced by their XOR with which."""
    pairs = {128: ((4, 7), (5, 8), (6, 9)), 64: ((4, 7), (5, 8)), 32: ((4, 7),), 0: ()}[span]
    result = address
    for low, high in pairs:
        bit = ((address >> low) ^ (address >> high)) & 1
        result = result & ~(1 << low) | bit << low
    return result


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_swizzle_matches_the_documented_address_bits(library: ctypes.CDLL, span: int) -> None:
    for address in range(4096):
        assert library.hgemm_swizzle(span, address) == documented_swizzle(span, address)


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_swizzle_permutes_whole_chunks_within_the_tile(library: ctypes.CDLL, span: int) -> None:
    chunks = {library.hgemm_swizzle(span, address) for address in range(0, 4096, CHUNK_BYTES)}
    assert chunks == set(range(0, 4096, CHUNK_BYTES))


def wavefronts(addresses: list[int], width: int) -> int:
    """Passes that accesses of `width` bytes need: the most distinct words that fall into one bank."""
    words: dict[int, set[int]] = {}
    for address in addresses:
        for word in range(address // BANK_BYTES, (address + width) // BANK_BYTES):
            words.setdefault(word % BANKS, set()).add(word)
    return max(len(bank) for bank in words.values())


def ldmatrix_phases(swizzle: Callable[[int], int], row_bytes: int) -> list[int]:
    """Wavefronts of each eight-row phase of ldmatrix, for every chunk of a row and every group of eight rows."""
    groups = itertools.product(range(0, row_bytes, CHUNK_BYTES), range(0, 64, 8))
    return [
        wavefronts([swizzle((first + row) * row_bytes + chunk) for row in range(8)], CHUNK_BYTES)
        for chunk, first in groups
    ]


@pytest.mark.parametrize("span", [32, 64, 128])
def test_ldmatrix_has_no_bank_conflicts(library: ctypes.CDLL, span: int) -> None:
    assert set(ldmatrix_phases(lambda offset: library.hgemm_swizzle(span, offset), span)) == {1}


@pytest.mark.parametrize(("row_bytes", "passes"), [(32, 2), (64, 4), (128, 8)])
def test_without_a_swizzle_ldmatrix_conflicts(library: ctypes.CDLL, row_bytes: int, passes: int) -> None:
    assert set(ldmatrix_phases(lambda offset: library.hgemm_swizzle(0, offset), row_bytes)) == {passes}


@pytest.mark.parametrize("row_bytes", [64, 128])
def test_staging_c_has_no_bank_conflicts(library: ctypes.CDLL, row_bytes: int) -> None:
    """The epilogues' rows of 32 or 64 columns: each lane writes two elements of a fragment, and reads one chunk."""
    chunks = row_bytes // CHUNK_BYTES
    for fragment in range(chunks):
        places = [lane // 4 * row_bytes + fragment * CHUNK_BYTES + lane % 4 * 4 for lane in range(32)]
        assert wavefronts([library.hgemm_swizzle(row_bytes, place) for place in places], 4) == 1
    for first_lane in range(0, 32, 8):  # 16-byte reads go by quarters of a warp
        lanes = range(first_lane, first_lane + 8)
        places = [lane // chunks * row_bytes + lane % chunks * CHUNK_BYTES for lane in lanes]
        assert wavefronts([library.hgemm_swizzle(row_bytes, place) for place in places], CHUNK_BYTES) == 1


def raster(library: ctypes.CDLL, index: int, tiles_m: int, tiles_n: int) -> tuple[int, int]:
    m, n = ctypes.c_int64(), ctypes.c_int64()
    library.hgemm_raster(index, tiles_m, tiles_n, ctypes.byref(m), ctypes.byref(n))
    return m.value, n.value


def test_raster_visits_every_tile_once(library: ctypes.CDLL) -> None:
    for tiles_m, tiles_n in itertools.product(range(1, 21), range(1, 13)):
        visited = {raster(library, index, tiles_m, tiles_n) for index in range(tiles_m * tiles_n)}
        assert visited == set(itertools.product(range(tiles_m), range(tiles_n)))


def test_raster_of_a_huge_grid_does_not_overflow(library: ctypes.CDLL) -> None:
    tiles_m, tiles_n = 46_000, 46_000  # 2.1e9 tiles, close to the 2^31 - 1 blocks of a grid
    assert raster(library, tiles_m * tiles_n - 1, tiles_m, tiles_n) == (tiles_m - 1, tiles_n - 1)


def test_raster_keeps_a_wave_on_a_patch(library: ctypes.CDLL) -> None:
    """132 consecutive blocks of a 64x64 grid read 8 tile rows of A and 17 tile columns of B; row order reads 3 + 64."""
    wave = [raster(library, index, 64, 64) for index in range(132)]
    assert len({m for m, _ in wave}) == 8
    assert len({n for _, n in wave}) == 17
