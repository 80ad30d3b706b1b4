"""The one table of compiled configurations, and the translation units that are generated from it.

A family is one main loop in one header. A unit is what is compiled at a time: a family for one dtype and one layout,
with all its configurations. Nothing here needs a compiler or a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from hgemm.config import Config

DTYPES = ("f16", "bf16")
LAYOUTS = ("nn", "nt", "tn", "tt")
"""Layouts of A, then B: "n" for row-major, "t" for column-major. The weight of an nn.Linear, as `w.t()`, is "t"."""

GEFORCE_SHARED_BYTES = 101_376
"""Shared memory that one block can use on sm_120 (GeForce RTX 50)."""

WARPGROUP_THREADS = 128


@dataclass(frozen=True)
class KernelConfig:
    """One compiled configuration of a family."""

    config: Config
    blocks_per_multiprocessor: int
    """Blocks meant to share a multiprocessor on the device with room for them; the compiler caps registers by it."""
    shared_bytes: int
    """Dynamic shared memory of a block. The compiler checks it against the kernel's own arithmetic."""
    kernel: str
    """The class template of the kernel: `kernel<T, Config>`."""
    header: str
    """The file that defines it."""
    geforce: bool = True
    """Meant for sm_120: fits 101,376 bytes and compiles there without spills."""
    staged_rows: int = 0
    """Of each warp tile of C, in shared memory at a time for TMA to store them; 0 where it does not."""

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def threads(self) -> int:
        """Of a block: those that multiply, and a warpgroup of producers where there is one."""
        return self.config.threads + (WARPGROUP_THREADS if "producer" in self.config.flags else 0)


@dataclass(frozen=True)
class Family:
    """Kernels of one idea and their configurations."""

    name: str
    backend: str
    idea: str
    minimum_capability: tuple[int, int]
    configs: tuple[KernelConfig, ...]

    def index(self, name: str) -> int:
        """Position of a configuration in the unit's own order. Raises KeyError for a name that is not in the table."""
        for index, kernel in enumerate(self.configs):
            if kernel.name == name:
                return index
        raise KeyError(name)


def _ring_bytes(config: Config, barrier_bytes: int) -> int:
    """A ring of `stages` tiles of A and B in 2-byte elements, with `barrier_bytes` of mbarriers a stage."""
    return config.stages * (2 * config.tile_k * (config.tile_m + config.tile_n) + barrier_bytes)


def _cp_async(name: str, blocks_per_multiprocessor: int) -> KernelConfig:
    config = Config.parse(name)
    staged_c = 2 * config.tile_m * config.tile_n
    shared_bytes = max(_ring_bytes(config, 0), staged_c)
    return KernelConfig(config, blocks_per_multiprocessor, shared_bytes, "hgemm::CpAsyncGemm", "cp_async.cuh")


def _tma(name: str, blocks_per_multiprocessor: int, staged_rows: int | None = None) -> KernelConfig:
    config = Config.parse(name)
    staged_rows = 0 if "store-tma" not in config.flags else config.warp_m if staged_rows is None else staged_rows
    staged_c = config.warps * 2 * staged_rows * config.warp_n
    if "rotate" in config.flags:
        shared_bytes, kernel, header = _ring_bytes(config, 16) + staged_c, "hgemm::TmaRotatingGemm", "tma_rotating.cuh"
    elif "producer" in config.flags:
        shared_bytes, kernel, header = _ring_bytes(config, 16) + staged_c, "hgemm::TmaProducerGemm", "tma_producer.cuh"
    else:
        shared_bytes, kernel, header = _ring_bytes(config, 8), "hgemm::TmaGemm", "tma.cuh"
    geforce = shared_bytes <= GEFORCE_SHARED_BYTES
    return KernelConfig(config, blocks_per_multiprocessor, shared_bytes, kernel, header, geforce, staged_rows)


