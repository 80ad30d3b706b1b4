"""The configurations of ``specialized.py``, what they pass to it, and how it shares out its last wave. No Triton here.

Their flag is ``specialized``: persistent, one warp that copies beside one to three warpgroups that multiply. A name's
warps are the multiplying ones, four a warpgroup, and its stages are buffers. With ``tail`` the last wave is shared, and
with ``multicast-b`` two blocks one above the other share tiles of B.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from hgemm.config import Config
from hgemm.devices import LIMITS

FLAG = "specialized"
TARGET = 90
SHARED_BYTES = LIMITS[9, 0].shared_bytes_per_block

# Bytes of shared memory a block, the same for all layouts: the ring, two mbarriers a stage, and the buffers through
# which each warpgroup stores C. One block a multiprocessor. First those whose blocks are alone.
ALONE = {
    "128x256x64_s4_w64x64_specialized": 229_576,
    "128x256x64_s4_w64x64_specialized_tail": 229_592,
    # A shorter ring, and room for C: each piece of a tile has a buffer.
    "128x256x64_s3_w64x64_specialized": 213_184,
    "128x256x64_s3_w64x64_specialized_tail": 213_200,
    # Half as many sums again a thread, and for each of them 22% fewer bytes from L2: a higher clock. A wave is half as
    # large again too, so they need many tiles, or a last wave that is shared. Of the three times 64 rows each warpgroup
    # has one and half of the columns of the third, so that no wgmma is narrower than 128 columns: a row of 256x192,
    # whose bytes from L2 are the same, would be one of 128 and one of 64, and read a quarter more of shared memory.
    "192x256x64_s3_w96x64_specialized": 221_376,
    "192x256x64_s3_w96x64_specialized_tail": 221_392,
    "256x128x64_s4_w64x64_specialized": 229_576,
    "256x128x64_s4_w64x64_specialized_tail": 229_592,
    # Of 3072 x 3072 these are 1.9 waves of an H200, where those of 128x256 are 2.2.
    "192x192x64_s4_w64x48_specialized": 221_420,
    "192x192x64_s4_w64x48_specialized_tail": 221_436,
    "192x128x64_s4_w64x32_specialized": 213_196,
    "192x128x64_s4_w64x32_specialized_tail": 213_212,
    "128x128x64_s6_w64x32_specialized": 229_608,
    "128x128x64_s6_w64x32_specialized_tail": 229_624,
    # For 128 and 64 rows, where few tiles share out a long K and the time is that of reading B; of a column-major B the
    # long steps read 256 bytes at a time.
    "128x128x128_s3_w64x32_specialized_tail": 229_584,
    "128x64x128_s4_w32x32_specialized_tail": 213_208,
    "64x256x64_s5_w64x64_specialized_tail": 221_388,
    "64x128x128_s4_w64x32_specialized_tail": 213_172,
    # Of 128 x 6144 one wave of an H200, where those of 64x64 are 1.45.
    "64x96x128_s5_w32x16_specialized": 217_316,
}

# Of blocks in clusters, one above the other, which send each other their common tiles of B by multicast. Beside what
# those above have, a kilobyte with the mbarriers at which they arrive across blocks. The tile is that of one block.
MULTICAST = {
    # 128 rows are two blocks one above the other: of 128 x 4096 one wave of an H200.
    "64x64x128_s6_w32x32_multicast-b_specialized": 205_972,
}
SPECIALIZED = ALONE | MULTICAST

# Of a thread, by how many warpgroups multiply. It holds up to 192 sums, or 128 and the 64 registers of as many that are
# rounded, of three warpgroups 96 and 48, and what it has to address: with 24 for that of the copying warp, which is the
# least there is, 504 of the 512 that 128 threads share are used. (Where one multiplies, Triton gives it what the
# copying one leaves, and its number is not read.) Three have no tile of 256 columns one above the other: a wgmma of as
# many takes 154 registers, and for that ptxas goes by the 128 that each of 512 threads is launched with.
REGISTERS = {1: 240, 2: 240, 3: 160}
COPY_REGISTERS = 24

MOST_PARTS = 8

# What sharing adds, in multiply-adds of one multiprocessor of an H200: the second kernel, 1 us by estimate, and for
# each element of a part 8 bytes, written and read again, at a quarter of the operands' rate.
SHARING_COST = 2**22
SHARED_ELEMENT_COST = 512


def is_specialized(name: str) -> bool:
    """Whether the configuration ``name`` is one of these."""
    return name in SPECIALIZED


@functools.cache
def specialized_options(name: str) -> dict[str, Any]:
    """What the configuration ``name`` passes to the kernel; the result is shared: do not change it."""
    from hgemm.triton_kernels.configs import GROUP_M

    config = Config.parse(name)
    groups, down = warpgroups(config)
    blocks_m, blocks_n = config.cluster_shape
    # Pieces of C are 64 columns, the 128 bytes of a swizzled row, or all that there are. They take turns with the
    # buffers, and go on from tile to tile.
    rows = sums_rows(config)
    pieces = max(1, config.tile_m * config.tile_n // (groups * rows * 64))
    room = SHARED_BYTES - 2 * config.stages * config.tile_k * (config.tile_m + config.tile_n)
    fitting = max(1, room // (groups * rows * 128))
    buffers = max(count for count in range(1, 5) if pieces % count == 0 and count <= fitting)
    return {
        "BLOCK_M": config.tile_m * blocks_m,
        "BLOCK_N": config.tile_n * blocks_n,
        "BLOCK_K": config.tile_k,
        # Rows of tiles, or of those of clusters. Of 128 rows each, their part of A stays in L2 while the columns of B
        # go by: 33 MB for a K of 16384, of the 60 MB of an H200. Of 256 rows half as many gain at some sizes and lose
        # at others.
        "GROUP_M": GROUP_M,
        "STAGES": config.stages,
        "DOWN": down,
        "ACROSS": groups // down,
        "C_BUFFERS": buffers,
        "CLUSTER_M": blocks_m,
        "CLUSTER_N": blocks_n,
        "SHARED": "tail" in config.flags,
        "STORE_STEPS": store_steps(config),
        "REGISTERS": REGISTERS[groups],
        "COPY_REGISTERS": COPY_REGISTERS,
        "num_warps": 4,
        **({"num_ctas": config.cluster} if config.cluster > 1 else {}),
        "enable_fp_fusion": True,  # see configs.launch_options
    }


def warpgroups(config: Config) -> tuple[int, int]:
    """How many multiply, and how many of them are one above the other in a tile: all, or one."""
    groups = config.warps // 4
    return groups, groups if config.tile_m > 64 else 1


def sums_rows(config: Config) -> int:
    """Of a tensor of sums: those of a warpgroup, or 64 of 96, whose others are a tensor of their own."""
    return config.tile_m // warpgroups(config)[1] // 64 * 64


def store_steps(config: Config) -> int:
    """In how many steps of K a tile is stored while the next one is multiplied: a piece of 64 columns in each. More at
    once would take longer than the tensor cores have work. 0 where a thread has no registers to keep it in, rounded,
    beside the next one's sums: of 192 sums one tensor is then stored at once, and one behind the first wgmma of the
    next tile. An item of work has at least as many steps.
    """
    groups, down = warpgroups(config)
    if config.tile_m * config.tile_n > 128 * config.threads:
        return 0
    return max(1, config.tile_n * down // groups // 64)


def power_of_two_in(number: int) -> int:
    """The largest one that divides ``number``."""
    return number & -number


@functools.cache
def blocks(name: str, a_layout: str, b_layout: str) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Rows and columns of what one copy moves, of A, B and C as they are stored: powers of two, as the extents of a
    tensor have to be."""
    o, config = specialized_options(name), Config.parse(name)
    rows, columns = sums_rows(config) * o["CLUSTER_M"], o["BLOCK_N"] // o["ACROSS"]
    a = rows if config.cluster > 1 else power_of_two_in(o["BLOCK_M"]), o["BLOCK_K"]
    b = o["BLOCK_K"], power_of_two_in(o["BLOCK_N"])
    return (
        a if a_layout == "n" else a[::-1],
        b if b_layout == "n" else b[::-1],
        (rows, min(64, columns // o["CLUSTER_N"]) * o["CLUSTER_N"]),
    )


# Multiply-adds that take as long as reading one row or column of a tile's operands, per step of K. An estimate: it puts
# 128x128 tiles 9% and 64x64 tiles 45% behind 128x256.
OPERAND_COST = 32

# Multiply-adds of a whole H200 while its memory delivers one element of an operand: 989 TFLOPS, 4.8 TB/s. This and what
# sharing costs decide how many parts a tile has, and so which bits its sums have: a change is one of results. It also
# tells what is launched early, see is_dependent.
READING_COST = 206


def step_cost(tile_m: int, tile_n: int) -> int:
    """What one step along K costs a tile: its multiply-adds, and the reading of its operands."""
    return tile_m * tile_n + OPERAND_COST * (tile_m + tile_n)


class Sharing(NamedTuple):
    """``whole`` tiles of C that are an item of work each, and ``parts`` items, equal parts of K, for each of the
    others."""

    whole: int
    parts: int

    def items(self, tiles: int) -> int:
        return self.whole + (tiles - self.whole) * self.parts

    def steps(self, tiles: int, programs: int, steps: int) -> int:
        """Steps of K that the busiest of ``programs`` programs does, for tiles of ``steps`` steps."""
        rounds = -(-(tiles - self.whole) * self.parts // programs)
        return -(-self.whole // programs) * steps + rounds * -(-steps // self.parts)

    def cost(self, tiles: int, tile_elements: int, programs: int) -> float:
        """What sharing adds, in multiply-adds of a multiprocessor."""
        elements = (tiles - self.whole) * self.parts * tile_elements
        return SHARING_COST + SHARED_ELEMENT_COST * elements / programs if self.parts > 1 else 0


@functools.lru_cache(maxsize=4096)
def share(
    tiles: int, programs: int, steps: int, step_cost: int, tile_elements: int, least: float = 0, part_steps: int = 1
) -> Sharing:
    """How the last wave of ``tiles`` tiles over ``programs`` programs is best shared out, if at all.

    ``step_cost``: multiply-adds of a tile's step of K, or what takes as long. ``least``: what the product costs at
    least, however its tiles are shared out, since A and B have to be read. ``part_steps``: of a part, at least. Of
    equals the fewest parts.
    """
    left = tiles % programs
    candidates = [
        Sharing(tiles, 1),
        *(Sharing(tiles - left, parts) for parts in range(2, min(MOST_PARTS, steps // part_steps) + 1) if left),
    ]

    def cost(sharing: Sharing) -> float:
        waves = sharing.steps(tiles, programs, steps) * step_cost
        return max(waves, least) + sharing.cost(tiles, tile_elements, programs)

    return min(candidates, key=cost)


def programs_of(config: Config, multiprocessors: int) -> int:
    """Programs that run at once on a device, one block or cluster of them each. The multiprocessors of a GPC, on which
    the blocks of a cluster run, come in pairs."""
    return multiprocessors // config.cluster


def is_dependent(config: Config, M: int, N: int) -> bool:
    """Whether an M x N product is launched before the kernel in front of it ends, so that launching takes no time of
    its own: a block begins where one of that kernel has left.

    Its blocks take them in the order in which they become free. So not where the time is that of reading an operand,
    which blocks side by side read together, unless they are a cluster.
    """
    return config.cluster > 1 or M * N > READING_COST * (M + N)


def sharing_of(config: Config, multiprocessors: int, M: int, N: int, K: int) -> Sharing:
    """How the kernel shares out the tiles of an M x N product over K, if ``config`` is one that shares them. Those of
    the blocks of a cluster are one."""
    tiles, steps = math.prod(config.tiles(M, N)) // config.cluster, -(-K // config.tile_k)
    if "tail" not in config.flags:
        return Sharing(tiles, 1)
    step = config.tile_k * step_cost(config.tile_m, config.tile_n)
    reading = READING_COST * (M + N) * K / multiprocessors
    programs, part_steps = programs_of(config, multiprocessors), max(1, store_steps(config))
    return share(tiles, programs, steps, step, config.tile_m * config.tile_n, reading, part_steps)
