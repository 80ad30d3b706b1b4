"""The run loop on a machine whose clock only contestants move: who is timed when, how long, and what comes of it."""

import statistics
from collections import Counter

import pytest
from bench_machine import BASE_SECONDS, READING, FakeCeiling, FakeMachine, backend, product, runs, verify

from hgemm.backends import Backend
from hgemm.bench.measure import Bench
from hgemm.bench.metrics import CEILING, COPY, find_row, relative, speed, tflops
from hgemm.bench.outcome import Outcome
from hgemm.bench.plan import DutyCycle, Plan
from hgemm.bench.schema import CaseResult, Row, Timing
from hgemm.bench.suites import Case, Shape, cases

SHAPE = Shape(24, 16, 40)
BURSTS = DutyCycle(burst_ms=2.0, idle_ms=5.0)


def run(machine: FakeMachine, backends: list[Backend], patterns: tuple[str, ...] = ("*",), **options) -> Outcome:
    plan = Plan(options.pop("cases", (Case(SHAPE),)), patterns, duty=options.pop("duty", BURSTS), **options)
    bench = Bench(
        plan,
        machine,
        backends,
        verify,
        make_ceiling=lambda limit, device: FakeCeiling(machine),
        control_size=16,
    )
    return bench.run()


def timing(row: Row | None) -> Timing:
    assert row is not None
    assert row.timing is not None
    return row.timing


def only_case(outcome: Outcome) -> CaseResult:
    (case,) = outcome.results.cases
    return case


def test_times_rates_and_ratios_are_those_of_the_contestants() -> None:
    machine = FakeMachine()
    # 100 us of the machine's own a call: 200 us against 400 us.
    quick, slow = product(machine, 1e-4), product(machine, 3e-4)
    case = only_case(run(machine, [backend("torch", quick), backend("slow", slow)]))
    assert timing(find_row(case, "torch")).samples_us == pytest.approx([200.0] * 7)
    assert timing(find_row(case, "slow")).samples_us == pytest.approx([400.0] * 7)
    # 2 M N K = 30,720 operations in 400 us.
    slow_row = find_row(case, "slow")
    assert slow_row is not None
    assert speed(slow_row).median == pytest.approx(30_720 / 400e-6 / 1e12)
    ratio = relative(slow_row, find_row(case, "torch"))
    assert ratio is not None
    assert ratio.median == pytest.approx(0.5)


def test_a_burst_lasts_as_long_as_asked_and_idle_comes_before_each() -> None:
    machine = FakeMachine()
    case = only_case(run(machine, [backend("torch", product(machine, 1e-4))], mode="kernel", rounds=3))
    # 2 ms of 200 us calls.
    assert timing(find_row(case, "torch")).calls == 10
    # The warm-up and three rounds of ten: mma.sync, the same fed by ldmatrix in two forms, copy, reads, launch, L2 and
    # shared memory, the control and torch.
    assert machine.slept == pytest.approx([0.005] * 40, rel=0.02)


def test_idle_after_a_long_burst_keeps_the_share_of_time_at_work() -> None:
    machine = FakeMachine()
    run(machine, [backend("torch", product(machine, 0.0079))], mode="kernel", rounds=1)
    # torch's one call takes 8 ms instead of 2: then it is 20 ms of idle instead of 5, and only then.
    rests = sorted(round(rest, 3) for rest in machine.slept)
    assert rests[:-4] == [0.005] * (len(rests) - 4)
    assert rests[-4:] == [0.02] * 4 or rests[-3:] == [0.02] * 3, rests


def test_nobody_is_timed_before_everybody_has_run_once_untimed() -> None:
    machine = FakeMachine()
    began: list[float] = []
    machine.on_burst = lambda: began.append(machine.time)
    case = only_case(run(machine, [backend("torch", product(machine, 1e-4))], mode="kernel", rounds=2))
    first = min(at for row in case.rows for at in timing(row).at_s)
    rounds = [at for at in began if at > first - 1e-3]
    assert len(rounds) == 2 * len(case.rows)
    # Idle and burst of each of the others, and of this one, lie between the last check and the first timed burst.
    before = sorted(at for at in began if at < first - 1e-3)[-len(case.rows) :]
    assert all(later - earlier > 0.005 for earlier, later in zip(before, [*before[1:], first], strict=True))


