"""Config: one compiled or tuned variant of a kernel, its name and its parser.

One grammar serves the CUDA and the Triton kernels:

    <tile M>x<tile N>x<tile K>_s<stages>_w<warp M>x<warp N>[_flag...]

as in ``128x128x64_s3_w64x32`` or ``256x128x64_s4_w64x64_rotate_persistent_store-tma``. A block computes a tile of
``tile_m x tile_n`` elements of C in steps of ``tile_k`` along K, with ``stages`` steps in flight in shared memory; each
of its warps owns ``warp_m x warp_n`` of them. What is not named is the default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GRAMMAR = "<tile M>x<tile N>x<tile K>_s<stages>_w<warp M>x<warp N>[_flag...], as in 128x128x64_s3_w64x32"

# Split-K: how many parts of K, equal in steps, are summed by programs of their own; their sums are then added.
SPLITS = {"split2": 2, "split4": 4, "split8": 8}

# Clusters: how many blocks, one above the other and side by side in C, share tiles by multicast. Those side by side
# share a tile of A, those one above the other one of B.
CLUSTERS = {
    "multicast": (1, 2),
    "multicast-b": (2, 1),
}

# In the order in which a name spells them.
FLAGS = ("noswizzle", "rotate", "producer", "persistent", *CLUSTERS, "specialized", "store-tma", "tail", *SPLITS)

THREADS_PER_WARP = 32

_NUMBER = r"([1-9][0-9]*)"
_TILE = re.compile(f"{_NUMBER}x{_NUMBER}x{_NUMBER}")
_STAGES = re.compile(f"s{_NUMBER}")
_WARP = re.compile(f"w{_NUMBER}x{_NUMBER}")


@dataclass(frozen=True)
class Config:
    """Tile sizes in elements, stages in steps of ``tile_k``. Equal configurations have equal names, and the reverse.

    Raises ValueError for a size below 1, a warp tile that does not divide the block's, an unknown or repeated flag, and
    two splits of K.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warp_m: int
    warp_n: int
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("tile_m", "tile_n", "tile_k", "stages", "warp_m", "warp_n"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, found {getattr(self, field)}")
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            warp, block = f"{self.warp_m}x{self.warp_n}", f"{self.tile_m}x{self.tile_n}"
            raise ValueError(f"a warp tile of {warp} does not divide a block tile of {block}")
        for flag in self.flags:
            if flag not in FLAGS:
                raise ValueError(f"unknown flag {flag!r}; flags are {', '.join(FLAGS)}")
            if self.flags.count(flag) > 1:
                raise ValueError(f"flag {flag!r} is given more than once")
        if len(splits := [flag for flag in self.flags if flag in SPLITS]) > 1:
            raise ValueError(f"K is split once, found {' and '.join(splits)}")
        if len(clusters := [flag for flag in self.flags if flag in CLUSTERS]) > 1:
            raise ValueError(f"a block is of one cluster, found {' and '.join(clusters)}")
        object.__setattr__(self, "flags", tuple(flag for flag in FLAGS if flag in self.flags))

    @property
    def name(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return "_".join((tile, f"s{self.stages}", f"w{self.warp_m}x{self.warp_n}", *self.flags))

    def __str__(self) -> str:
        return self.name

    @property
    def warps(self) -> int:
        """Warps of a block that hold a part of the output tile."""
        return (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    @property
    def threads(self) -> int:
        """Threads of those warps."""
        return THREADS_PER_WARP * self.warps

    @property
    def parts(self) -> int:
        """Into how many parts K is split; 1 if it is not."""
        return next((SPLITS[flag] for flag in self.flags if flag in SPLITS), 1)

    @property
    def cluster_shape(self) -> tuple[int, int]:
        """Blocks of a cluster: one above the other in C, which share tiles of B by multicast, and side by side, which
        share tiles of A."""
        return next((CLUSTERS[flag] for flag in self.flags if flag in CLUSTERS), (1, 1))

    @property
    def cluster(self) -> int:
        """Blocks that share tiles by multicast; 1 if none do."""
        down, across = self.cluster_shape
        return down * across

    def tiles(self, M: int, N: int) -> tuple[int, int]:
        """Rows and columns of tiles that are computed for ``M x N`` elements of C. Clusters are whole: their last
        tiles may lie outside of C."""
        down, across = self.cluster_shape
        return down * -(-M // (down * self.tile_m)), across * -(-N // (across * self.tile_n))

    @classmethod
    def parse(cls, name: str) -> Config:
        """The configuration that ``name`` spells; ``Config.parse(config.name) == config``.

        Raises ValueError, naming the grammar and the part of ``name`` that breaks it.
        """

        def bad(what: str) -> ValueError:
            return ValueError(f"{name!r} is not the name of a configuration: {what}; names are {GRAMMAR}")

        parts = name.split("_")
        numbers: list[str] = []
        for position, (pattern, shape) in enumerate(
            ((_TILE, "<tile M>x<tile N>x<tile K>"), (_STAGES, "s<stages>"), (_WARP, "w<warp M>x<warp N>"))
        ):
            if position >= len(parts):
                raise bad(f"part {position + 1}, {shape}, is missing")
            match = pattern.fullmatch(parts[position])
            if match is None:
                raise bad(f"{parts[position]!r} should read {shape}")
            numbers += match.groups()
        tile_m, tile_n, tile_k, stages, warp_m, warp_n = map(int, numbers)
        try:
            config = cls(tile_m, tile_n, tile_k, stages, warp_m, warp_n, tuple(parts[3:]))
        except ValueError as error:
            raise bad(str(error)) from None
        if config.name != name:
            raise bad(f"its flags are out of order, {config.name!r} is how it is written")
        return config


def warp_tile(tile_m: int, tile_n: int, warps: int) -> tuple[int, int]:
    """How ``warps`` warps share a ``tile_m x tile_n`` tile when only their number is known, as for Triton.

    The squarest split; of two equally square ones the one that is taller than wide: 128x256 over 8 warps is 64x64 each,
    128x128 over 8 is 64x32. Raises ValueError if no split is even.
    """
    splits = [
        (tile_m // down, tile_n * down // warps)
        for down in range(1, warps + 1)
        if warps % down == 0 and tile_m % down == 0 and tile_n * down % warps == 0
    ]
    if not splits:
        raise ValueError(f"{warps} warps cannot share a {tile_m}x{tile_n} tile evenly")
    return min(splits, key=lambda split: (max(split), -split[0]))
