"""The one table of Triton configurations: what exists, and for which devices.

A configuration is named as in ``hgemm.config``; its warp tiles say how many warps it has, and ``stages`` is Triton's
``num_stages``. On sm_90 (wgmma) and sm_100 (tcgen05) S stages are S buffers in shared memory. Where Triton uses
mma.sync (sm_80, sm_120, and ``triton_mma_sync`` on sm_90) the step being multiplied is in registers, and S stages are
S - 1 buffers: there the twin of a CUDA kernel with S buffers has S + 1 stages. So it is on every target for tiles of 16
and 32 rows, fewer than wgmma and tcgen05 multiply. The ring of ``triton_gluon`` is its own: S stages are S buffers.

Shared memory is what the compiler reports for row-major operands: the same for fp16 and bf16, and in Triton 3.6, 3.7
and 3.9. What two column-major operands add is in ``Family.shared_bytes``. Registers a thread are those of Triton 3.7.1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hgemm.config import Config
from hgemm.triton_kernels.specialized_configs import SPECIALIZED, is_specialized

# Rows of tiles that are walked together, see tile_order.grouped_tile. The 132 programs that an H200 runs at once, one a
# multiprocessor, then read 8 rows and 17 columns of tiles; the fewest possible would be 2 sqrt(132) = 23 together.
GROUP_M = 8

# The fewest rows of a tile that wgmma and tcgen05 multiply; for fewer, Triton takes mma.sync.
FEWEST_ROWS = 64


# Whose programs make their descriptors themselves: without that code ptxas wants one more block to fit a
# multiprocessor, and spills.
DESCRIBED_BY_PROGRAMS = frozenset(
    ("16x256x64_s3_w16x64", "16x256x64_s3_w16x64_split4", "32x128x128_s3_w32x32"),
)


@dataclass(frozen=True, eq=False)
class KernelConfig:
    """``shared_bytes``: target -> bytes a block; a target is a compute capability as 10 major + minor.
    ``targets``: those it is meant for, where its loop does not spill, and it fits the shared memory that there is."""

    config: Config
    shared_bytes: Mapping[int, int]
    targets: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Family:
    """One kernel and its configurations. The function ``kernel`` stands in the module ``module`` of this folder.

    ``interpreted``: the default for CPU tensors; None if Triton cannot interpret the kernel.
    ``barriers``: targets where a tile's arrival is awaited at a barrier -> how many buffers S stages are, less S.
    ``environment``: what Triton's compiler must find in the environment, and ``without``: what its PTX then lacks.
    ``only_major``: the one major compute capability it is for.
    """

    name: str
    module: str
    kernel: str
    minimum_capability: tuple[int, int]
    configs: tuple[KernelConfig, ...]
    interpreted: str | None
    barriers: Mapping[int, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    without: str = ""
    only_major: int | None = None

    def find(self, name: str) -> KernelConfig:
        """The entry called ``name``. Raises KeyError if there is none."""
        for entry in self.configs:
            if entry.config.name == name:
                return entry
        raise KeyError(name)

    def source(self, name: str) -> tuple[str, str]:
        """The module and the kernel of the configuration ``name``."""
        return ("specialized", "matmul_specialized") if is_specialized(name) else (self.module, self.kernel)

    def shared_bytes(self, name: str, target: int, layout: str) -> int:
        """Bytes of shared memory a block of the configuration ``name``, for A and B of ``layout``, as in
        ``Problem.layout``.

        Each buffer has a barrier of 8 bytes; where both operands are column-major, A and B have their own, on 16 bytes.
        """
        entry = self.find(name)
        if layout != "tt" or target not in self.barriers or is_specialized(name):
            return entry.shared_bytes[target]
        buffers = entry.config.stages + (-1 if entry.config.tile_m < FEWEST_ROWS else self.barriers[target])
        return entry.shared_bytes[target] + -(-8 * buffers // 16) * 16


def _entry(name: str, targets: tuple[int, ...], **shared_bytes: int) -> KernelConfig:
    """Shared memory by keyword: sm_90=98_328."""
    by_target = {int(key.removeprefix("sm_")): count for key, count in shared_bytes.items()}
    return KernelConfig(Config.parse(name), by_target, targets)


POINTER = Family(
    name="triton_pointer",
    module="pointer",
    kernel="matmul_pointer",
    minimum_capability=(8, 0),
    # Bytes are the larger of two variants: with cp.async, and for data that is not aligned for it, where the tiles pass
    # through registers and one buffer an operand remains. Registers: 128 and 150 (sm_80), 112 (sm_90), 130 and 139
    # (sm_120); not aligned: 255, 254, 243.
    configs=(
        _entry("128x128x32_s2_w64x32", (80, 90, 100, 120), sm_80=32_768, sm_90=32_768, sm_100=32_784, sm_120=32_768),
        _entry("128x128x32_s3_w64x32", (80, 90, 100, 120), sm_80=32_768, sm_90=49_152, sm_100=49_168, sm_120=32_768),
        # For few rows, see SKINNY; a program begins sooner without descriptors to make. Registers: 80 and 90 (sm_90).
        _entry("16x32x256_s5_w16x8", (90, 100, 120), sm_80=98_304, sm_90=98_304, sm_100=98_304, sm_120=98_304),
        _entry("16x64x128_s5_w16x16", (80, 90, 100, 120), sm_80=81_920, sm_90=81_920, sm_100=81_920, sm_120=81_920),
    ),
    interpreted="128x128x32_s2_w64x32",
)

# For few rows, as in decoding, where the time is that of reading B once: what counts is the bytes on their way.
# A multiprocessor of an H200 needs about 30 KB of them (4.8 TB/s by 0.8 us, over 132). The ring of a block holds 68 to
# 120 KB; where a multiprocessor has room for two or three, one block begins while another ends. Of a column-major B a
# long tile_k reads long stretches of memory, of a row-major one a wide tile_n. Registers are those of a row-major B on
# sm_90, and much the same elsewhere.
SKINNY = (
    # 30.
    _entry("16x32x256_s5_w16x8", (90, 100, 120), sm_90=98_336, sm_100=98_336, sm_120=98_336),
    # 38 to 40.
    _entry("16x64x128_s5_w16x16", (90, 100, 120), sm_90=81_952, sm_100=81_952, sm_120=81_952),
    _entry("16x64x128_s5_w16x16_split2", (90, 100, 120), sm_90=81_952, sm_100=81_952, sm_120=81_952),
    _entry("16x64x128_s5_w16x16_split4", (90, 100, 120), sm_90=81_952, sm_100=81_952, sm_120=81_952),
    _entry("16x64x128_s5_w16x16_split8", (90, 100, 120), sm_90=81_952, sm_100=81_952, sm_120=81_952),
    # 38. Three buffers of 40 KB.
    _entry("16x64x256_s4_w16x16", (90, 100), sm_90=122_904, sm_100=122_904, sm_120=122_904),
    # 48.
    _entry("16x128x128_s3_w16x32", (90, 100, 120), sm_90=73_744, sm_100=73_744, sm_120=73_744),
    # 87 to 89.
    _entry("16x256x64_s3_w16x64", (90, 100, 120), sm_90=69_648, sm_100=69_648, sm_120=69_648),
    _entry("16x256x64_s3_w16x64_split4", (90, 100, 120), sm_90=69_648, sm_100=69_648, sm_120=69_648),
    # 48 to 50.
    _entry("32x64x128_s5_w32x16", (90, 100, 120), sm_90=98_336, sm_100=98_336, sm_120=98_336),
    _entry("32x64x128_s5_w32x16_split4", (90, 100, 120), sm_90=98_336, sm_100=98_336, sm_120=98_336),
    # 73.
    _entry("32x128x128_s3_w32x32", (90, 100, 120), sm_90=81_936, sm_100=81_936, sm_120=81_936),
)

TMA = Family(
    name="triton",
    module="tma",
    kernel="matmul_tma",
    minimum_capability=(9, 0),
    configs=(
        # Registers: 154 (sm_90), 196 (sm_120). On sm_120 two buffers, the twin of cuda_tma's 128x256x64_s2_w64x64.
        _entry("128x256x64_s3_w64x64", (90, 100, 120), sm_90=147_480, sm_100=147_504, sm_120=98_320),
        # 162. One program a multiprocessor; C is staged in 64 KB beside the ring, which fills while C is stored.
        _entry("128x256x64_s3_w64x64_persistent", (90, 100), sm_90=213_016, sm_100=213_040, sm_120=163_856),
        # 90, 128. On sm_120 three buffers, the twin of cuda_tma's 128x128x64_s3_w64x32.
        _entry("128x128x64_s4_w64x32", (90, 100, 120), sm_90=131_104, sm_100=131_120, sm_120=98_328),
        # 90, 128. On sm_90 three buffers, the twin of cuda_tma's of this name, and two blocks a multiprocessor.
        _entry("128x128x64_s3_w64x32", (90, 100, 120), sm_90=98_328, sm_100=98_352, sm_120=65_552),
        # 90, 119. On sm_120 three buffers, the twin of cuda_tma's 128x128x32_s3_w64x32, and two blocks a
        # multiprocessor: 2 x (49,176 + 1,024 reserved) = 100,400 of 102,400 bytes, 2 x 256 x 128 registers of 65,536.
        _entry("128x128x32_s4_w64x32", (90, 100, 120), sm_90=65_568, sm_100=65_584, sm_120=49_176),
        # 90, 119. On sm_90 the twin of cuda_tma's of this name.
        _entry("128x128x32_s3_w64x32", (90, 100, 120), sm_90=49_176, sm_100=49_200, sm_120=32_784),
        # 90, 122.
        _entry("128x64x64_s4_w64x32", (90, 100, 120), sm_90=98_336, sm_100=98_352, sm_120=73_752),
        # 58, 74.
        _entry("64x64x64_s4_w32x32", (90, 100, 120), sm_90=65_568, sm_100=65_584, sm_120=49_176),
        # Few tiles and a long K: the parts fill the device. 90, 126 and 58, 81.
        _entry("128x128x64_s4_w64x32_split2", (90, 100, 120), sm_90=131_104, sm_100=131_120, sm_120=98_328),
        _entry("128x128x64_s4_w64x32_split4", (90, 100, 120), sm_90=131_104, sm_100=131_120, sm_120=98_328),
        _entry("128x128x64_s4_w64x32_split8", (90, 100, 120), sm_90=131_104, sm_100=131_120, sm_120=98_328),
        _entry("64x64x64_s4_w32x32_split4", (90, 100, 120), sm_90=65_568, sm_100=65_584, sm_120=49_176),
        *SKINNY,
        # What Hopper alone has.
        *(_entry(name, (90,), sm_90=count) for name, count in SPECIALIZED.items()),
    ),
    # Each step costs the interpreter about the same whatever its size, so a large tile is the quick one.
    interpreted="128x128x64_s3_w64x32",
    barriers={90: 0, 100: 0, 120: -1},
)

# The kernel of TMA where Triton would multiply with wgmma, made to multiply with mma.sync: the same instructions as
# cuda_tma. 256x128 tiles are not here: in Triton 3.7.1 they spill, 128x256 ones do not.
MMA_SYNC = Family(
    name="triton_mma_sync",
    module="mma_sync",
    kernel="matmul_mma_sync",
    minimum_capability=(9, 0),
    configs=(
        # Registers: 223. One program a multiprocessor; three buffers, and C is staged in 64 KB beside them.
        _entry("128x256x64_s4_w64x64_persistent", (90,), sm_90=213_016),
        # 225. Two buffers, the twin of cuda_tma's 128x256x64_s2_w64x64.
        _entry("128x256x64_s3_w64x64", (90,), sm_90=98_320),
        # 126. Three buffers, the twin of cuda_tma's 128x128x64_s3_w64x32; two blocks a multiprocessor.
        _entry("128x128x64_s4_w64x32", (90,), sm_90=98_328),
        # 228. The same with four warps of 64x64, the twin of cuda_tma's 128x128x64_s3_w64x64.
        _entry("128x128x64_s4_w64x64", (90,), sm_90=98_328),
        # 121. Three buffers, the twin of cuda_tma's 128x128x32_s3_w64x32; two blocks a multiprocessor.
        _entry("128x128x32_s4_w64x32", (90,), sm_90=49_176),
    ),
    interpreted="128x128x64_s4_w64x32",
    barriers={90: -1},
    environment={"DISABLE_MMA_V3": "1"},
    without="wgmma",
    only_major=9,
)

# Stages are buffers, with two mbarriers each, and a configuration is the twin of cuda_tma's of its name. Registers, for
# the layouts: sm_90, sm_120.
GLUON = Family(
    name="triton_gluon",
    module="gluon",
    kernel="matmul_gluon",
    minimum_capability=(9, 0),
    configs=(
        # 220 to 224.
        _entry("256x128x64_s4_w64x64", (90, 100), sm_90=196_672, sm_100=196_672, sm_120=196_672),
        # 213 to 222, 213 to 217.
        _entry("128x256x64_s2_w64x64", (90, 100, 120), sm_90=98_336, sm_100=98_336, sm_120=98_336),
        # 127 to 158, 127 to 156: two blocks a multiprocessor of Hopper only where it is up to 128.
        _entry("128x128x64_s3_w64x32", (90, 100, 120), sm_90=98_360, sm_100=98_360, sm_120=98_360),
        # 128, 129 to 130: on sm_120 too many for two blocks, whose shared memory would fit.
        _entry("128x128x32_s3_w64x32", (90, 100, 120), sm_90=49_208, sm_100=49_208, sm_120=49_208),
    ),
    interpreted=None,
)

FAMILIES = (POINTER, TMA, MMA_SYNC, GLUON)


def target_of(capability: tuple[int, int]) -> int:
    """The target of this table that stands for a device of compute capability 8.0 or newer.

    Triton chooses instructions by the major version: mma.sync for 8 and 12, wgmma for 9, tcgen05 for 10 and 11.
    """
    return {8: 80, 9: 90, 10: 100, 11: 100}.get(capability[0], 120)


@functools.cache
def launch_options(name: str) -> dict[str, Any]:
    """What the configuration ``name`` passes to any kernel of this folder; the result is shared: do not change it."""
    config = Config.parse(name)
    return {
        "BLOCK_M": config.tile_m,
        "BLOCK_N": config.tile_n,
        "BLOCK_K": config.tile_k,
        "GROUP_M": GROUP_M,
        "num_warps": config.warps,
        "num_stages": config.stages,
        **({"PERSISTENT": True} if "persistent" in config.flags else {}),
        **({"PARTS": config.parts} if config.parts > 1 else {}),
        **({"HOST_DESCRIPTORS": False} if name in DESCRIBED_BY_PROGRAMS else {}),
        # Triton's default, stated because 3.9 warns where it is not. The kernels have no sum that could be fused.
        "enable_fp_fusion": True,
    }


@functools.cache
def ring_options(name: str) -> dict[str, Any]:
    """The same for a kernel that has a ring of its own and says which warp multiplies what; shared as well."""
    config = Config.parse(name)
    return {
        **launch_options(name),
        "STAGES": config.stages,
        "WARPS_M": config.tile_m // config.warp_m,
        "WARPS_N": config.tile_n // config.warp_n,
    }
