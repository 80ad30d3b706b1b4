"""What a GPU answers to single instructions, recorded once, and what the emulator answers to the same.

    python -m hgemm.cuda_kernels.emulator.golden          records tests/golden/instructions.json; needs a GPU with TMA
    python -m hgemm.cuda_kernels.emulator.golden --check  compares the emulator with it; exit status 1 if they differ

Inputs are made here by a formula, so the file holds answers only: of each case the bits that the output has changed,
compressed. All must agree but those of products of real numbers, whose last bits depend on the order of the sum: these
cases are called "real" and are recorded to show by how much.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hgemm.cuda_kernels.compilation import FOLDER

FILE = FOLDER.parent / "tests" / "golden" / "instructions.json"
SOURCE = Path(__file__).with_name("golden.cu")

INSTRUCTIONS = (
    "ldmatrix_x4",
    "ldmatrix_x4_trans",
    "mma_f16",
    "mma_bf16",
    "pack",
    "cp_async_16",
    "cp_async_8",
    "cp_async_4",
    "mma_f16_f16",
)
SPANS = (128, 64, 32, 0)
ROWS, STRIDE, BOX_ROWS = 24, 160, 16  # of the tensor; its batch has two
PLACES = ((0, 0, 0), (8, 3, 1), (-8, -2, 0), (40, 1, 0), (-8, 20, 1), (96, 4, 1), (0, 23, 2))  # column, row, batch
FULL_COLUMNS, CUT_COLUMNS = 128, 100  # whole chunks of 8 elements, and not


@dataclass(frozen=True)
class Case:
    """One launch: the bytes before it, and which of them it changes."""

    name: str
    function: str
    arguments: tuple[int, ...]
    given: np.ndarray  # what the kernel reads
    output: np.ndarray  # what is there before it writes
    store: bool = False

    def run(self, library: ctypes.CDLL, place: Callable[[np.ndarray], Any], fetch: Callable[[Any], np.ndarray]) -> str:
        """The answer, as `decode` reads it. `place` puts an array where kernels find it, `fetch` brings it back."""
        given, output = place(self.given), place(self.output)
        call = getattr(library, self.function)
        call.restype = ctypes.c_char_p
        pointers = [ctypes.c_void_p(_address(memory)) for memory in (given, output)]
        if self.function == "golden_instruction":
            error = call(self.arguments[0], *pointers)
        else:  # a store reads the box and writes the tensor
            error = call(int(self.store), *(reversed(pointers) if self.store else pointers), *self.arguments)
        if error:
            raise RuntimeError(f"{self.name}: {error.decode()}")
        changed = fetch(output).view(np.uint8) ^ self.output.view(np.uint8)
        return base64.b64encode(zlib.compress(changed.tobytes(), 9)).decode()

    def decode(self, answer: str) -> np.ndarray:
        """The output as bytes."""
        return np.frombuffer(zlib.decompress(base64.b64decode(answer)), np.uint8) ^ self.output.view(np.uint8)


def cases() -> Iterator[Case]:
    """Every case, in a fixed order."""
    for number, name in enumerate(INSTRUCTIONS):
        # A real sum that is rounded to fp16 is a step off as soon as its order makes any difference.
        kinds = {"mma_f16": ("integers", "real"), "mma_bf16": ("integers", "real"), "mma_f16_f16": ("integers",)}
        for kind in kinds.get(name, ("",)):
            yield Case(
                f"{name}{' ' + kind if kind else ''}",
                "golden_instruction",
                (number,),
                _input(name, kind),
                np.full(128, 0xDEADBEEF, np.uint32),
            )
    for store in (False, True):
        for span in SPANS:
            columns = span // 2 or 48
            for width in (FULL_COLUMNS, CUT_COLUMNS):
                for place in PLACES:
                    if store and min(place) < 0:  # the device stops with an illegal instruction
                        continue
                    tensor = random_words(2 * ROWS * STRIDE // 2, span + width)
                    box = random_words(BOX_ROWS * columns // 2, span + 1)
                    yield Case(
                        f"tma_{'store' if store else 'load'}_3d span {span} columns {width} at {place}",
                        "golden_tma",
                        (ROWS, width, STRIDE, BOX_ROWS, columns, span, *place),
                        box if store else tensor,
                        tensor if store else box,
                        store,
                    )


def random_words(count: int, seed: int) -> np.ndarray:
    """32-bit words by a formula of our own, which no library changes."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    state ^= state >> np.uint64(31)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    return (state >> np.uint64(32)).astype(np.uint32)


