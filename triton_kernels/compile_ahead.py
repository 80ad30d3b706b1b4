"""Compiles a configuration for a target, with no GPU, and says what the compiler made of it."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hgemm.config import THREADS_PER_WARP
from hgemm.problem import VECTOR_BYTES, VECTOR_ELEMENTS
from hgemm.triton_kernels.configs import MMA_SYNC, Family, launch_options, ring_options
from hgemm.triton_kernels.interpreter import language_lock
from hgemm.triton_kernels.launcher import compiler_environment
from hgemm.triton_kernels.specialized_configs import blocks, is_specialized, specialized_options

DTYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
POINTERS = ("a", "b", "c")
STATIC_SHARED = re.compile(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]")


@dataclass(frozen=True)
class Compiled:
    """``shared_bytes`` and ``threads`` a block; ``scratch_bytes``: global memory a program; ``registers`` and
    ``stack_bytes`` a thread."""

    ptx: str
    cubin: bytes
    shared_bytes: int
    scratch_bytes: int
    registers: int
    stack_bytes: int
    threads: int

    @functools.cached_property
    def sass(self) -> str:
        """Made when it is asked for: the disassembler takes longer than the compiler."""
        return disassemble(self.cubin)

    @property
    def spill_loads(self) -> int:
        """The instructions that read back what did not fit the registers. A stack without them is no spill: the ptxas
        of Triton 3.6 writes a constant to 8 bytes of it that nothing reads."""
        return len(re.findall(r"\bLDL\b", self.sass)) if self.stack_bytes else 0


def compile_ahead(
    family: Family,
    config: str,
    dtype: torch.dtype,
    target: int,
    aligned: bool = True,
    wide: Collection[str] = (),
    layout: str = "nn",
    batched: bool = False,
    on_host: bool = True,
    contiguous: bool = True,
) -> Compiled:
    """What Triton makes of a configuration for ``target``, a compute capability as 10 major + minor.

    ``aligned``: for bases, strides and rows that allow 16-byte copies; only ``triton_pointer`` also takes others.
    ``wide``: the numbers among the kernel's arguments that are 64-bit, as they are in a launch from 2^31 on.
    ``layout``: letters for A and B as in ``Problem.layout``. ``on_host``: the host makes the descriptors, of kernels
    that take them and what is no batch. ``contiguous``: stored rows have neighbouring elements.
    Raises RuntimeError if TRITON_INTERPRET is set, because then nothing compiles in this process, and whatever Triton
    raises if it cannot compile.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, function = family.source(config)
    kernel = getattr(importlib.import_module(f"hgemm.triton_kernels.{module}"), function)
    if not isinstance(kernel, triton.JITFunction):
        raise RuntimeError("TRITON_INTERPRET was set when Triton was loaded: unset it and start again to compile")
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    specialized = is_specialized(config)
    options_of = specialized_options if specialized else ring_options if kernel.is_gluon() else launch_options
    options = options_of(config)
    takes_them = "HOST_DESCRIPTORS" in kernel.arg_names and options.get("HOST_DESCRIPTORS", True)
    described = on_host and not batched and family is not MMA_SYNC and takes_them
    known = {
        "PERSISTENT": False,
        "PARTS": 1,
        "ALIGNMENT": VECTOR_ELEMENTS if aligned else 1,
        "CONTIGUOUS": contiguous,
        "BATCHED": batched,
        "HOST_DESCRIPTORS": described,
        "A_LAYOUT": layout[0],
        "B_LAYOUT": layout[1],
        **options,
        **({} if options.get("SHARED") else {"sums": None}),
    }
    constants = {name: value for name, value in known.items() if name in kernel.arg_names}
    signature = {
        **dict.fromkeys(kernel.arg_names, "i32"),
        **dict.fromkeys(wide, "i64"),
        **(_descriptors(config, layout, dtype) if specialized else dict.fromkeys(POINTERS, f"*{DTYPE_NAMES[dtype]}")),
        **({"c": "*fp32"} if options.get("PARTS", 1) > 1 else {}),
        **(_tile_descriptors(options, layout, dtype) if described else {}),
        **({"sums": "*fp32"} if options.get("SHARED") else {}),
        **dict.fromkeys(constants, "constexpr"),
    }
    # A launch finds out by itself that an address is a multiple of 16; a compilation has to be told.
    divisible = [["tt.divisibility", VECTOR_BYTES]]
    pointers = [name for name in (*POINTERS, "sums") if str(signature.get(name)).startswith("*")]
    attributes = {(kernel.arg_names.index(name),): divisible for name in pointers} if aligned else {}
    with language_lock, compiler_environment(family.environment):
        compiled = triton.compile(
            ASTSource(kernel, signature, constants, attributes),
            target=GPUTarget("cuda", target, THREADS_PER_WARP),
            options={name: value for name, value in options.items() if name not in constants},
        )
    usage = resource_usage(compiled.asm["cubin"])
    return Compiled(
        ptx=compiled.asm["ptx"],
        cubin=compiled.asm["cubin"],
        shared_bytes=compiled.metadata.shared + sum(map(int, STATIC_SHARED.findall(compiled.asm["ptx"]))),
        scratch_bytes=compiled.metadata.global_scratch_size,
        registers=usage["REG"],
        stack_bytes=usage["STACK"] + usage["LOCAL"],
        threads=THREADS_PER_WARP * compiled.metadata.num_warps,
    )


def _descriptors(config: str, layout: str, dtype: torch.dtype) -> dict[str, str]:
    """The types of the descriptors that a specialised kernel is given, by argument."""
    from hgemm.triton_kernels.host_descriptors import layouts

    return {
        f"{name}_matrix": f"tensordesc<{DTYPE_NAMES[dtype]}[{rows}, {columns}],{shared!r}>"
        for name, (rows, columns), shared in zip(
            POINTERS, blocks(config, *layout), layouts(config, *layout), strict=True
        )
    }


def _tile_descriptors(options: Mapping[str, Any], layout: str, dtype: torch.dtype) -> dict[str, str]:
    """The same for a kernel whose HOST_DESCRIPTORS is set."""
    from hgemm.triton_kernels.descriptors import tile_blocks

    return {
        name: f"tensordesc<{DTYPE_NAMES[dtype]}[{rows}, {columns}]>"
        for name, (rows, columns) in zip(POINTERS, tile_blocks(options, *layout), strict=False)
    }


def resource_usage(cubin: bytes) -> dict[str, int]:
    """The counts that ``cuobjdump -res-usage`` prints, by name.

    Raises subprocess.CalledProcessError if it cannot read the cubin.
    """
    return {name: int(count) for name, count in re.findall(r"\b([A-Z]+):(\d+)", _cuobjdump("-res-usage", cubin))}


def disassemble(cubin: bytes) -> str:
    """The machine code as text. Raises subprocess.CalledProcessError if the cubin cannot be read."""
    return _cuobjdump("-sass", cubin)


def _cuobjdump(option: str, cubin: bytes) -> str:
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run([program, option, path], check=True, capture_output=True, text=True).stdout
