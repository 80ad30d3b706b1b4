"""What ncu prints, written by hand in its documented format: tables in CSV, and its own lines around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BEFORE = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size")
AFTER = ("Grid Size", "Device", "CC")

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
