"""What a backend is tried with: one product after another, each with a name that brings it back.

A name reads ``MxNxK:DATA`` and then, joined by colons, what is not as usual:

    5x13x17:integers                    row-major, NaN between the rows, 16-byte aligned
    5x13x17:normal:contiguous           no gaps
    5x13x17:normal:gap3:offset1:step2   3 elements after each row, 1 before the first, every second one used
    5x13x17:normal:tn:out-t             a column-major, b row-major; out column-major
    5x13x17:normal:batch3:shared        3 matrices, a the same one each time (batch stride 0)
    5x13x17:normal:device1:side-stream  on the second CUDA device, on another stream than the default one
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hgemm.arena import Placement
from hgemm.config import Config
from hgemm.data import DATA
from hgemm.problem import LAYOUTS

ROW_GAP = 8  # 16 bytes, so that the first element of every row stays where whole vectors reach it

# The tile that shapes are built around for a backend whose configurations do not say one.
_USUAL_TILE = Config(128, 128, 32, 2, 64, 32)


@dataclass(frozen=True)
class Case:
    """One product to try. ``gap``, ``step`` and ``offset`` are those of all three tensors, in elements."""

    M: int
    N: int
    K: int
    data: str
    layout: str = "nn"
    out: str = "n"
    gap: int = ROW_GAP
    step: int = 1
    offset: int = 0
    batch: int = 0  # 0: matrices, without a batch dimension
    shared: bool = False
    device: int = 0  # of several CUDA devices; the current one stays the current one
    side_stream: bool = False  # on CUDA, another stream than the default one

    @property
    def name(self) -> str:
        words = [f"{self.M}x{self.N}x{self.K}", self.data]
        words += [self.layout] if self.layout != "nn" else []
        words += [f"out-{self.out}"] if self.out != "n" else []
        words += [f"batch{self.batch}"] if self.batch else []
        words += ["shared"] if self.shared else []
        words += ["contiguous"] if not self.gap else [f"gap{self.gap}"] if self.gap != ROW_GAP else []
        words += [f"step{self.step}"] if self.step != 1 else []
        words += [f"offset{self.offset}"] if self.offset else []
        words += [f"device{self.device}"] if self.device else []
        words += ["side-stream"] if self.side_stream else []
        return ":".join(words)

    @property
    def work(self) -> tuple[int, int]:
        """What cases are sorted by: multiplications, then the length of the name."""
        return self.M * self.N * self.K * max(1, self.batch), len(self.name)

    @property
    def placements(self) -> tuple[Placement, Placement, Placement]:
        """Those of a, b and out."""
        a, b = (letter == "t" for letter in self.layout)
        return (
            Placement(a, self.gap, self.step, self.offset, repeated=self.shared),
            Placement(b, self.gap, self.step, self.offset),
            Placement(self.out == "t", self.gap, self.step, self.offset),
        )

    def shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """That of matrices of this size, with the batch in front if there is one."""
        return (self.batch, rows, columns) if self.batch else (rows, columns)

    @classmethod
    def parse(cls, name: str) -> Case:
        """Raises ValueError, with the part that cannot be read, if ``name`` is none of the above."""
        shape, _, rest = name.partition(":")
        data, *words = rest.split(":")
        sizes = shape.split("x")
        if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
            raise ValueError(f"{name!r} is no case: {shape!r} should read MxNxK, three sizes of at least 1")
        if data not in DATA:
            raise ValueError(f"{name!r} is no case: {data!r} should be one of {', '.join(DATA)}")
        found: dict[str, str | int | bool] = {}
        for word in words:
            number = re.fullmatch(r"(gap|step|offset|batch|device)([1-9][0-9]*)", word)
            if number:
                found[number[1]] = int(number[2])
            elif word in LAYOUTS:
                found["layout"] = word
            elif word == "out-t":
                found["out"] = "t"
            elif word == "contiguous":
                found["gap"] = 0
            elif word in ("shared", "side-stream"):
                found[word.replace("-", "_")] = True
            else:
                raise ValueError(
                    f"{name!r} is no case: {word!r} should be left out or read one of 'contiguous', 'shared', 'out-t', "
                    f"{', '.join(map(repr, LAYOUTS))}, 'side-stream', or 'gap', 'step', 'offset', 'batch' or 'device' "
                    "with a number"
                )
        if found.get("shared") and not found.get("batch"):
            raise ValueError(f"{name!r} is no case: 'shared' needs a batch, as in 'batch3:shared'")
        M, N, K = map(int, sizes)
        return cls(M, N, K, data, **found)  # type: ignore[arg-type]


def tile_of(config: str | None) -> Config:
    """The tile that the configuration of this name has; a usual one if the name, a user's own, does not say."""
    try:
        return Config.parse(config) if config else _USUAL_TILE
    except ValueError:
        return _USUAL_TILE