# For few rows, as in decoding, where the time is that of reading B once: what counts is the bytes on their way. A
# multiprocessor of an H200 needs 29 to 36 KB of them at all times (4.8 TB/s by 0.8 to 1 us, over 132), one of an RTX
# 5090 8 KB (1.79 TB/s by 0.8 us, over 170). A block has STAGES - 1 stages on their way while it multiplies one; several
# blocks a multiprocessor keep on reading while one begins or ends, and then the last, partly filled wave costs nothing
# as long as its blocks alone have enough on their way. A longer tile along K reads more consecutive bytes of each row
# of B^T, which memory delivers a little faster.
FEW_ROWS = (
    # 7 x ((16 + 64) x 128 + 8) bytes: three blocks in 233,472 of Hopper, 180 KB on their way; one on sm_120, 60 KB.
    _tma("16x64x64_s7_w16x16", 3),
    # 4 x ((16 + 64) x 256 + 8) bytes: half the barriers, and 256 consecutive bytes of each row of B^T. Two blocks.
    _tma("16x64x128_s4_w16x16", 2),
    # 3 x ((16 + 64) x 256 + 8) bytes: three blocks, one on sm_120. For 17 to 32 rows too: the two tiles of
    # a column read B at the same time, and twice the blocks share the work more evenly.
    _tma("16x64x128_s3_w16x16", 3),
    # 5 x ((16 + 64) x 256 + 8) bytes: Hopper only, two blocks. A block that is alone has 64 KB of B on their way.
    _tma("16x64x128_s5_w16x16", 2),
    # 3 x ((16 + 64) x 512 + 8) bytes: Hopper only, one block.
    _tma("16x64x256_s3_w16x16", 1),
    # 4 x ((16 + 128) x 128 + 8) bytes: A is read half as often. Three blocks, one on sm_120.
    _tma("16x128x64_s4_w16x32", 3),
    # 3 x ((16 + 128) x 256 + 8) bytes: Hopper only, two blocks.
    _tma("16x128x128_s3_w16x32", 2),
    # 6 x ((32 + 64) x 128 + 8) bytes: three blocks, one on sm_120.
    _tma("32x64x64_s6_w32x16", 3),
    # 4 x ((32 + 64) x 256 + 8) bytes: two blocks, one on sm_120.
    _tma("32x64x128_s4_w32x16", 2),
    # Weights of fewer columns than fill the device with tiles: 4,096 are 64 tiles for 132 multiprocessors.
    _tma("16x64x64_s7_w16x16_split2", 3),
    _tma("16x64x64_s7_w16x16_split4", 3),
    _tma("16x64x64_s7_w16x16_split8", 3),
    _tma("16x64x128_s4_w16x16_split2", 2),
    _tma("16x64x128_s3_w16x16_split2", 3),
    _tma("32x64x128_s4_w32x16_split2", 2),
    # Hopper only, one block.
    _tma("16x64x256_s3_w16x16_split2", 1),
    _tma("32x64x256_s3_w32x16_split2", 1),
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="cp_async",
            backend="cuda_cp_async",
            idea="cp.async into a swizzled ring, ldmatrix, mma.sync",
            minimum_capability=(8, 0),
            configs=(
                _cp_async("128x128x32_s2_w64x32", 2),
                _cp_async("128x128x32_s3_w64x32", 2),
                _cp_async("128x128x32_s3_w64x32_noswizzle", 2),
            ),
        ),
        Family(
            name="tma",
            backend="cuda_tma",
            idea="TMA load, an mbarrier a stage, ldmatrix, mma.sync, fragments double-buffered",
            minimum_capability=(9, 0),
            configs=(
                # 3 x (32,768 + 8) bytes: one block in the 101,376 of sm_120, two on Hopper.
                _tma("128x128x64_s3_w64x32", 2),
                # 3 x (16,384 + 8) bytes: two blocks, with 1,024 reserved for each, in the 102,400 of sm_120.
                _tma("128x128x32_s3_w64x32", 2),
                # 6 x (32,768 + 8) bytes: one block on Hopper, as sm_120 has of the first: what is a second one worth?
                _tma("128x128x64_s6_w64x32", 1),
                # A warp tile of 64x64 does twice the work of 64x32 on 4/3 of the bytes that ldmatrix reads.
                # 2 x (49,152 + 8) bytes: one block on sm_120 too.
                _tma("128x256x64_s2_w64x64", 1),
                # 4 x (49,152 + 8) bytes: Hopper only.
                _tma("256x128x64_s4_w64x64", 1),
                # 4 x (49,152 + 16) bytes: a second mbarrier a stage takes the place of the block's barrier.
                _tma("256x128x64_s4_w64x64_rotate", 1),
                _tma("256x128x64_s4_w64x64_rotate_persistent", 1),
                # C by TMA. 3 x (49,152 + 16) + 65,536 bytes: a tile of C is stored while the next one is multiplied.
                # Beside four stages half a tile has room, 4 x (49,152 + 16) + 32,768: it waits for the other half.
                _tma("256x128x64_s3_w64x64_rotate_persistent_store-tma", 1),
                _tma("256x128x64_s4_w64x64_rotate_persistent_store-tma", 1, staged_rows=32),
                _tma("256x128x64_s3_w64x64_rotate_persistent_store-tma_tail", 1),
                # Staged in the ring, which needs no byte more.
                _tma("128x128x64_s3_w64x32_store-tma", 2),
                _tma("128x128x32_s3_w64x32_store-tma", 2),
                # Half a wave of tiles left over is shared by all blocks.
                _tma("256x128x64_s4_w64x64_rotate_persistent_tail", 1),
                # Copies are issued by a warpgroup of its own.
                _tma("256x128x64_s4_w64x64_producer", 1),
                _tma("256x128x64_s4_w64x64_producer_persistent", 1),
                _tma("256x128x64_s3_w64x64_producer_persistent_store-tma", 1),
                # Two blocks share a tile of A: of its 256 rows and B's 128 columns, L2 gives each block 128 and 128.
                _tma("256x128x64_s4_w64x64_producer_persistent_multicast", 1),
                _tma("256x128x64_s3_w64x64_producer_persistent_multicast_store-tma", 1),
                _tma("256x128x64_s3_w64x64_producer_persistent_multicast_store-tma_tail", 1),
                _tma("256x128x64_s3_w64x64_rotate_persistent_multicast_store-tma_tail", 1),
                # A warp tile of 96x64 does 3/2 of the work of 64x64 on 5/4 of the bytes. 4 x (57,344 + 16) bytes.
                _tma("192x256x64_s4_w96x64_rotate_persistent", 1),
                _tma("192x256x64_s4_w96x64_rotate_persistent_tail", 1),
                # The same within the 101,376 bytes of sm_120: 3 x (28,672 + 16), 4 x (24,576 + 16).
                _tma("192x256x32_s3_w96x64_rotate_persistent", 1),
                _tma("256x128x32_s4_w64x64_rotate_persistent", 1),
                _tma("256x128x32_s4_w64x64_rotate_persistent_tail", 1),
                # Two stages, 2 x (49,152 + 8), leave a persistent block no time to run ahead in, and its warps none to
                # take turns. Without either it shares a last wave all the same.
                _tma("128x256x64_s2_w64x64_tail", 1),
                # 3 x (32,768 + 8) bytes, 4 warps: one block on sm_120, two on Hopper.
                _tma("128x128x64_s3_w64x64", 2),
                # A last wave of few tiles, as of 128 rows: its parts are of 64 KB, not of 128, on their way through L2.
                _tma("128x128x64_s6_w64x32_rotate_persistent_tail", 1),
                _tma("128x128x64_s3_w64x64_rotate_persistent_tail", 2),
                *FEW_ROWS,
                # Few tiles and a long K: the parts fill the device.
                _tma("128x128x64_s3_w64x32_split2", 2),
                _tma("128x128x64_s3_w64x32_split4", 2),
            ),
        ),
    )
}


