"""``python -m hgemm.env``: what this machine can run and, for each thing it cannot, the reason.

``--report`` prints the same as Markdown for a bug report: no host name, no user name, the home folder as ``~``.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import hgemm
from hgemm.backends import DEVICE_TYPES, backends
from hgemm.bench.nvml import Nvml
from hgemm.cuda_kernels import cache, toolchain
from hgemm.program import Parser, end_with

PACKAGES = ("torch", "triton", "numpy", "ninja", "matplotlib", "rich")
VARIABLES = (
    "HGEMM_CUDA_ARCHS",
    "TORCH_CUDA_ARCH_LIST",
    "HGEMM_CACHE_DIR",
    "XDG_CACHE_HOME",
    "HGEMM_EMULATOR",
    "HGEMM_EMULATOR_CXXFLAGS",
    "HGEMM_EMULATOR_LIMIT",
    "HGEMM_VERBOSE",
    "CUDA_HOME",
    "CXX",
    "MAX_JOBS",
    "CUDA_VISIBLE_DEVICES",
    "TRITON_INTERPRET",
)


def describe() -> dict[str, Any]:
    """Everything that is printed, as plain data; keys ``backends``, ``gpus``, ``toolchain``, ``versions``, ..."""
    return _scrubbed(
        {
            "backends": [
                {
                    "name": record.name,
                    "idea": record.idea,
                    "requires": list(record.requires),
                    "configs": list(record.configs),
                    # Device type -> why it cannot run there, null if it can.
                    "unavailable": {device_type: record.unavailable(device_type) for device_type in DEVICE_TYPES},
                }
                for record in backends()
            ],
            "gpus": [_gpu(index) for index in range(torch.cuda.device_count())],
            "toolchain": list(_toolchain()),
            "versions": {
                "hgemm": hgemm.__version__,
                "python": platform.python_version(),
                **{package: _version(package) for package in PACKAGES},
                "CUDA of torch": torch.version.cuda,
                "system": f"{platform.system()} {platform.machine()}" + (" (WSL2)" if _is_wsl() else ""),
            },
            "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        }
    )


def report(facts: dict[str, Any]) -> str:
    """``describe()`` as Markdown."""
    lines = ["### hgemm environment", "", f"| backend | {' | '.join(DEVICE_TYPES)} |", "| --- " * 3 + "|"]
    for backend in facts["backends"]:
        cells = (backend["unavailable"][device_type] or "yes" for device_type in DEVICE_TYPES)
        lines.append(f"| {backend['name']} | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("")
    for gpu in facts["gpus"] or [{"GPU": "none that torch finds"}]:
        lines.append("- " + ", ".join(f"{key}: {value}" for key, value in gpu.items()))
    lines += [f"- {tool['name']}: {tool['detail']}" for tool in facts["toolchain"]]
    lines += [f"- {name}: {version or 'none'}" for name, version in facts["versions"].items()]
    lines += [f"- `{name}={value}`" for name, value in facts["variables"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m hgemm.env", description="What this machine can run, and why not.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--report", action="store_true", help="print Markdown for a bug report, nothing personal in it")
    options = parser.parse_args(arguments)
    facts = describe()
    if options.json:
        print(json.dumps(facts, indent=1))
    elif options.report:
        print(report(facts))
    else:
        _print(facts)
    return 0


def _gpu(index: int) -> dict[str, Any]:
    properties: Any = torch.cuda.get_device_properties(index)
    nvml = Nvml(torch.device("cuda", index))
    board = nvml.board()
    nvml.close()
    return {
        "GPU": properties.name,
        "compute capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory MiB": properties.total_memory // 2**20,
        "L2 MiB": properties.L2_cache_size // 2**20,
        "shared memory a block, bytes": properties.shared_memory_per_block_optin,
        "driver": board.driver,
        "power limit W": board.power_limit_w,
    }


def _toolchain() -> Iterator[dict[str, Any]]:
    for name, tool in toolchain.describe().items():
        if isinstance(tool, str):
            yield {"name": name, "found": False, "detail": tool}
        else:
            yield {"name": name, "found": True, "detail": f"{tool.version} ({tool.origin})"}
    yield {"name": "kernel cache", **_cache()}


def _cache() -> dict[str, Any]:
    """Where kernels are cached, and whether that works, which only trying says: a folder is made and removed."""
    try:
        folder = cache.configured_folder()
    except RuntimeError as error:
        return {"found": False, "detail": str(error)}
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        os.rmdir(tempfile.mkdtemp(prefix=cache.STAGING_PREFIX, dir=existing))
    except OSError as error:
        way_out = "set HGEMM_CACHE_DIR to a folder that can be"
        return {"found": False, "detail": f"{folder} cannot be written ({error.strerror}); {way_out}"}
    return {"found": True, "detail": str(folder)}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_wsl() -> bool:
    return "microsoft" in platform.release().lower()


def _scrubbed(facts: Any) -> Any:
    """``facts`` without what is personal: the home folder becomes ``~``, user and host names their placeholders."""
    if isinstance(facts, dict):
        return {key: _scrubbed(value) for key, value in facts.items()}
    if isinstance(facts, list):
        return [_scrubbed(value) for value in facts]
    if not isinstance(facts, str):
        return facts
    home = os.path.expanduser("~")
    text = re.sub(rf"{re.escape(home)}(?=/|\W|$)", "~", facts) if len(home) > 1 else facts
    if host := platform.node():
        text = re.sub(rf"\b{re.escape(host)}\b", "<host>", text)
    return re.sub(rf"(?<=/){re.escape(_user())}(?=/|\W|$)", "<user>", text)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return str(os.getuid())


def _print(facts: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table(title="Backends", title_justify="left")
    for heading in ("backend", *DEVICE_TYPES, "configs", "idea"):
        table.add_column(heading, no_wrap=heading != "idea", justify="right" if heading == "configs" else "left")
    for backend in facts["backends"]:
        marks = ("[red]no" if backend["unavailable"][device_type] else "[green]yes" for device_type in DEVICE_TYPES)
        table.add_row(backend["name"], *marks, str(len(backend["configs"]) or ""), backend["idea"])
    console.print(table)
    reasons: dict[tuple[str, str], list[str]] = {}
    for backend in facts["backends"]:
        for device_type, reason in backend["unavailable"].items():
            if reason:
                reasons.setdefault((device_type, reason), []).append(backend["name"])
    for (device_type, reason), names in reasons.items():
        console.print(f"not on {device_type}: {', '.join(names)}: {reason}", markup=False)
    console.print()
    for gpu in facts["gpus"]:
        console.print(", ".join(f"{key} {value}" for key, value in gpu.items()), markup=False)
    for tool in facts["toolchain"]:
        console.print(("[green]yes[/] " if tool["found"] else "[red]no [/] ") + f"{tool['name']}: ", end="")
        console.print(tool["detail"], markup=False)
    console.print()
    console.print(", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version))
    for name, value in facts["variables"].items():
        console.print(f"{name}={value}", markup=False)


if __name__ == "__main__":
    end_with(main)
