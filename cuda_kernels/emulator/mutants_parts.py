"""Faults planted in parts.cuh: what a block leaves of a tile of C that is not its alone, and how parts are added."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant
from hgemm.cuda_kernels.emulator.mutants_tail import ALL_CUT, LAST_CUT, TAIL


def _parts(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    shape: tuple[int, int, int] = ALL_CUT,
    batch: int = 1,
    part_starts: tuple[int, ...] = (),
) -> Mutant:
    config = ("tma", TAIL, shape, batch)
    mutant = Mutant(f"parts-{name}", what, "parts.cuh", original, changed, caught_by, *config, resident_blocks=3)
    return Mutant(**{**vars(mutant), "part_starts": part_starts})


MUTANTS = (
    # what a block leaves
    _parts(
        "piece-in-place-of-another",
        "all pieces of a warp lie in one place",
        "const int piece = warp * OF_WARP + down;",
        "const int piece = down;",
        "race",
    ),
    # how it is added
    _parts(
        "no-wait-for-kernel",
        "adds what the first kernel may still be writing",
        "  ptx::griddepcontrol_wait();\n",
        "",
        "race",
    ),
    _parts(
        "one-part-less",
        "the last part is left out",
        "? slots.count : 0;",
        "? slots.count - 1 : 0;",
        VALUES,
    ),
    _parts(
        "one-part-more",
        "adds a part that belongs to another tile, or that nobody has written",
        "? slots.count : 0;",
        "? slots.count + 1 : 0;",
        "out-of-bounds",
        "uninitialised",
        VALUES,
    ),
    _parts(
        "rows-past-the-last",
        "reads sums of rows that are not in C, which nobody leaves",
        "const uint32_t count = Pieces::reaches(c.M, c.N, place, lane) ? slots.count : 0;",
        "const uint32_t count = slots.count;",
        "uninitialised",
    ),
    _parts(
        "first-part-again",
        "adds the first part as often as there are parts",
        "slots.first + first + i",
        "slots.first",
        VALUES,
    ),
    _parts(
        "last-part-first",
        "adds the parts from the last to the first",
        "slots.first + first + i",
        "slots.first + (count - 1 - first - i)",
        VALUES,
        shape=LAST_CUT,
        part_starts=(0, 8, 16),
    ),
    _parts(
        "adds-another-tile",
        "the sums of each batch go to the first",
        "            tile.batch};",
        "            0};",
        "unwritten-output",
        VALUES,
        batch=2,
    ),
)