@dataclass(frozen=True)
class Unit:
    """A translation unit: one family, one dtype ("f16" or "bf16"), one layout."""

    family: str
    dtype: str
    layout: str = "nn"

    @property
    def name(self) -> str:
        return f"{self.family}_{self.dtype}_{self.layout}"

    def source(self) -> str:
        """The C++ text of the unit, the same for nvcc and for the emulator."""
        family = FAMILIES[self.family]
        lines = [
            "// Generated from the table in configs.py.",
            *(f'#include "{header}"' for header in dict.fromkeys(kernel.header for kernel in family.configs)),
            '#include "unit.cuh"',
            "",
        ]
        for index, kernel in enumerate(family.configs):
            c = kernel.config
            shape = f"hgemm::TileShape<{c.tile_m}, {c.tile_n}, {c.tile_k}, {c.stages}, {c.warp_m}, {c.warp_n}>"
            lines += [
                f"struct Config_{index} : {shape} {{",
                f'  static constexpr const char* NAME = "{c.name}";',
                f"  static constexpr int BLOCKS_PER_MULTIPROCESSOR = {kernel.blocks_per_multiprocessor};",
                f"  static constexpr bool A_K_CONTIGUOUS = {_cpp(self.layout[0] == 'n')};",
                f"  static constexpr bool B_K_CONTIGUOUS = {_cpp(self.layout[1] == 't')};",
                *(["  static constexpr bool SWIZZLED = false;"] if "noswizzle" in c.flags else []),
                *(["  static constexpr bool PERSISTENT = true;"] if "persistent" in c.flags else []),
                *(["  static constexpr bool TAIL = true;"] if "tail" in c.flags else []),
                *([f"  static constexpr int STAGED_ROWS = {rows};"] if (rows := kernel.staged_rows) else []),
                *([f"  static constexpr int PARTS = {c.parts};"] if c.parts > 1 else []),
                *([f"  static constexpr int CLUSTER = {c.cluster};"] if c.cluster > 1 else []),
                "};",
                f"static_assert({kernel.kernel}<hgemm::{self.dtype}, Config_{index}>::SHARED_BYTES == "
                f'{kernel.shared_bytes}, "shared memory of {c.name} in configs.py");',
            ]
        kernels = (f"{kernel.kernel}<hgemm::{self.dtype}, Config_{i}>" for i, kernel in enumerate(family.configs))
        lines += [
            f"using ThisUnit = hgemm::Unit<{', '.join(kernels)}>;",
            "HGEMM_EXPORT(ThisUnit)",
            "",
        ]
        return "\n".join(lines)


def _cpp(value: bool) -> str:
    return "true" if value else "false"


def units(families: tuple[str, ...] = tuple(FAMILIES)) -> list[Unit]:
    """Every unit of the given families."""
    return [Unit(family, dtype, layout) for family in families for dtype in DTYPES for layout in LAYOUTS]
