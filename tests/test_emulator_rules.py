"""The rules that the emulator holds kernels to, each by a kernel that keeps it and by one that breaks it."""

import ctypes
import functools
from pathlib import Path

import numpy as np
import pytest

from hgemm.cuda_kernels.emulator.build import build_library
from hgemm.cuda_kernels.emulator.library import EmulatedLibrary, Memory, Progress
from hgemm.cuda_kernels.emulator.report import Report

SCHEDULES = ("eager", "lazy", "eager,reversed", "lazy,reversed", "random,seed=1", "random,seed=2", "random,seed=3")
SIZES = {  # elements of the input and of the output
    "exchange": (8, 512),
    "store": (8, 2 * 64 * 64),
    "ring": (24 * 64, 6 * 512),
    "freed": (16 * 64, 2 * 256),
    "pass": (256, 256),
    "Plain pass": (256, 256),
    "last": (160, 32),
    "together": (256, 256),
    "global": (512, 512),
    "dependent": (512, 512),
    "behind": (512, 512),
    "only": (8, 32),
    "Fenced": (8, 256),
    "neighbours": (8, 6 * 512),
    "meeting": (64, 64),
}
PASSES_THROUGH = ("meeting", "pass", "Plain pass", "last", "dependent", "behind")  # the input is written too


@pytest.fixture(scope="module")
def library():
    text = f'#line 1 "emulator_rules.cu"\n{(Path(__file__).parent / "emulator_rules.cu").read_text()}'
    library = EmulatedLibrary(build_library("emulator_rules", text))
    library.functions.run_rule.restype = ctypes.c_char_p
    return library


def run(library, rule, fault=0, schedule="lazy", **options):
    """The output and the report of one kernel."""
    given, made = SIZES[rule]
    a = np.arange(given, dtype=np.uint16)
    c = np.full(made, 0xFFFF, np.uint16)
    flag = np.zeros(1, np.uint32)
    memories = [
        Memory("a", a.ctypes.data, (1, 1, given), (0, 0, 1), writable=rule in PASSES_THROUGH),
        Memory("c", c.ctypes.data, (1, 1, made), (0, 0, 1), writable=True),
    ]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, c, flag)]
    error, data = library.run(
        lambda: library.functions.run_rule(rule.encode(), fault, *pointers), memories, schedule, **options
    )
    report = Report.from_dict(data)
    assert error is None or not report.clean, error
    return c, report


def words(values):
    """16-bit halves of 32-bit words."""
    return np.asarray(values, np.uint32).view(np.uint16)