def test_sustained_load_has_no_idle_and_an_untimed_burst_before_each_timed_one() -> None:
    machine = FakeMachine()
    log: list[str] = []
    duty = DutyCycle.sustained(2.0)
    case = only_case(
        run(
            machine,
            [backend("torch", product(machine, 1e-4)), backend("x", product(machine, 1e-4, log, "x"))],
            duty=duty,
        )
    )
    times = timing(find_row(case, "x"))
    assert (times.idle_ms, times.lead_in_bursts) == (0.0, 1)
    assert set(machine.slept) == {0.0}
    in_rounds = times.calls * 2 * len(times.samples_us)
    # What else was called: once to be checked, and in trials before the rounds.
    assert len(log) > in_rounds
    assert len(log) - in_rounds < in_rounds


def test_everybody_takes_one_turn_a_round_in_an_order_that_changes() -> None:
    machine = FakeMachine()
    log: list[str] = []
    names = ["a", "b", "c"]
    backends = [backend("torch", product(machine)), *(backend(n, product(machine, 1e-4, log, n)) for n in names)]
    case = only_case(run(machine, backends, rounds=8))
    calls = timing(find_row(case, "a")).calls
    # Turns in the rounds are the last 24 bursts of `calls` calls; two in a row may be of the same contestant.
    turns = [name for name, length in runs(log[-24 * calls :]) for _ in range(length // calls)]
    assert len(turns) == 24
    rounds = [tuple(turns[3 * i : 3 * i + 3]) for i in range(8)]
    assert all(Counter(order) == Counter(names) for order in rounds)
    assert len(set(rounds)) > 2


def test_the_order_follows_the_seed() -> None:
    def order(seed: int) -> list[tuple[str, int]]:
        machine = FakeMachine()
        log: list[str] = []
        backends = [backend(n, product(machine, 1e-4, log, n)) for n in ("torch", "a", "b")]
        run(machine, backends, seed=seed, rounds=6)
        return list(runs(log))

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_roofs_and_the_control_are_timed_in_every_round_of_every_case() -> None:
    machine = FakeMachine()
    both = cases((SHAPE, Shape(8, 8, 8)), ("bf16", "fp16"))
    outcome = run(machine, [backend("torch", product(machine, 1e-4))], cases=both, rounds=3)
    assert len(outcome.results.cases) == 4
    for case in outcome.results.cases:
        for name, role in ((CEILING, "roof"), (COPY, "roof"), ("torch", "control"), ("torch", "contestant")):
            assert timing(find_row(case, name, role)).rounds == [0, 1, 2]
    # One control for all: the same work, whatever the case.
    controls = [timing(find_row(case, "torch", "control")).flops_per_call for case in outcome.results.cases]
    assert controls == [2 * 16**3] * 4


def test_the_roofs_of_a_run() -> None:
    machine = FakeMachine()
    both = cases((SHAPE, Shape(48, 16, 40)), ("bf16", "fp16"))
    backends = [backend("torch", product(machine, 1e-4)), backend("cublas", product(machine))]
    outcome = run(machine, backends, cases=both, rounds=3)
    roofs = {(roof.name, roof.dtype): roof for roof in outcome.results.roofs}
    assert {("cublas", "bf16"), ("cublas", "fp16"), (CEILING, "bf16"), (CEILING, "fp16"), (COPY, None)} <= set(roofs)
    ceiling = roofs[CEILING, "bf16"]
    # About a millisecond a launch: k iterations of 1e9 operations in k us and the machine's 100 us.
    assert ceiling.value == pytest.approx(1e9 / 1e-6 / 1e12, rel=0.15)
    assert len(ceiling.samples) == 6
    assert ceiling.clock_mhz == 1830
    assert "48 x 16 x 40" in roofs["cublas", "bf16"].note
    assert roofs["cublas", "bf16"].note.startswith("cublas at")
    copy_case = outcome.results.cases[0]
    copied = timing(find_row(copy_case, COPY, "roof"))
    # Bytes read and written: twice the buffer, which is an eighth of what is free.
    assert copied.bytes_per_call == 2 * (machine.free // 8)
    assert roofs[COPY, None].value == pytest.approx(copied.bytes_per_call / BASE_SECONDS / 1e9, rel=1e-5)


def test_operands_rotate_through_three_times_the_l2() -> None:
    seen: list[int] = []

    def watch(a, b, out, config) -> None:
        seen.append(out.data_ptr())
        out.copy_(a.float() @ b.float())

    machine = FakeMachine(l2_bytes=1 << 16)
    case = only_case(run(machine, [backend("torch", product(machine)), backend("x", watch)], mode="rotating"))
    times = timing(find_row(case, "x"))
    assert times.mode == "rotating"
    # One set of a, b and out in 16 bits is 2 (24 x 40 + 40 x 16 + 24 x 16) = 3,968 bytes.
    assert times.operand_sets == -(-3 * (1 << 16) // 3968)
    assert times.working_set_bytes >= 3 * machine.l2_bytes
    assert times.calls % times.operand_sets == 0
    last_burst = seen[-times.calls :]
    assert len(set(last_burst)) == times.operand_sets
    assert set(Counter(last_burst).values()) == {times.calls // times.operand_sets}


def test_operands_lie_in_memory_as_the_layout_says() -> None:
    machine = FakeMachine()
    layouts = ("nn", "nt", "tn", "tt")
    outcome = run(machine, [backend("torch", product(machine))], cases=cases((SHAPE,), ("bf16",), layouts=layouts))
    found = {case.layout: (case.strides["a"], case.strides["b"]) for case in outcome.results.cases}
    # a is 24 x 40 and b 40 x 16: row-major [columns, 1], column-major [1, rows].
    assert found == {
        "nn": ([40, 1], [16, 1]),
        "nt": ([40, 1], [1, 40]),
        "tn": ([1, 24], [16, 1]),
        "tt": ([1, 24], [1, 40]),
    }
    assert all(find_row(case, "torch") for case in outcome.results.cases)


def test_kernel_mode_keeps_to_one_set_of_operands() -> None:
    machine = FakeMachine()
    times = timing(find_row(only_case(run(machine, [backend("torch", product(machine))], mode="kernel")), "torch"))
    assert (times.mode, times.operand_sets, times.timer) == ("kernel", 1, "graph")


def test_a_rotation_leaves_room_in_memory() -> None:
    machine = FakeMachine(l2_bytes=1 << 30, free=1 << 17)
    times = timing(find_row(only_case(run(machine, [backend("torch", product(machine))])), "torch"))
    assert times.operand_sets == (1 << 17) // 4 // 3968


def test_readings_stand_beside_their_samples() -> None:
    machine = FakeMachine()
    times = timing(find_row(only_case(run(machine, [backend("torch", product(machine))], rounds=4)), "torch"))
    assert times.clocks.sm_mhz == [READING.sm_mhz] * 4
    assert times.clocks.throttle == ["sw_power_cap"] * 4
    assert times.at_s == sorted(times.at_s)
    assert times.rounds == [0, 1, 2, 3]


def test_the_budget_ends_a_run_between_rounds() -> None:
    machine = FakeMachine()
    both = cases((SHAPE, Shape(8, 8, 8)), ("bf16",))
    outcome = run(
        machine, [backend("torch", product(machine, 1e-3))], cases=both, rounds=1000, budget_s=2.0, mode="kernel"
    )
    assert outcome.stopped == "the budget is spent"
    assert not outcome.results.run.complete
    case = only_case(outcome)  # the second never began
    done = timing(find_row(case, "torch")).rounds
    assert 1 < len(done) < 1000
    # No round was cut: everybody was timed as often.
    assert {len(timing(row).rounds) for row in case.rows} == {len(done)}
    # A round lasts 7 x (5 ms + about 2 ms); the budget may be passed by one of them.
    assert outcome.results.run.seconds < 2.2


def test_a_complete_run_says_so() -> None:
    machine = FakeMachine()
    outcome = run(machine, [backend("torch", product(machine))])
    assert outcome.stopped is None
    assert outcome.results.run.complete
    assert machine.bursts_closed == machine.bursts_opened


def test_cublaslt_is_tuned_for_each_product_if_asked() -> None:
    machine = FakeMachine()
    tuned = []
    both = cases((SHAPE, Shape(8, 8, 8)), ("bf16",))
    for asked in (False, True):
        plan = Plan(both, ("*",), duty=BURSTS, rounds=1, tune_cublaslt=asked)
        backends = [backend("torch", product(machine)), backend("cublaslt", product(machine))]
        bench = Bench(
            plan,
            machine,
            backends,
            verify,
            make_ceiling=lambda limit, device: FakeCeiling(machine),
            tune_cublaslt=lambda problem: tuned.append((problem.M, problem.N, problem.K)),
            control_size=16,
        )
        bench.run()
        assert tuned == ([(24, 16, 40), (8, 8, 8)] if asked else [])


def test_the_rates_of_a_row_are_by_round() -> None:
    machine = FakeMachine()
    times = timing(find_row(only_case(run(machine, [backend("torch", product(machine))], rounds=3)), "torch"))
    assert statistics.median(tflops(times).values()) == pytest.approx(30_720 / 100e-6 / 1e12)
    assert list(tflops(times)) == [0, 1, 2]
