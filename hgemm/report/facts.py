"""What stands beside the figures: how they were measured, in words, and on what machine, with what software."""

from __future__ import annotations

import statistics

from hgemm.bench.metrics import clock_mhz, throttled, timed_rows
from hgemm.bench.schema import Results, Timing
from hgemm.plot import style

Facts = list[tuple[str, str]]
"""Names and values."""

MODES = {
    "kernel": "Time is the device's, for calls on one set of operands, which the L2 cache keeps if they fit.",
    "cold": "Time is the device's, for single calls after the L2 cache was flushed; the flush is not counted.",
    "rotating": "Time is the device's, over operands that rotate through at least three times the L2 cache, so that no "
    "call finds its own in the cache.",
    "e2e": "Time is the host's to issue one call of the public function, with few enough under way that the host never "
    "waits for the device: what the call itself costs.",
}


def summary(results: Results) -> str:
    """One line: how much was measured on what, and when."""
    count = sum(bool(timed_rows(case)) for case in results.cases)
    dtypes = ", ".join(dict.fromkeys(case.dtype for case in results.cases))
    power = f" ({results.env.power_limit_w:.0f} W)" if results.env.power_limit_w else ""
    products = f"{count} product{'s' if count > 1 else ''}"
    return f"{products} in {dtypes} on {results.env.gpu}{power}, {results.run.utc[:10]}"


def method(results: Results) -> list[str]:
    """How it was measured, a paragraph each."""
    timings = _timings(results)
    texts = [MODES[mode] for mode in dict.fromkeys(timing.mode for timing in timings)]
    first = timings[0]
    duty = (
        f"works for about {first.burst_ms:g} ms after {first.idle_ms:g} ms of idleness"
        if first.idle_ms
        else f"works for about {first.burst_ms:g} ms without a pause, each timed burst after an untimed one"
    )
    return [
        "Every contestant first computes the product once and is checked against fp64; one that is wrong is not timed. "
        "“Error / bound” is its largest error as a fraction of what rounding in fp32 may cost.",
        f"Then come {style.rounds(results)}. In each of them every contestant, in an order drawn anew, {duty}; one "
        "sample is the mean over the calls of a burst. " + " ".join(texts),
        "Figures are medians of the samples. Ratios are formed within each round, where a clock that drifts slows both "
        "sides alike, and then summarised; the interval is the 95% bootstrap interval of the median. The mma.sync "
        "ceiling is what the tensor cores reach by that instruction on registers alone, timed in the same rounds.",
        "A product is compute-bound if it has more operations for each byte it must move than the ridge, where the "
        "measured mma.sync and copy roofs meet; below that it is memory-bound, and compared with copying: by the bytes "
        "that it must move, each element once, a second.",
        _clocks(timings),
    ]


def machine(results: Results) -> Facts:
    """The device and the versions."""
    env = results.env
    cache, memory = env.l2_bytes / 2**20, env.memory_bytes / 2**30
    power = None
    if env.power_limit_w:
        usual = (
            "the default" if env.power_limit_w == env.power_default_w else f"default {env.power_default_w or 0:.0f} W"
        )
        power = f"{env.power_limit_w:.0f} W" + (f", {usual}" if env.power_default_w else "")
    return _known(
        ("GPU", env.gpu),
        ("Compute capability", ".".join(str(part) for part in env.compute_capability)),
        ("Multiprocessors", env.multiprocessors),
        ("L2 cache", f"{cache:.0f} MiB"),
        ("Memory", f"{memory:.0f} GiB"),
        ("Power limit", power),
        ("Highest clock", f"{env.clock_max_mhz} MHz" if env.clock_max_mhz else None),
        ("ECC", env.ecc),
        ("Platform", env.platform),
        ("Driver", env.driver),
        ("CUDA of torch", env.cuda),
        ("nvcc", env.nvcc),
        ("cuBLAS", env.cublas),
        ("torch", env.torch),
        ("Triton", env.triton),
        ("NumPy", env.numpy),
        ("Python", env.python),
        ("hgemm", env.hgemm),
    )


def provenance(results: Results) -> list[tuple[str, Facts]]:
    """How the file came to be, enough to do it again: headings and what is known under each."""
    run = results.run
    return [
        (
            "The run",
            _known(
                ("Begun", run.utc.replace("T", " ").replace("Z", " UTC")),
                ("Took", f"{run.seconds:.0f} s"),
                ("Complete", run.complete),
                ("Kernel sources", run.sources),
                ("Revision", run.revision),
            ),
        ),
        ("Its options", _known(*run.options.items())),
        ("Settings of torch that change its products", _known(*results.flags.items())),
    ]


def _timings(results: Results) -> list[Timing]:
    return [row.timing for case in results.cases for row in timed_rows(case) if row.timing]


def _clocks(timings: list[Timing]) -> str:
    clock = clock_mhz(timings)
    if clock is None:
        return "Clocks could not be read."
    count, held = sum(len(timing.samples_us) for timing in timings), sum(throttled(timing) for timing in timings)
    watts = [power for timing in timings for power in timing.clocks.power_w if power is not None]
    power = f" and {statistics.median(watts):.0f} W" if watts else ""
    down = (
        f"power or temperature held the clock down in {held:,} of {count:,} samples"
        if held
        else f"neither power nor temperature held the clock down in any of {count:,} samples"
    )
    return f"Clocks were left alone: the median over all samples is {clock:.0f} MHz{power}; {down}."


def _known(*facts: tuple[str, object]) -> Facts:
    """The facts that are known, with their values as text."""
    return [(name, _text(value)) for name, value in facts if value is not None and value != []]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(entry) for entry in value) if isinstance(value, list) else str(value)
