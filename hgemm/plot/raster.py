"""Which block computes which tile, in waves of as many blocks as a GPU holds at once, and how full the last one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from hgemm import occupancy
from hgemm.bench.suites import Shape
from hgemm.cuda_kernels.inspect_code import resident_blocks
from hgemm.devices import Device
from hgemm.plot import style
from hgemm.plot.mechanism import Functions, Kernel, Options, Picture, board, footer, kernel
from hgemm.plot.source import NothingToDraw

DEFAULT_KERNEL, DEFAULT_GPU, DEFAULT_SHAPE = "cuda_tma:128x128x64_s3_w64x32", "RTX 5090", Shape(4096, 4096, 4096)

MOST_TILES = 1 << 16
MAP_INCHES = 5.35
"""Room for the map of tiles, in both directions."""
HATCH = "#6f757b"
SMALLEST_NUMBER = 5.5
"""Points: where numbers of the tiles would be smaller, the waves are named instead."""
RASTER_STEP = 8
MOST_NAMED = 40
BAR_INCHES, REMARK_INCHES, MOST_BARS = 0.24, 0.145, 20

COLOURS = ("#cfe3f3", "#f6dcb4", "#bfe3d6", "#eed3e2", "#dddddd", "#f2eeb0")
"""Of the waves, pale enough for black numbers, over and over; hatching and names tell them apart without colour."""


@dataclass(frozen=True)
class Waves:
    """The tiles of one product on one GPU, if every tile took equally long."""

    kernel: Kernel
    device: Device
    shape: Shape
    order: tuple[tuple[int, int], ...]
    """Row and column, in tiles, of what is begun as number 0, 1, 2, ..."""
    blocks: int
    """That a multiprocessor holds at once."""

    @property
    def size(self) -> int:
        """Tiles that are computed at once. Where K is split the blocks of a cluster have one together."""
        config = self.kernel.config.config
        reached = occupancy.reached(max(config.parts, config.cluster), self.device.multiprocessors)
        return reached * self.blocks // config.parts

    @property
    def count(self) -> int:
        return -(-len(self.order) // self.size)

    @property
    def filled(self) -> tuple[int, ...]:
        """Tiles in each wave."""
        return tuple(min(self.size, len(self.order) - first) for first in range(0, len(self.order), self.size))

    @property
    def used(self) -> float:
        """Share of the places of all waves that hold a tile."""
        return len(self.order) / (self.count * self.size)

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles, those outside of C included that clusters have at its edge."""
        return max(row for row, _ in self.order) + 1, max(column for _, column in self.order) + 1


