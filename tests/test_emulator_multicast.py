"""Blocks of a cluster that share tiles by TMA multicast: what the emulator lets pass, and what it reports."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from hgemm.cuda_kernels.emulator.build import build_library
from hgemm.cuda_kernels.emulator.library import EmulatedLibrary, Memory
from hgemm.cuda_kernels.emulator.report import Report

SCHEDULES = ("eager", "lazy", "eager,reversed", "lazy,reversed", "random,seed=1", "random,seed=2", "random,seed=3")
TILES, CLUSTER = 7, 2
TILE = (16, 8, 8)  # rows, chunks of 16 bytes, elements
TILE_BYTES = 2048


@pytest.fixture(scope="module")
def library():
    text = f'#line 1 "emulator_multicast.cu"\n{(Path(__file__).parent / "emulator_multicast.cu").read_text()}'
    library = EmulatedLibrary(build_library("emulator_multicast", text))
    library.functions.run_multicast.restype = ctypes.c_char_p
    return library


def run(library, kernel="halves", fault=0, schedule="lazy", **options):
    """What has been read, of halves by each block of each tile, and the report. With a capital: no clusters."""
    a = np.arange(TILES * np.prod(TILE), dtype=np.uint16)
    made = a.size * CLUSTER if kernel != "sent" else TILE_BYTES // 2
    c = np.full(made, 0xFFFF, np.uint16)
    memories = [
        Memory(name, x.ctypes.data, (1, 1, x.size), (0, 0, 1), writable=name == "c") for name, x in (("a", a), ("c", c))
    ]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, c)]
    call = lambda: library.functions.run_multicast(kernel.encode(), fault, *pointers)  # noqa: E731
    error, data = library.run(call, memories, schedule, **options)
    report = Report.from_dict(data)
    assert error is None or not report.clean, error
    return c.reshape(*(TILES, CLUSTER)[: 2 * (kernel != "sent")], *TILE), report


def expected():
    """Every block reads every tile. TMA permutes the chunks of a row by the row's index."""
    rows, chunks = np.indices(TILE[:2])
    tiles = np.arange(TILES * np.prod(TILE), dtype=np.uint16).reshape(TILES, *TILE)
    return np.repeat(tiles[:, None, rows, chunks ^ rows % 8], CLUSTER, axis=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("resident_blocks", [1, 2, 3, 4, 7, 64])
def test_halves_of_a_tile_sent_to_both_blocks_are_silent_and_right(library, schedule, resident_blocks):
    out, report = run(library, "halves", 0, schedule, resident_blocks=resident_blocks)
    assert report.clean, report
    assert np.array_equal(out, expected())
    clusters = min(TILES, max(1, resident_blocks // CLUSTER))
    assert report.blocks == CLUSTER * clusters


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_boxes_sent_to_the_other_block_alone_are_silent_and_right(library, schedule):
    out, report = run(library, "sent", 0, schedule)
    assert report.clean, report
    assert np.array_equal(out, expected()[0, 0])


@pytest.mark.parametrize("resident_blocks", [2, 6])
def test_a_multicast_reads_global_memory_once(library, resident_blocks):
    counters = run(library, resident_blocks=resident_blocks)[1].counters
    assert counters["executed"]["tma_load_3d_multicast"] == TILES * CLUSTER
    assert counters["global_bytes"]["tma_load_3d_multicast"] == TILES * TILE_BYTES


@pytest.mark.parametrize(
    ("kernel", "fault", "kind", "words"),
    [
        ("halves", 1, "race", "tma_load_3d_multicast of block 1's memory writes shared address"),
        ("halves", 2, "in-flight", "an asynchronous copy issued by another block at emulator_multicast.cu:"),
        ("halves", 2, "race", "written by a TMA load"),
        ("halves", 2, "uninitialised", "nobody has written"),
        ("halves", 3, "mbarrier", "of block 1, where no mbarrier has been initialised"),
        ("halves", 3, "mbarrier", "tma_load_3d_multicast uses the mbarrier at"),
        ("halves", 3, "mbarrier", "of block 0, initialised by warp 0, and nothing orders the initialisation before it"),
        ("halves", 4, "race", "mbarrier_arrive_cluster_after comes to shared address"),
        ("halves", 4, "race", "mbarrier_arrive_cluster_after at shared address"),
        ("halves", 5, "race", "'s memory writes shared address"),
        ("halves", 5, "race", "released too early"),
        ("halves", 6, "out-of-bounds", "into the blocks 0x7 of a cluster of 2"),
        ("halves", 7, "out-of-bounds", "into the blocks 0x0 of a cluster of 2"),
        ("halves", 7, "deadlock", "2048 bytes are missing"),
        ("halves", 8, "race", "nothing orders"),
        ("halves", 9, "deadlock", "1024 bytes are missing"),
        ("halves", 10, "in-flight", "which an asynchronous copy issued by"),
        ("halves", 11, "race", "before anything had used what the ldmatrix loads"),
        ("halves", 12, "race", "before anything had used what the ldmatrix loads"),
        ("halves", 13, "mbarrier", "more arrivals than its count of 1"),
        ("halves", 14, "proxy-fence", "no fence.proxy.async came between"),
        ("halves", 15, "mbarrier", "and no fence came behind its initialisation"),
        ("halves", 16, "race", "nothing orders"),
        ("halves", 17, "race", "nothing orders the write before the read"),
        ("halves", 18, "unfinished-copy", "ended while the TMA load was on its way"),
        ("halves", 18, "race", "tma_load_3d_multicast comes to shared address"),
        ("halves", 19, "out-of-bounds", "mapa asks for the memory of block 2 of a cluster of 2"),
        ("Halves without clusters", 0, "out-of-bounds", "into the blocks 0x3 of a cluster of 1: the launch has no"),
        (
            "sent",
            1,
            "race",
            "tma_load_3d_multicast of block 1's memory writes shared address 0x400, read before by warp 0",
        ),
        ("sent", 2, "race", "of block 1, which warp 0 reads with an ldmatrix"),
        ("sent", 3, "race", "of block 1, which has ended"),
        ("sent", 4, "out-of-bounds", "into the blocks 0x1 of a cluster of 1: the launch has no clusters"),
        ("sent", 6, "race", "and an arrival at another block's mbarrier does not show what was written"),
        ("sent", 7, "race", "which block 1 has written, and nothing orders the two"),
        (
            "sent",
            5,
            "transaction-bytes",
            "1048576 bytes have come to the mbarrier at 0x800 ahead of their announcement",
        ),
    ],
)
def test_a_broken_rule_is_reported(library, kernel, fault, kind, words):
    found = [event for s in SCHEDULES for event in run(library, kernel, fault, s)[1].events if event.kind == kind]
    assert found, f"no {kind}"
    assert any(words in str(event).replace("\n", " ") for event in found), "\n".join(map(str, found))
    assert all(event.line > 10 and event.file == "emulator_multicast.cu" for event in found)
