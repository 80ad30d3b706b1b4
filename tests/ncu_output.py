"""What ncu prints, written by hand in its documented format: tables in CSV, and its own lines around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hgemm.profile.metrics import stall_metric

BEFORE = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size")
AFTER = ("Grid Size", "Device", "CC")

SASS = "smsp__sass_l1tex_data"
PIPE = "l1tex__data"

SWIZZLED = {
    "gpu__time_duration.sum": ("ns", "363,456"),
    "sm__cycles_elapsed.avg.per_second": ("hz", "1,755,000,000"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "71.98"),
    "smsp__inst_executed_op_ldsm.sum": ("inst", "1,000"),
    f"{SASS}_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum": ("", "4,000"),
    f"{SASS}_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum": ("", "0"),
    "smsp__sass_inst_executed_op_shared_ld.sum": ("inst", "100"),
    f"{SASS}_pipe_lsu_wavefronts_mem_shared_op_ld.sum": ("", "400"),
    f"{SASS}_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": ("", "0"),
    "smsp__sass_inst_executed_op_shared_st.sum": ("inst", "200"),
    f"{SASS}_pipe_lsu_wavefronts_mem_shared_op_st.sum": ("", "250"),
    f"{SASS}_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": ("", "50"),
    f"{PIPE}_pipe_lsu_wavefronts_mem_shared_op_ld.sum": ("", "5,280"),
    f"{PIPE}_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": ("", "880"),
    f"{PIPE}_pipe_lsu_wavefronts_mem_shared_op_st.sum": ("", "250"),
    f"{PIPE}_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": ("", "50"),
    f"{PIPE}_pipe_lsu_wavefronts_mem_shared.sum": ("", "5,600"),
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum": ("byte", "1,280"),
    "lts__t_sectors.sum": ("sector", "1,000"),
    "dram__bytes_op_read.sum": ("byte", "67,108,864"),
    "dram__bytes_write.sum": ("byte", "(!) n/a"),
    stall_metric("math_pipe_throttle"): ("inst", "2.50"),
    stall_metric("barrier"): ("inst", "0.50"),
    stall_metric("wait"): ("inst", "1.00"),
    stall_metric("drain"): ("inst", "0"),
    stall_metric("gmma"): ("inst", "n/a"),
    stall_metric("selected"): ("inst", "1.00"),
}
"""Metrics of a kernel without bank conflicts, in which the pipe counts waits for TMA all the same."""

PERMISSION = (
    "==PROF== Connected to process 4242 (/usr/bin/python3.12)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
    "==PROF== Disconnected from process 4242\n"
    "==WARNING== No kernels were profiled.\n"
)
LIBRARY = (
    "==PROF== Connected to process 4242 (/usr/bin/python3.12)\n"
    "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n"
    "==PROF== Disconnected from process 4242\n"
)
UNKNOWN = (
    "==PROF== Connected to process 4242 (/usr/bin/python3.12)\n"
    "==ERROR== Failed to find metric regex:^lts__t_bytes(\\.(sum|min|max|avg|pct|ratio|max_rate))?$\n"
    "==ERROR== Failed to find metric dram__bytes_read.sum\n"
)


def raw_page(kernels: Sequence[tuple[str, Mapping[str, tuple[str, str]]]]) -> str:
    """``--csv --page raw`` for kernels of a name and metrics: name -> (unit, the number as ncu writes it)."""
    metrics = list(dict.fromkeys(name for _, values in kernels for name in values))
    units = {name: unit for _, values in kernels for name, (unit, _) in values.items()}
    lines = [
        "==PROF== Connected to process 4242 (/usr/bin/python3.12)",
        '==PROF== Profiling "matmul": 0%....50%....100% - 31 passes',
        "==PROF== Disconnected from process 4242",
        _line(*BEFORE, *AFTER, *metrics),
        _line(*[""] * (len(BEFORE) + len(AFTER)), *(units[name] for name in metrics)),
    ]
    for number, (kernel, values) in enumerate(kernels):
        before = (
            str(number),
            "4242",
            "python3.12",
            "some-host",
            kernel,
            "1",
            "7",
            "(256, 1, 1)",
            "(1024, 1, 1)",
            "0",
            "9.0",
        )
        lines.append(_line(*before, *(values.get(name, ("", ""))[1] for name in metrics)))
    lines.append("==WARNING== Found outstanding GPU clock reset, trying to revert...Success.")
    return "\n".join(lines) + "\n"


def _line(*cells: str) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