def cases(config: str | None, device_type: str, quick: bool) -> list[Case]:
    """Shapes around the tile of ``config``: one row, ragged edges, K below and around a tile and the ring of stages;
    every kind of data; every layout, batches, strides and offsets.

    Few and small if ``quick``; with many tiles only on a GPU, because elsewhere kernels are interpreted.
    """
    tile = tile_of(config)
    M, N, K, ring = tile.tile_m, tile.tile_n, tile.tile_k, tile.tile_k * tile.stages
    less = max(8, N - 8)
    if quick:
        return [
            Case(1, 8, 8, "normal"),
            Case(5, 13, 17, "integers"),
            Case(8, 16, 24, "limits", layout="tt", out="t"),
            Case(9, 24, 40, "nan", layout="tn", gap=0),
            Case(7, less, K + 8, "one-hot", layout="nt"),
            Case(9, 24, 40, "integers", batch=3, shared=True),
            Case(M - 1, N, K, "signs", gap=0),
            Case(M + 1, N + 8, ring + 8, "integers"),
            Case(M + 1, N + 8, ring + 8, "normal"),
        ]
    small = [(1, 1, 1), (3, 1, 1), (1, 8, 8), (5, 13, 17), (8, 16, 24)]
    shapes = [
        *small,
        (1, N, K + 8),
        (7, less, max(8, K - 8)),
        (M - 1, N, ring - 8),
        (M, less, ring),
        (M, N, K),
        (M + 1, N + 8, ring + 8),
        (2 * M + 1, 3 * N - 8, 2 * ring + 8),
    ]
    ragged = [(M + 1, N + 8, ring + 8), (7, less + 1, K + 9), (9, 24, 40)]
    usual = ("integers", "signs", "one-hot", "normal", "positive")
    listed = [Case(*shape, data) for shape in [*shapes, *_many_tiles(tile, device_type)] for data in usual]
    listed += [Case(*shape, data) for shape in [*small, *ragged] for data in DATA if data not in usual]
    listed += [Case(*shape, "integers", gap=0) for shape in shapes]
    for shape in ragged:
        for layout in LAYOUTS:
            listed += [
                Case(*shape, "integers", layout=layout, out="t"),
                Case(*shape, "one-hot", layout=layout, gap=1),
                Case(*shape, "normal", layout=layout, batch=3),
                Case(*shape, "integers", layout=layout, gap=0, batch=2, shared=True),
            ]
    for offset in range(1, 8):
        listed.append(Case(*ragged[1], "one-hot", layout=LAYOUTS[offset % 4], gap=offset % 3, offset=offset))
    listed += [Case(*shape, "integers", step=2, gap=3, offset=1) for shape in ragged[1:]]
    return sorted(dict.fromkeys(listed), key=lambda case: case.work)


def _many_tiles(tile: Config, device_type: str) -> list[tuple[int, int, int]]:
    if device_type != "cuda":
        return []
    M, N, ring = tile.tile_m, tile.tile_n, tile.tile_k * tile.stages
    return [(M - 1, N + 8, 4104), (17 * M + 3, 9 * N + 8, ring - 8), (2 * M + 7, 33 * N + 8, tile.tile_k)]
