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


def run(library, fault=0, schedule="lazy", clusters=True, **options):
    """What each block of a cluster has read of each tile, and the report."""
    a = np.arange(TILES * np.prod(TILE), dtype=np.uint16)
    c = np.full(a.size * CLUSTER, 0xFFFF, np.uint16)
    memories = [
        Memory(name, x.ctypes.data, (1, 1, x.size), (0, 0, 1), writable=name == "c") for name, x in (("a", a), ("c", c))
    ]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, c)]
    call = lambda: library.functions.run_multicast(fault, clusters, *pointers)  # noqa: E731
    error, data = library.run(call, memories, schedule, **options)
    report = Report.from_dict(data)
    assert error is None or not report.clean, error
    return c.reshape(TILES, CLUSTER, *TILE), report


def expected():
    """Every block reads every tile. TMA permutes the chunks of a row by the row's index."""
    rows, chunks = np.indices(TILE[:2])
    tiles = np.arange(TILES * np.prod(TILE), dtype=np.uint16).reshape(TILES, *TILE)
    return np.repeat(tiles[:, None, rows, chunks ^ rows % 8], CLUSTER, axis=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("resident_blocks", [1, 2, 3, 4, 7, 64])
def test_halves_of_a_tile_sent_to_both_blocks_are_silent_and_right(library, schedule, resident_blocks):
    out, report = run(library, 0, schedule, resident_blocks=resident_blocks)
    assert report.clean, report
    assert np.array_equal(out, expected())
    clusters = min(TILES, max(1, resident_blocks // CLUSTER))
    assert report.blocks == CLUSTER * clusters


@pytest.mark.parametrize("resident_blocks", [2, 6])
def test_a_multicast_reads_global_memory_once(library, resident_blocks):
    counters = run(library, resident_blocks=resident_blocks)[1].counters
    assert counters["executed"]["tma_load_3d_multicast"] == TILES * CLUSTER
    assert counters["global_bytes"]["tma_load_3d_multicast"] == TILES * TILE_BYTES


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (1, "race", "tma_load_3d_multicast of block 1's memory writes shared address"),
        (2, "in-flight", "an asynchronous copy issued by another block at emulator_multicast.cu:"),
        (2, "race", "written by a TMA load"),
        (2, "uninitialised", "nobody has written"),
        (3, "mbarrier", "of block 1, where no mbarrier has been initialised"),
        (3, "mbarrier", "tma_load_3d_multicast uses the mbarrier at"),
        (3, "mbarrier", "of block 0, initialised by warp 0, and nothing orders the initialisation before it"),
        (4, "race", "mbarrier_arrive_cluster_after comes to shared address"),
        (4, "race", "mbarrier_arrive_cluster_after at shared address"),
        (5, "race", "'s memory writes shared address"),
        (5, "race", "released too early"),
        (6, "out-of-bounds", "into the blocks 0x7 of a cluster of 2"),
        (7, "out-of-bounds", "into the blocks 0x0 of a cluster of 2"),
        (7, "deadlock", "2048 bytes are missing"),
        (8, "race", "nothing orders"),
        (9, "deadlock", "1024 bytes are missing"),
        (10, "in-flight", "which an asynchronous copy issued by"),
        (11, "race", "before anything had used what the ldmatrix loads"),
        (12, "race", "before anything had used what the ldmatrix loads"),
        (13, "mbarrier", "more arrivals than its count of 1"),
        (14, "proxy-fence", "no fence.proxy.async came between"),
        (15, "mbarrier", "and no fence came behind its initialisation"),
        (16, "race", "nothing orders"),
        (17, "race", "nothing orders the write before the read"),
        (18, "unfinished-copy", "ended while the TMA load was on its way"),
        (18, "race", "tma_load_3d_multicast comes to shared address"),
        (19, "out-of-bounds", "mapa asks for the memory of block 2 of a cluster of 2"),
    ],
)
def test_a_broken_rule_is_reported(library, fault, kind, words):
    found = [event for s in SCHEDULES for event in run(library, fault, s)[1].events if event.kind == kind]
    assert found, f"no {kind}"
    assert any(words in str(event).replace("\n", " ") for event in found), "\n".join(map(str, found))
    assert all(event.line > 10 and event.file == "emulator_multicast.cu" for event in found)


def test_a_multicast_needs_a_cluster(library):
    report = run(library, clusters=False)[1]
    assert any(
        "into the blocks 0x3 of a cluster of 1: the launch has no clusters" in str(event).replace("\n", " ")
        for event in report.events
    )