EXPECTED = {
    "exchange": words(np.repeat(63 - np.arange(64), 4)),
    "store": words(np.concatenate([np.arange(2048), np.arange(2048) + 1])),
    "pass": words(np.repeat(np.arange(32), 4)),
    "last": 5 * np.arange(32) + 10,
    "together": words((np.arange(32)[:, None] + 32 * np.arange(4)).ravel()),
    "global": np.arange(512),
    "only": np.arange(32) == 0,
    "Fenced": words(np.repeat(31 - np.arange(32), 4)),
    "dependent": np.stack([np.array([1, 2, 3, lane], np.float32) for _ in range(2) for lane in range(32)]).view(
        np.uint16
    ),
}
thread = np.arange(64)
EXPECTED["meeting"] = 63 - thread + thread // 4 * 4  # its own block's first lane of four
EXPECTED["neighbours"] = np.array(
    [((block % 3 + 1) % 3, 63 - at, 1, 2) for block in range(6) for at in range(64)], np.float32
).view(np.uint16).ravel()  # fmt: skip
EXPECTED["dependent"] = EXPECTED["behind"] = EXPECTED["dependent"].ravel()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rule", EXPECTED)
def test_a_kernel_that_keeps_the_rules_is_silent_and_right(library, rule, schedule):
    out, report = run(library, rule, 0, schedule)
    assert str(report) == f"schedule {schedule}: {report.blocks} blocks, no fault found"
    expected = EXPECTED[rule]
    if rule == "store":  # TMA permutes the 16-byte chunks of a row by the row's index
        rows, chunks = np.indices((128, 8))
        expected = expected.reshape(128, 8, 8)[rows, chunks ^ rows % 8].ravel()
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_ring_with_a_producer_warp_is_silent_and_right(library, schedule):
    out, report = run(library, "ring", 0, schedule)
    assert report.clean, report
    tile = np.arange(24 * 64, dtype=np.uint16).reshape(3, 8, 8, 8)
    rows, chunks = np.indices((8, 8))
    swizzled = tile[:, rows, chunks ^ rows]
    assert np.array_equal(out, np.concatenate([swizzled, swizzled]).ravel())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_memory_freed_behind_its_ldmatrix_may_be_refilled(library, schedule):
    out, report = run(library, "freed", 0, schedule)
    assert report.clean, report
    words_of_tile = np.arange(16 * 64, dtype=np.uint16).view(np.uint32).reshape(2, 8, 8, 4)  # box, row, chunk, word
    lane = np.arange(32)
    # Lanes 8i to 8i+7 name the eight chunks of row i, permuted by it; the first word went to the neighbouring lane.
    rows = [words_of_tile[:, i, lane // 4 ^ i, (lane ^ (i == 0)) % 4] for i in range(4)]
    assert np.array_equal(out, np.ascontiguousarray(np.stack(rows, axis=-1)).view(np.uint16).ravel())


@pytest.mark.parametrize(
    ("rule", "fault", "kind", "words"),
    [
        ("exchange", 1, "uninitialised", "nobody has written"),
        ("exchange", 2, "out-of-bounds", "shared memory is 0x400 to 0x800"),
        ("exchange", 3, "misaligned", "no multiple of 16"),
        ("exchange", 4, "race", "nothing orders the write before the read"),
        ("exchange", 5, "race", "nothing orders"),
        ("exchange", 6, "race", "released too early"),
        ("store", 1, "proxy-fence", "no fence.proxy.async came between"),
        ("store", 2, "proxy-fence", "no fence.proxy.async came between"),
        ("store", 3, "proxy-fence", "by warp 2 lane 13"),
        ("store", 4, "race", "nothing orders"),
        ("store", 5, "unfinished-copy", "before its bulk stores had read"),
        ("store", 6, "race", "a bulk store may still be reading"),
        ("store", 7, "race", "released too early"),
        ("store", 8, "misaligned", "the column one of 8"),
        ("store", 9, "out-of-bounds", "left of the tensor"),
        ("Fenced", 1, "race", "nothing orders the write before the read"),
        ("ring", 1, "race", "nothing orders"),
        ("ring", 2, "race", "released too early"),
        ("ring", 4, "race", "nothing orders"),
        ("ring", 7, "deadlock", "64 of 96 threads have arrived"),
        ("freed", 1, "race", "before anything had used what the ldmatrix loads"),
        ("freed", 2, "race", "before anything had used what the ldmatrix loads"),
        ("freed", 3, "race", "before anything had used what the ldmatrix loads"),
        ("freed", 4, "divergence", "needs all 32 lanes"),
        ("pass", 1, "race", "which block 0 has written"),
        ("pass", 2, "race", "which block 0 has written"),
        ("pass", 3, "deadlock", "nobody will store to any more"),
        ("Plain pass", 0, "race", "which block 0 has written"),
        ("last", 1, "race", "and nothing orders the two"),
        ("together", 1, "race", "nothing orders"),
        ("together", 2, "divergence", "lanes"),
        ("together", 3, "divergence", "lanes"),
        ("together", 4, "divergence", "needs all 32 lanes"),
        ("together", 5, "trap", "stopped itself"),
        ("together", 6, "mbarrier", "no mbarrier has been initialised"),
        ("together", 7, "mbarrier", "a second time"),
        ("together", 8, "mbarrier", "which is an mbarrier"),
        ("together", 9, "unfinished-copy", "never waited for"),
        ("dependent", 1, "race", "of a kernel before has written, and griddepcontrol_wait has not been called"),
        ("dependent", 2, "race", "griddepcontrol_wait has not been called"),
        ("neighbours", 1, "race", "ld_shared_cluster_v4 of block"),
        ("neighbours", 2, "race", "which ends without waiting for that"),
        ("neighbours", 3, "race", "which ends without waiting for that"),
        ("neighbours", 4, "race", "may still be reading at emulator_rules.cu:"),
        ("neighbours", 5, "out-of-bounds", "block 3 of a cluster of 3"),
        ("neighbours", 6, "out-of-bounds", "shared memory is 0x400 to 0x800"),
        ("neighbours", 7, "barrier", "again without having waited"),
        ("neighbours", 8, "barrier", "without having arrived"),
        ("neighbours", 10, "race", "ld_shared_cluster_v4 of block"),
        ("neighbours", 9, "deadlock", "waits at the barrier of the cluster, where 160 of 192 threads have arrived"),
        ("meeting", 1, "race", "which block 0 has"),
        ("meeting", 2, "race", "and nothing orders the two"),
        ("meeting", 3, "race", "nothing orders the write before the read"),
        ("meeting", 4, "race", "nothing orders the write before the read"),
        ("global", 1, "race", "written, and nothing orders the two"),
        ("global", 2, "race", "written, and nothing orders the two"),
        ("global", 3, "out-of-bounds", "outside all operands (a, c)"),
        ("global", 4, "out-of-bounds", "of a, which is an input"),
        (
            "global",
            5,
            "unwritten-output",
            "16 of the 512 elements of c were never written, the first of them column 56",
        ),
        ("global", 6, "misaligned", "no multiple of 16"),
    ],
)
def test_a_broken_rule_is_reported(library, rule, fault, kind, words):
    found = [event for s in SCHEDULES for event in run(library, rule, fault, s)[1].events if event.kind == kind]
    assert found, f"no {kind}"
    assert any(words in str(event) for event in found), "\n".join(map(str, found))
    if kind != "unwritten-output":
        assert all(event.line > 10 and event.file == "emulator_rules.cu" for event in found)


@pytest.mark.parametrize("fault", [3, 5, 6])
def test_threads_that_wait_for_ever_are_a_deadlock_that_names_them(library, fault):
    reports = [run(library, "ring", fault, schedule)[1] for schedule in SCHEDULES]
    deadlocks = [event for report in reports for event in report.events if event.kind == "deadlock"]
    assert deadlocks
    for event in deadlocks:
        assert event.waiters
        assert all(waiter.line and waiter.lanes and waiter.sentence for waiter in event.waiters)
        assert str(event.waiters[0].sentence) in str(event)


def test_a_grid_is_whole_clusters_of_at_most_eight_blocks(library):
    for fault, words in ((0, b"7 blocks in clusters of 3;"), (1, b"9 blocks in clusters of 9;")):
        call = functools.partial(library.functions.run_rule, b"Not a cluster", fault, None, None, None)
        error, data = library.run(call, [])
        assert error is not None and words.decode() in error
        assert Report.from_dict(data).blocks == 0


def test_a_missing_arrival_is_counted(library):
    # The restarted phase makes the producer wait for a round that the consumers have never been given.
    events = [e for s in SCHEDULES for e in run(library, "ring", 3, s)[1].events if e.kind == "deadlock"]
    sentences = [waiter.sentence for event in events for waiter in event.waiters]
    assert any("waits for parity" in s and "of 1 arrivals" in s for s in sentences), sentences


@pytest.mark.parametrize(("rule", "fault"), [("store", 3), ("ring", 1), ("last", 1), ("exchange", 4)])
def test_equal_seeds_give_equal_reports(library, rule, fault):
    for seed in range(3):
        schedule = f"random,seed={seed}"
        (first, report), (second, again) = (run(library, rule, fault, schedule) for _ in range(2))
        assert np.array_equal(first, second)
        assert str(report) == str(again)
        assert report.counters == again.counters


def test_seeds_differ(library):
    found = {str(run(library, "ring", 1, f"random,seed={seed}")[1].as_dict()["events"]) for seed in range(8)}
    assert len(found) > 1


def test_a_launch_can_be_stopped_from_outside(library):
    _, report = run(library, "exchange", progress=Progress(cancel=1))
    assert "cancelled" in report.kinds


@pytest.mark.parametrize(
    "text", ["", "late", "lazy,backwards", "random,seed=", "random,seed=x", "lazy,seed=3", "lazy,,"]
)
def test_a_schedule_that_cannot_be_read_is_refused(library, text):
    if not text:
        assert run(library, "exchange", schedule=text)[1].schedule == "lazy"  # as with an empty HGEMM_EMULATOR
        return
    with pytest.raises(ValueError, match="schedules are eager, lazy"):
        run(library, "exchange", schedule=text)


def test_the_environment_names_a_schedule(library, monkeypatch):
    monkeypatch.setenv("HGEMM_EMULATOR", "random,seed=7")
    assert run(library, "exchange", schedule=None)[1].schedule == "random,seed=7"


def test_shared_memory_moves_with_its_base(library):
    out, report = run(library, "exchange", shared_base=0x1400)
    assert report.clean and report.shared_base == 0x1400
    assert np.array_equal(out, EXPECTED["exchange"])
    _, report = run(library, "exchange", 2, shared_base=0x1400)
    assert "0x1400 to 0x1800" in str(report)
