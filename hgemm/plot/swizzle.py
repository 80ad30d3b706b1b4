"""Why rows are swizzled: the shared-memory banks that one phase of ldmatrix touches, plain and swizzled.

Shared memory delivers 32 banks of 4 bytes at a time. ldmatrix.x4 works in four phases, in each of which 8 lanes name 16
bytes; the 8 are delivered in one pass if they lie in 8 different groups of 4 banks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from hgemm.plot import style
from hgemm.plot.mechanism import Functions, Kernel, Options, Picture, footer, kernel

CHUNK_BYTES = 16
GROUPS = 8
"""Groups of 4 banks, 16 bytes, across the 32 banks."""
PHASE_LANES = 8

DEFAULT = ("cuda_tma:128x128x64_s3_w64x32", "cuda_tma:128x128x32_s3_w64x32")

CELL_INCHES = 0.205
PANEL_INCHES = 3.9
GOOD, BAD = style.BLUE, style.VERMILLION


@dataclass(frozen=True)
class Layout:
    """A tile of one operand, stored plainly or swizzled: rows of ``row_bytes``, and how ldmatrix meets them."""

    span: int
    """Of the swizzle in bytes; 0: plain."""
    row_bytes: int
    phase: tuple[int, ...]
    """Byte offsets that the first 8 lanes of the first warp name in its first ldmatrix."""
    passes: dict[int, int]
    """How many phases take so many passes, over every ldmatrix of all warps in one stage."""
    cells: dict[int, tuple[int, int]]
    """What lies at each 16-byte offset of the first rows: the row, and which 16 bytes of it."""


@dataclass(frozen=True)
class Operand:
    """A in its rows along K, or B in its boxes of 64 columns."""

    name: str
    kernel: Kernel
    plain: Layout
    swizzled: Layout

    @property
    def used(self) -> Layout:
        """As the kernel itself stores it."""
        return self.plain if "noswizzle" in self.kernel.config.config.flags else self.swizzled

    @property
    def heading(self) -> str:
        shape, rows = self.kernel.config.config, self.plain.row_bytes
        if self.name == "A":
            return f"A, tiles of K = {shape.tile_k}: rows of {rows} bytes, ldmatrix.x4"
        return f"B, the first of {shape.tile_n // 64} boxes of 64 columns: rows of {rows} bytes, ldmatrix.x4.trans"


def passes(offsets: tuple[int, ...]) -> int:
    """Passes over shared memory that 16-byte reads at these offsets take: the most of them in one group of banks."""
    chunks = {offset // CHUNK_BYTES for offset in offsets}
    return max(Counter(chunk % GROUPS for chunk in chunks).values())


def operand(functions: Functions, name: str) -> Operand:
    """What ldmatrix reads of A or B in a kernel, as the kernel's own functions say."""
    chosen = functions.kernel
    shape = chosen.config.config
    row_bytes = min(128, 2 * shape.tile_k) if name == "A" else 128
    is_swizzled = "noswizzle" not in shape.flags
    fragments = (shape.warp_m if name == "A" else shape.warp_n) // 16
    phases = [
        tuple(functions.ldmatrix_offset(name, warp, lane, fragment, step) for lane in range(first, first + PHASE_LANES))
        for warp in range(shape.warps)
        for fragment in range(fragments)
        for step in range(shape.tile_k // 16)
        for first in range(0, 32, PHASE_LANES)
    ]
    # The swizzle is an exclusive or with bits that it leaves alone: applied once more, it undoes itself.
    other = [tuple(functions.swizzle(row_bytes, offset) for offset in phase) for phase in phases]
    plain, swizzled = (other, phases) if is_swizzled else (phases, other)
    return Operand(
        name, chosen, _layout(functions, 0, row_bytes, plain), _layout(functions, row_bytes, row_bytes, swizzled)
    )


def _layout(functions: Functions, span: int, row_bytes: int, phases: list[tuple[int, ...]]) -> Layout:
    shown = PHASE_LANES * row_bytes
    cells = {
        functions.swizzle(span, offset): (offset // row_bytes, offset % row_bytes // CHUNK_BYTES)
        for offset in range(0, shown, CHUNK_BYTES)
    }
    return Layout(span, row_bytes, phases[0], dict(sorted(Counter(map(passes, phases)).items())), cells)


def picture(options: Options) -> Picture:
    """A of both lengths of rows, and B; with a configuration chosen, its A and its B. Raises BuildError."""
    if options.config:
        functions = Functions(options.config)
        operands = [operand(functions, "A"), operand(functions, "B")]
    else:
        long, short = (Functions(kernel(name)) for name in DEFAULT)
        operands = [operand(long, "A"), operand(short, "A"), operand(long, "B")]

    heights = [CELL_INCHES * (PHASE_LANES * each.plain.row_bytes // 128 + 1) for each in operands]
    above, gap, top, bottom = 0.66, 0.2, 0.72, 0.62
    height = top + sum(heights) + len(operands) * (above + gap) + bottom
    with style.context():
        figure = style.new_figure(height)
        y = height - top
        for each, inches in zip(operands, heights, strict=True):
            figure.text(0.012, (y - 0.02) / height, each.heading, fontsize=10, fontweight="bold", va="top")
            y -= above + inches
            for left, layout in ((0.6, each.plain), (0.6 + PANEL_INCHES + 0.33, each.swizzled)):
                axes = style.add_axes(figure, left, y, PANEL_INCHES, inches)
                _panel(
                    axes, layout, numbered=layout is each.plain, is_marked=bool(options.config) and layout is each.used
                )
            y -= gap
        style.title(
            figure,
            "Bank conflicts: what 8 lanes of one ldmatrix phase touch in shared memory",
            "a line of a grid is 128 bytes, once across the 32 banks; lanes in one column are served one after another",
        )
        labels = dict.fromkeys(each.kernel.label for each in operands)
        footer(
            figure,
            "Filled: the first 16 bytes of a row, which a lane of warp 0 names in the first phase. Grey numbers: which "
            "16 bytes of the row lie there.",
            "All other phases, of every warp, fragment and k-step, take as many passes as the one shown.",
            " · ".join(labels),
        )
    return Picture(figure, {"operands": [_facts(each) for each in operands]})


def _facts(each: Operand) -> dict[str, object]:
    for layout in (each.plain, each.swizzled):
        assert set(layout.passes) == {passes(layout.phase)}, "the footer says that all phases are alike"
    layouts = {"plain": each.plain, "swizzled": each.swizzled}
    return {
        "kernel": each.kernel.label,
        "operand": each.name,
        "row_bytes": each.plain.row_bytes,
        **{
            name: {
                "span": layout.span,
                "offsets": list(layout.phase),
                "passes": passes(layout.phase),
                "phases_by_passes": layout.passes,
            }
            for name, layout in layouts.items()
        },
    }


def _panel(axes: Axes, layout: Layout, numbered: bool, is_marked: bool) -> None:
    lines = PHASE_LANES * layout.row_bytes // 128
    lanes = {offset: lane for lane, offset in enumerate(layout.phase)}
    count = passes(layout.phase)
    colour = GOOD if count == 1 else BAD
    axes.set(xlim=(0, GROUPS), ylim=(lines + 1, 0))
    axes.axis("off")
    for offset, (_, chunk) in layout.cells.items():
        x, y = offset // CHUNK_BYTES % GROUPS, offset // 128
        is_read = offset in lanes
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour if is_read else "white", edgecolor="#b8bcc0", lw=0.7))
        text = str(chunk)
        look: dict[str, Any] = {"fontsize": 7, "color": "#9aa0a6"}
        if is_read:
            text, look = f"lane {lanes[offset]}", {"fontsize": 8, "color": "white", "fontweight": "bold"}
        axes.text(x + 0.5, y + 0.52, text, ha="center", va="center_baseline", **look)
    hits = Counter(offset // CHUNK_BYTES % GROUPS for offset in layout.phase)
    for group in range(GROUPS):
        axes.text(group + 0.5, -0.14, f"{4 * group}-{4 * group + 3}", ha="center", fontsize=7, color=style.MUTED)
        weight = "bold" if hits[group] == count else "normal"
        ink = colour if hits[group] else style.MUTED
        axes.text(
            group + 0.5,
            lines + 0.6,
            str(hits[group]),
            ha="center",
            va="center",
            fontsize=8,
            fontweight=weight,
            color=ink,
        )
    if numbered:
        axes.text(-0.12, -0.14, "banks", ha="right", fontsize=7, color=style.MUTED)
        axes.text(-0.12, lines + 0.6, "lanes", ha="right", va="center", fontsize=7, color=style.MUTED)
        rows = 128 // layout.row_bytes
        for line in range(lines):
            name = f"row {line}" if rows == 1 else f"rows {rows * line}, {rows * line + rows - 1}"
            axes.text(-0.12, line + 0.52, name, ha="right", va="center_baseline", fontsize=7, color=style.MUTED)
    storage = f"{layout.span}-byte swizzle" if layout.span else "plain"
    whose = " (this kernel)" if is_marked else ""
    axes.text(0, -1.05, f"{storage}{whose}: {_verdict(layout)}", fontsize=9.5, color=colour, fontweight="bold")


def _verdict(layout: Layout) -> str:
    count = passes(layout.phase)
    return (
        "1 pass, no conflict" if count == 1 else f"{count} passes, {'an' if count == 8 else 'a'} {count}-way conflict"
    )
