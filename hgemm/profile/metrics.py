"""Which counters are read, under the names that Hopper and GeForce Blackwell have for them, and what each one means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hgemm.profile.ncu import Value

SASS = "smsp__sass_l1tex_data"
"""Counted for each instruction by itself: free of what else uses the banks at that moment."""


@dataclass(frozen=True)
class Metric:
    """``names``: the first one that the device has is taken. ``unit`` is that of ours: "us", "MHz", "%", "bytes",
    or nothing for a count."""

    names: tuple[str, ...]
    unit: str
    meaning: str


def _sass(kind: str, operation: str) -> tuple[str, ...]:
    name = f"{SASS}_{kind}_mem_shared_op_{operation}.sum"
    return name, name.replace("smsp__", "sm__", 1)


METRICS: dict[str, Metric] = {
    "time": Metric(
        ("gpu__time_duration.sum",),
        "us",
        "time of the kernel under the profiler, caches cold and the clock as it was: no benchmark",
    ),
    "clock": Metric(
        ("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
        "MHz",
        "clock of the multiprocessors while it ran",
    ),
    "tensor pipe": Metric(
        (
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        ),
        "%",
        "cycles in which the tensor cores work, of those in which their multiprocessor does: what is missing from 100 "
        "is all that a kernel can gain",
    ),
    "warps active": Metric(
        ("sm__warps_active.avg.pct_of_peak_sustained_active",),
        "%",
        "warps resident on average, of those that a multiprocessor can hold; below the static figure where the last "
        "wave is not full",
    ),
    "issue": Metric(
        ("smsp__issue_active.avg.pct_of_peak_sustained_active", "sm__issue_active.avg.pct_of_peak_sustained_active"),
        "%",
        "cycles in which a scheduler issues an instruction: near 100 the instructions themselves are the limit",
    ),
    "shared pipe": Metric(
        (
            "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",
        ),
        "%",
        "wavefronts of shared memory, of one a cycle and multiprocessor: where it exceeds the tensor pipe's share, a "
        "larger warp tile, which reads less for the same work, is the way on",
    ),
    "shared wavefronts": Metric(
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
        "",
        "passes of all instructions through shared memory, 128 bytes each at best",
    ),
    "shared conflicts": Metric(
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
        "",
        "as the pipe counts them: besides bank conflicts also waits for a TMA write that uses the banks just then",
    ),
    "pipe load wavefronts": Metric(
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
        "",
        "passes of ldmatrix and of other loads, as the pipe counts them",
    ),
    "pipe load conflicts": Metric(
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",),
        "",
        "of loads, as the pipe counts them: waits for a TMA write among them",
    ),
    "pipe store wavefronts": Metric(
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
        "",
        "passes of stores, as the pipe counts them",
    ),
    "pipe store conflicts": Metric(
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",),
        "",
        "of stores, as the pipe counts them",
    ),
    "ldmatrix instructions": Metric(
        ("smsp__inst_executed_op_ldsm.sum", "smsp__sass_inst_executed_op_ldsm.sum", "sm__inst_executed_op_ldsm.sum"),
        "",
        "ldmatrix, once for each warp",
    ),
    "ldmatrix wavefronts": Metric(_sass("pipe_lsu_wavefronts", "ldsm"), "", "passes of ldmatrix"),
    "ldmatrix conflicts": Metric(_sass("bank_conflicts_pipe_lsu", "ldsm"), "", "passes repeated by bank conflicts"),
    "load instructions": Metric(
        ("smsp__sass_inst_executed_op_shared_ld.sum", "sm__sass_inst_executed_op_shared_ld.sum"),
        "",
        "loads other than ldmatrix, once for each warp",
    ),
    "load wavefronts": Metric(_sass("pipe_lsu_wavefronts", "ld"), "", "passes of these loads"),
    "load conflicts": Metric(
        _sass("bank_conflicts_pipe_lsu", "ld"),
        "",
        "passes of loads repeated by bank conflicts",
    ),
    "store instructions": Metric(
        ("smsp__sass_inst_executed_op_shared_st.sum", "sm__sass_inst_executed_op_shared_st.sum"),
        "",
        "stores, once for each warp",
    ),
    "store wavefronts": Metric(_sass("pipe_lsu_wavefronts", "st"), "", "passes of stores"),
    "store conflicts": Metric(_sass("bank_conflicts_pipe_lsu", "st"), "", "passes repeated by bank conflicts"),
    "cp.async instructions": Metric(
        ("smsp__inst_executed_op_ldgsts.sum", "smsp__sass_inst_executed_op_ldgsts.sum"),
        "",
        "cp.async, once for each warp",
    ),
    "cp.async wavefronts": Metric(
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum", *_sass("pipe_lsu_wavefronts", "ldgsts")),
        "",
        "passes that write what cp.async fetched",
    ),
    "cp.async conflicts": Metric(
        _sass("bank_conflicts_pipe_lsu", "ldgsts"),
        "",
        "passes repeated by bank conflicts",
    ),
    "TMA loaded": Metric(
        ("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",),
        "bytes",
        "what TMA wrote into shared memory",
    ),
    "TMA stored": Metric(
        ("l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",),
        "bytes",
        "what TMA read from shared memory and wrote to C",
    ),
    "L2": Metric(
        ("lts__t_bytes.sum",),
        "bytes",
        "all that passed through the L2: each tile of A and B again for each block that needs it",
    ),
    "L2 sectors": Metric(("lts__t_sectors.sum",), "", "accesses of the L2, 32 bytes each"),
    "L2 hits": Metric(
        ("lts__t_sector_hit_rate.pct",),
        "%",
        "accesses that the L2 answered by itself",
    ),
    "DRAM read": Metric(
        ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
        "bytes",
        "read from device memory, nothing being in the L2 at first: A and B at least once",
    ),
    "DRAM written": Metric(
        ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
        "bytes",
        "written to device memory before the kernel ended; what of C the L2 still holds is not in it",
    ),
    "registers launched": Metric(("launch__registers_per_thread",), "", "registers a thread, as launched"),
    "threads launched": Metric(("launch__block_size",), "", "threads a block, as launched"),
    "grid": Metric(("launch__grid_size",), "", "blocks of the grid"),
    "shared launched": Metric(
        ("launch__shared_mem_per_block",), "bytes", "shared memory a block, the system's included"
    ),
}

STALLS: dict[str, str] = {
    "math_pipe_throttle": "ready, and the tensor cores are busy: what a matrix product should wait for",
    "gmma": "waits for wgmma, which is at work: the same on Hopper's asynchronous tensor cores",
    "long_scoreboard": "waits for global or local memory, or for a stage that TMA is still filling: more stages help",
    "short_scoreboard": "waits for what ldmatrix or another access of shared memory returns: load further ahead",
    "mio_throttle": "the queue of shared-memory instructions is full: fewer ldmatrix for the same products help",
    "lg_throttle": "the queue of global-memory instructions is full: wider or fewer accesses help",
    "tex_throttle": "the queue of the texture unit, through which descriptors go too, is full",
    "barrier": "waits at a barrier for the other warps of its block: fewer barriers, or a second block to fill the gap",
    "membar": "waits for a memory fence",
    "wait": "waits the fixed few cycles that its last instruction takes: more independent work between",
    "not_selected": "ready, and another warp was taken: there are warps enough",
    "branch_resolving": "waits for a jump to be resolved",
    "no_instruction": "waits for instructions to be fetched: code too long for its cache, or a jump",
    "dispatch_stall": "the dispatcher holds it back, as for conflicts of registers",
    "drain": "has ended and waits for its last stores",
    "imc_miss": "waits for a constant that is not in its cache: the start of a kernel",
    "sleeping": "sleeps on purpose, in a waiting loop",
    "misc": "another reason",
}
"""Why a warp does not issue, under ncu's names, and what that means in a matrix product."""