def waves(functions: Functions, device: Device, shape: Shape) -> Waves:
    """Raises NothingToDraw if the GPU cannot run the kernel, or for more tiles than a picture can show."""
    chosen = functions.kernel
    config = chosen.config.config
    if device.compute_capability < chosen.family.minimum_capability:
        needed, found = (
            ".".join(map(str, each)) for each in (chosen.family.minimum_capability, device.compute_capability)
        )
        raise NothingToDraw(f"{chosen.family.backend} needs compute capability {needed}, {device.title} has {found}")
    # The compiler keeps to the registers that let the intended blocks fit; more are not counted on.
    room = resident_blocks(device.compute_capability, 1, chosen.config.shared_bytes, chosen.config.threads)
    if room == 0:
        raise NothingToDraw(
            f"{chosen.label} needs {chosen.config.shared_bytes:,} bytes of shared memory a block, more than "
            f"{device.title} has; take another --config"
        )
    tiles_m, tiles_n = config.tiles(shape.M, shape.N)
    if tiles_m * tiles_n > MOST_TILES:
        raise NothingToDraw(
            f"{shape.M} x {shape.N} is {tiles_m * tiles_n:,} tiles of {config.tile_m} x {config.tile_n}, and a picture "
            f"shows at most {MOST_TILES:,}; take a smaller --mnk"
        )
    # The blocks of a cluster are side by side in C, and in the order as if their tiles were one: see raster.cuh.
    order = tuple(
        (row, column * config.cluster + rank)
        for index in range(tiles_m * tiles_n // config.cluster)
        for row, column in [functions.raster(index, tiles_m, tiles_n // config.cluster)]
        for rank in range(config.cluster)
    )
    return Waves(chosen, device, shape, order, min(room, chosen.config.blocks_per_multiprocessor))


def picture(options: Options) -> Picture:
    """The map of tiles, and beside it how full each wave is. Raises BuildError, and NothingToDraw as ``waves``."""
    chosen = options.config or kernel(DEFAULT_KERNEL)
    found = waves(Functions(chosen), options.gpu or board(DEFAULT_GPU), options.mnk or DEFAULT_SHAPE)
    rows, columns = found.tiles
    cell = min(MAP_INCHES / columns, MAP_INCHES / rows, 0.6)
    names = _bar_names(found)
    remarks = _remarks(found)
    top, bottom, left = 0.98, 0.86 + REMARK_INCHES * len(remarks), 0.5
    height = top + max(cell * rows, BAR_INCHES * (len(names) + 1)) + bottom
    with style.context(), mpl.rc_context({"hatch.linewidth": 0.7}):
        figure = style.new_figure(height)
        _map(style.add_axes(figure, left, height - top - cell * rows, cell * columns, cell * rows), found, 72 * cell)
        name_inches = max(style.text_points(text, 8) for text in names.values()) / 72 + 0.12
        bars = left + cell * columns + 0.3 + name_inches
        bars_height = BAR_INCHES * len(names)
        _bars(
            style.add_axes(figure, bars, height - top - bars_height, style.WIDTH_INCHES - bars - 0.55, bars_height),
            found,
            names,
        )
        figure.text(
            (bars - name_inches) / style.WIDTH_INCHES,
            (height - top + 0.06) / height,
            "how full each wave is, and its tiles",
            fontsize=8.5,
        )
        figure.text(
            (bars - name_inches) / style.WIDTH_INCHES,
            (height - top - bars_height - 0.08) / height,
            f"{_percent(found.used)} of all places used",
            fontsize=8.5,
            fontweight="bold",
            va="top",
        )
        style.title(figure, _heading(found), _subtitle(found))
        footer(
            figure,
            f"{_legend(found, 72 * cell)} As if all tiles took equally long.",
            *remarks,
            "Blocks a multiprocessor: what the kernel is compiled for, where shared memory has room for them.",
            chosen.label,
        )
    return Picture(figure, _facts(found))


def _heading(found: Waves) -> str:
    shape = found.shape
    product = f"{shape.M}³" if shape.M == shape.N == shape.K else f"{shape.M} x {shape.N} x {shape.K}"
    which = f"the last of {found.count} is" if found.count > 1 else "a single one,"
    return f"Waves of tiles, {found.device.title}, {product}: {which} {_percent(found.filled[-1] / found.size)} full"


def _subtitle(found: Waves) -> str:
    (rows, columns), config = found.tiles, found.kernel.config.config
    blocks = f"{found.blocks} block{'s' * (found.blocks > 1)}"
    places = f"{found.device.multiprocessors} multiprocessors x {blocks} = {found.size} tiles at a time, a wave"
    if config.parts > 1:
        places = f"{found.size} tiles at a time, a wave, each by a cluster of {config.parts} blocks"
    return f"{rows} x {columns} tiles of {config.tile_m} x {config.tile_n}; {places}"


def _remarks(found: Waves) -> list[str]:
    """What is different about tiles that are not a block's alone."""
    remarks, config = [], found.kernel.config.config
    if (found.tiles[1] - 1) * config.tile_n >= found.shape.N:
        remarks.append("The last column lies outside of C: its blocks copy for their neighbours and store nothing.")
    if "tail" in config.flags and found.filled[-1] < found.size:
        remarks.append("The tiles of the last wave are cut along K and shared out among all blocks, where that pays.")
    return remarks


def _percent(share: float) -> str:
    """Whole percents, and 100% only for all."""
    if share < 1 and round(100 * share) == 100:
        return "over 99%"
    return f"{100 * share:.0f}%" if share >= 0.01 else "under 1%"


def _legend(found: Waves, cell_points: float) -> str:
    if _number_size(found, cell_points):
        return "Numbers are the order in which tiles are begun."
    return "Numbers are waves; the line follows the tiles of the first one in the order in which they are begun."


def _facts(found: Waves) -> dict[str, Any]:
    return {
        "kernel": found.kernel.label,
        "gpu": found.device.title,
        "M": found.shape.M,
        "N": found.shape.N,
        "K": found.shape.K,
        "tiles": list(found.tiles),
        "multiprocessors": found.device.multiprocessors,
        "blocks_per_multiprocessor": found.blocks,
        "tiles_by_wave": list(found.filled),
        "places_used": found.used,
        "order": [list(tile) for tile in found.order],
    }


def _map(axes: Axes, found: Waves, cell_points: float) -> None:
    rows, columns = found.tiles
    wave = np.empty((rows, columns), dtype=int)
    for index, tile in enumerate(found.order):
        wave[tile] = index // found.size
    palette = np.array([to_rgb(colour) for colour in COLOURS])
    # Half a tile further out than imshow would, so that a tile's corner is its row and column.
    axes.imshow(palette[wave % len(COLOURS)], extent=(0, columns, rows, 0), interpolation="nearest", aspect="auto")
    if found.filled[-1] < found.size:
        for row, column in found.order[-found.filled[-1] :]:
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor="none", edgecolor=HATCH, hatch="////", lw=0))
    if cell_points > 5:
        lines = [[(0, row), (columns, row)] for row in range(rows + 1)]
        lines += [[(column, 0), (column, rows)] for column in range(columns + 1)]
        axes.add_collection(LineCollection(lines, colors="white", linewidths=0.5))
    axes.add_collection(LineCollection(_borders(wave), colors=style.INK, linewidths=1.4 if cell_points > 5 else 0.6))
    if size := _number_size(found, cell_points):
        for index, (row, column) in enumerate(found.order):
            text = axes.text(column + 0.5, row + 0.53, str(index), fontsize=size, ha="center", va="center_baseline")
            text.set_path_effects([withStroke(linewidth=2, foreground="white", alpha=0.8)])
    else:
        _path(axes, found)
        _name_waves(axes, wave, found.count)
    for axis, count, name in ((axes.xaxis, columns, "columns of tiles"), (axes.yaxis, rows, "rows of tiles")):
        axis.set_ticks(range(0, count + 1, max(RASTER_STEP, -(-count // 64) * RASTER_STEP)))
        if count * cell_points > 1.3 * style.text_points(name, 8):
            axis.set_label_text(name, fontsize=8)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(labelsize=7, length=2, pad=1.5)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _number_size(found: Waves, cell_points: float) -> float:
    """The size of the numbers in tiles of this width; 0 if they would be too small to read."""
    size = min(8.0, cell_points / (0.8 * len(str(len(found.order)))))
    return size if size >= SMALLEST_NUMBER else 0


def _borders(wave: np.ndarray) -> list[list[tuple[int, int]]]:
    """Edges between tiles of different waves, and around all."""
    padded = np.pad(wave, 1, constant_values=-1)
    right = np.argwhere(padded[1:-1, :-1] != padded[1:-1, 1:])
    below = np.argwhere(padded[:-1, 1:-1] != padded[1:, 1:-1])
    return [[(x, y), (x, y + 1)] for y, x in right.tolist()] + [[(x, y), (x + 1, y)] for y, x in below.tolist()]


def _path(axes: Axes, found: Waves) -> None:
    """Through the tiles of the first wave in their order."""
    points = [(column + 0.5, row + 0.5) for row, column in found.order[: found.size]]
    axes.plot(*zip(*points, strict=True), color=style.VERMILLION, linewidth=0.9, alpha=0.55, solid_joinstyle="round")
    if len(points) > 1:
        axes.annotate(
            "", points[-1], points[-2], arrowprops={"arrowstyle": "-|>", "color": style.VERMILLION, "linewidth": 0.9}
        )


def _name_waves(axes: Axes, wave: np.ndarray, count: int) -> None:
    """The number of each wave in the middle of its largest part; of many waves, of the first two and the last."""
    for number in range(count) if count <= MOST_NAMED else (0, 1, count - 1):
        inner = wave == number
        while (smaller := _eroded(inner)).any():
            inner = smaller
        tiles = np.argwhere(inner)
        row, column = tiles[np.argmin(((tiles - tiles.mean(axis=0)) ** 2).sum(axis=1))].tolist()
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
        look: dict[str, Any] = {"fontsize": 9, "fontweight": "bold", "ha": "center", "va": "center", "bbox": box}
        axes.text(column + 0.5, row + 0.5, str(number + 1), **look)


def _eroded(mask: np.ndarray) -> np.ndarray:
    """Without the tiles at its edge."""
    padded = np.pad(mask, 1)
    return mask & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]


def _bar_names(found: Waves) -> dict[int | None, str]:
    """The waves that get a bar, with the blocks in each; None stands for those that are left out."""
    numbers: list[int | None] = list(range(found.count))
    if found.count > MOST_BARS:
        numbers = [*range(MOST_BARS - 2), None, found.count - 1]
    names: dict[int | None, str] = {}
    for number in numbers:
        if number is None:
            names[None] = "..."
            continue
        first, size = number * found.size, found.filled[number]
        names[number] = f"wave {number + 1}: {first}" + (f" - {first + size - 1}" if size > 1 else "")
    return names


def _bars(axes: Axes, found: Waves, names: dict[int | None, str]) -> None:
    for place_of_bar, number in enumerate(names):
        if number is None:
            continue
        size = found.filled[number]
        colour = COLOURS[number % len(COLOURS)]
        axes.barh(place_of_bar, 1, height=0.7, facecolor="white", edgecolor=style.GRID, linewidth=0.8)
        hatch = "////" if size < found.size else None
        axes.barh(
            place_of_bar,
            size / found.size,
            height=0.7,
            facecolor=colour,
            edgecolor=style.INK,
            linewidth=0.8,
            hatch=hatch,
        )
        axes.text(1.05, place_of_bar, str(size), fontsize=8, va="center")
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), list(names.values()), fontsize=8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