def record() -> dict[str, Any]:
    """The answers of the GPU of this machine."""
    import torch

    from hgemm.cuda_kernels.build import build_library

    text = _text()
    library = ctypes.CDLL(str(build_library("golden", text, (9, 0))))

    def fetch(memory: Any) -> np.ndarray:
        torch.cuda.synchronize()
        return memory.cpu().numpy()

    place = lambda array: torch.from_numpy(array.view(np.int32).copy()).cuda()  # noqa: E731
    answers = {case.name: case.run(library, place, fetch) for case in cases()}
    return {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "answers": answers}


def build_emulated() -> Path:
    """Path of golden.cu compiled for the emulator. Raises BuildError."""
    from hgemm.cuda_kernels.emulator.build import build_library

    return build_library("golden", _text())


def emulate() -> dict[str, str]:
    """The answers of the emulator."""
    library = ctypes.CDLL(str(build_emulated()))
    aligned = _Aligned()
    return {case.name: case.run(library, aligned.place, lambda array: array) for case in cases()}


def differences(recorded: dict[str, str], emulated: dict[str, str]) -> list[str]:
    """Cases in which the emulator is not right, each with what differs."""
    wrong = []
    known = {case.name: case for case in cases()}
    for name, answer in recorded.items():
        if name not in known or name not in emulated:
            wrong.append(f"{name}: the emulator has no such case")
            continue
        gpu, cpu = (known[name].decode(text) for text in (answer, emulated[name]))
        if "real" in name:
            # 17 terms of at most 1 in absolute value, each addition good to 22 bits at least.
            error = np.abs(gpu.view(np.float32) - cpu.view(np.float32)).max()
            if not error <= 17 * 17 * 2.0**-22:
                wrong.append(f"{name}: differs by {error}")
        elif np.any(gpu != cpu):
            gpu, cpu = gpu.view(np.uint16), cpu.view(np.uint16)
            places = np.flatnonzero(gpu != cpu)
            first = int(places[0])
            wrong.append(
                f"{name}: {places.size} of {gpu.size} elements differ, the first at {first}: {gpu[first]:#06x} on the "
                f"GPU, {cpu[first]:#06x} emulated"
            )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hgemm.cuda_kernels.emulator.golden", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the emulator with the recorded answers")
    parser.add_argument("--file", type=Path, default=FILE, help="where the answers are kept")
    options = parser.parse_args()
    if options.check:
        wrong = differences(json.loads(options.file.read_text())["answers"], emulate())
        print("\n".join(wrong) or "the emulator agrees with the recorded answers")
        return 1 if wrong else 0
    recorded = record()
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{len(recorded['answers'])} answers of {recorded['device']} written to {options.file}")
    return 0


class _Aligned:
    """Puts arrays at addresses that TMA takes."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []

    def place(self, array: np.ndarray) -> np.ndarray:
        memory = np.empty(array.nbytes + 64, np.uint8)
        start = -memory.ctypes.data % 64
        copy = memory[start : start + array.nbytes].view(array.dtype)
        copy[...] = array
        self._kept.append(memory)
        return copy


def _address(memory: Any) -> int:
    return int(memory.ctypes.data if isinstance(memory, np.ndarray) else memory.data_ptr())


def _text() -> str:
    return f'#line 1 "golden.cu"\n{SOURCE.read_text()}'


def _input(name: str, kind: str) -> np.ndarray:
    """What the kernel of an instruction reads, 128 words a piece."""
    words = random_words(384, len(name) + len(kind))
    if name == "pack":
        floats = words[:128].view(np.float32).copy()  # every exponent, infinities and NaNs among them
        near = np.array(
            [1, 2048, 65504, 65519.99, 65520, 65536, 6.1e-5, 5.96e-8, 2.98e-8, 1e-10, 3.4e38, 0], np.float32
        )
        ties = np.float32(1) + np.arange(8, dtype=np.float32) * np.float32(2**-11)
        for start, values in ((0, near), (16, -near), (32, ties), (48, 1 + np.arange(8) * np.float32(2**-8))):
            floats[start : start + len(values)] = values
        floats[64:68] = [np.inf, -np.inf, np.nan, -np.nan]
        return floats.view(np.uint32)
    if not name.startswith("mma"):
        return words
    scale = words.view(np.uint16).astype(np.float64)
    values = (scale % 9 - 4 if kind == "integers" else scale / 32768 - 1).astype(np.float32)
    a_and_b, d = _to_16_bits(values[:512], name.endswith("bf16")), values[512:640]
    return np.concatenate([a_and_b.view(np.uint32), d.view(np.uint32)])


def _to_16_bits(values: np.ndarray, bfloat16: bool) -> np.ndarray:
    if not bfloat16:
        return values.astype(np.float16).view(np.uint16)
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # truncated: any bf16 will do


if __name__ == "__main__":
    sys.exit(main())
