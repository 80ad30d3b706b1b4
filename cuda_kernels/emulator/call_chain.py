"""From return addresses to lines of source: how a kernel came to the line at which it broke a rule."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePath

SECONDS = 20


def callers(library: Path, stacks: Sequence[Sequence[int]], places: Sequence[str]) -> list[tuple[str, ...]]:
    """For each stack the lines that led to the fault, as ("mainloop.cuh:50", "tma.cuh:95"), from the inside out.

    A stack is a list of offsets in the library; its fault lies at a place as "layout.cuh:56", which is left out. Empty
    where nothing is known: without addr2line of the binutils, without line numbers in the library, or if the fault came
    to light in another thread than the one that it is laid to.
    """
    program = shutil.which("addr2line")
    offsets = sorted({offset for stack in stacks for offset in stack})
    if program is None or not offsets:
        return [() for _ in stacks]
    command = [program, "-a", "-i", "-e", str(library), *map(hex, offsets)]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return [() for _ in stacks]
    lines = _lines(output)
    chains = []
    for stack, place in zip(stacks, places, strict=True):
        chain = [line for offset in stack for line in lines.get(offset, ())]
        chains.append(tuple(chain[1:]) if chain[:1] == [place] else ())
    return chains


def _lines(output: str) -> dict[int, list[str]]:
    """Lines of the kernel's sources by offset; those of the emulator itself are left out."""
    lines: dict[int, list[str]] = {}
    for text in output.splitlines():
        if text.startswith("0x"):
            found = lines.setdefault(int(text, 16), [])
        elif (match := re.match(r"(.+):(\d+)( |$)", text)) and PurePath(match[1]).parent.name != "emulator":
            found.append(f"{PurePath(match[1]).name}:{match[2]}")
    return lines