ISSUING = "selected"
"""The state of a warp that does issue; with it the shares of all states sum to 1."""


def metric_names() -> list[str]:
    """All that ncu is asked for."""
    stalls = [stall_metric(reason) for reason in (*STALLS, ISSUING)]
    return [*dict.fromkeys(name for metric in METRICS.values() for name in metric.names), *stalls]


def stall_metric(reason: str) -> str:
    """Warps in this state for each instruction issued."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def value_of(values: Mapping[str, Value], metric: Metric) -> float | None:
    """The first of a metric's names that is there, in the metric's unit; None if none is, or its unit is unknown."""
    for name in metric.names:
        if (value := values.get(name)) is not None:
            factor = _FACTORS[metric.unit].get(value.unit.lower()) if metric.unit in _FACTORS else 1.0
            return None if factor is None else value.number * factor
    return None


_FACTORS: dict[str, dict[str, float]] = {
    "us": {
        **dict.fromkeys(("ns", "nsecond", "nanosecond"), 1e-3),
        **dict.fromkeys(("us", "usecond", "microsecond"), 1.0),
        **dict.fromkeys(("ms", "msecond", "millisecond"), 1e3),
        **dict.fromkeys(("s", "second"), 1e6),
    },
    "MHz": {
        **dict.fromkeys(("hz", "cycle/s", "cycle/second"), 1e-6),
        **dict.fromkeys(("khz", "cycle/ms", "cycle/msecond"), 1e-3),
        **dict.fromkeys(("mhz", "cycle/us", "cycle/usecond"), 1.0),
        **dict.fromkeys(("ghz", "cycle/ns", "cycle/nsecond"), 1e3),
    },
    "bytes": {
        **dict.fromkeys(("", "byte", "b", "byte/block"), 1.0),
        **dict.fromkeys(("kbyte", "kbyte/block"), 1e3),
        **dict.fromkeys(("mbyte", "mbyte/block"), 1e6),
        "gbyte": 1e9,
        "tbyte": 1e12,
    },
}
"""What ncu's units are in ours. ncu 2025 writes "ns" and "hz" where older releases write "nsecond", "cycle/nsecond"."""
