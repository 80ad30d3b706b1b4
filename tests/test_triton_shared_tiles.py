"""The last wave shared out along K: every step of every tile is in one item, and the parts of a tile are added up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import triton
import triton.language as tl

import hgemm
from hgemm.backends import get
from hgemm.config import Config
from hgemm.cost import Size
from hgemm.devices import rates
from hgemm.triton_kernels import adapter, host_descriptors, interpreter, versions
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.launcher import Launcher
from hgemm.triton_kernels.specialized_configs import (
    ALONE,
    MOST_PARTS,
    MULTICAST,
    SPECIALIZED,
    Sharing,
    share,
    sharing_of,
    specialized_options,
    step_cost,
)

if triton.__version__.startswith("3.6.") and tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
    pytest.skip(f"{get('triton').unavailable('cpu')}", allow_module_level=True)

LARGEST = "128x256x64_s4_w64x64_specialized_tail"
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, shared_memory_per_block_optin=232_448
)

item_of = interpreter.load("shared_tiles").item_of
add_shared_tiles = interpreter.load("shared_tiles").add_shared_tiles
grouped_tile = interpreter.load("tile_order").grouped_tile


def _record_item(out, whole, tiles, parts, steps):
    item = tl.program_id(0)
    tile, place, first, count = item_of(item, whole, tiles, parts, steps)
    tl.store(out + 4 * item, tile)
    tl.store(out + 4 * item + 1, place)
    tl.store(out + 4 * item + 2, first)
    tl.store(out + 4 * item + 3, count)


def items(sharing: Sharing, tiles: int, steps: int) -> list[list[int]]:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        kernel = triton.jit(_record_item)
    out = torch.full((sharing.items(tiles), 4), -1, dtype=torch.int32)
    kernel[(len(out),)](out, sharing.whole, tiles, sharing.parts, steps)
    return out.tolist()


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("whole", "tiles", "parts", "steps"),
    [(0, 1, 1, 1), (5, 5, 1, 7), (4, 7, 2, 5), (0, 3, 8, 8), (6, 7, 8, 9), (3, 8, 3, 11), (0, 5, 7, 64), (2, 3, 5, 5)],
)
def test_every_step_of_every_tile_is_in_one_item(whole: int, tiles: int, parts: int, steps: int) -> None:
    found = items(Sharing(whole, parts), tiles, steps)
    covered = sorted((tile, step) for tile, _, first, count in found for step in range(first, first + count))
    assert covered == [(tile, step) for tile in range(tiles) for step in range(steps)]
    assert [tile for tile, *_ in found[:whole]] == list(range(whole))
    # The places of a tile's parts are in the order of their steps, which is that in which they are added.
    left = tiles - whole
    for tile, place, first, count in found[whole:]:
        assert place % left == tile - whole
        assert first == place // left * steps // parts
        assert steps // parts <= count <= -(-steps // parts)
    assert sorted(place for _, place, *_ in found[whole:]) == list(range(left * parts))


@pytest.mark.one_triton
def test_the_last_wave_is_shared_where_that_is_sooner_and_only_then() -> None:
    step, elements = 64 * step_cost(128, 256), 128 * 256

    def shared(tiles: int, K: int) -> Sharing:
        return share(tiles, 132, K // 64, step, elements)

    assert shared(192, 4096) == (132, 2)  # 1024 x 6144: 60 tiles over 132 multiprocessors
    assert shared(320, 8192) == (264, 2)  # 1024 x 10240: 56
    assert shared(16, 4096) == (0, 8)  # 128 x 4096
    assert shared(128, 4096) == (128, 1)  # one wave
    assert shared(512, 4096) == (512, 1)  # 116 tiles left: in two parts still 2 x 32 steps
    assert shared(264, 4096) == (264, 1)
    assert shared(192, 64) == (192, 1)  # nothing to share
    # 92 tiles left: 3 rounds of a quarter, unless the waves are not what takes the time.
    assert shared(224, 8192) == (132, 4)
    assert share(224, 132, 128, step, elements, least=256 * step) == (224, 1)
    assert sharing_of(Config.parse(LARGEST), 132, 128, 57344, 8192) == (224, 1)
    assert sharing_of(Config.parse(LARGEST), 132, 1024, 6144, 4096) == (132, 2)
    assert sharing_of(Config.parse(LARGEST.removesuffix("_tail")), 132, 1024, 6144, 4096) == (192, 1)
    for tiles in range(1, 300, 7):
        for steps in (1, 2, 3, 16, 63, 512):
            found = share(tiles, 132, steps, step, elements)
            # The last wave, by hand: each program in turn takes the item that is next.
            busy = [0] * 132
            for index, (_, _, _, count) in enumerate(items(found, tiles, steps) if tiles < 20 else []):
                busy[index % 132] += count
            assert max(busy) <= found.steps(tiles, 132, steps)
            assert found.steps(tiles, 132, steps) <= -(-tiles // 132) * steps
            assert 1 <= found.parts <= min(MOST_PARTS, steps)
            assert found.whole in (tiles, tiles // 132 * 132)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("M", "N", "whole", "parts", "tile_m", "tile_n", "chunk"),
    [(70, 72, 0, 3, 32, 32, 32), (200, 136, 3, 2, 48, 48, 16), (33, 264, 8, 8, 32, 32, 32)],
)
def test_parts_are_added_in_their_order_and_stay_inside_c(
    M: int, N: int, whole: int, parts: int, tile_m: int, tile_n: int, chunk: int, dtype: torch.dtype
) -> None:
    stride = N + 16
    down, across = -(-M // tile_m), -(-N // tile_n)
    left = down * across - whole
    generator = torch.Generator().manual_seed(N)
    sums = torch.randn(parts, left, tile_m, tile_n, generator=generator)
    sums *= 2.0 ** torch.randint(-8, 8, (parts, 1, 1, 1))
    memory = torch.full((M + 40, stride), torch.nan, dtype=dtype)
    grid = (left * tile_m // 16 * tile_n // chunk,)
    add_shared_tiles[grid](sums, memory, M, N, stride, whole, parts, tile_m, tile_n, 8, 16, chunk)
    expected = torch.full((M + 40, stride), torch.nan, dtype=dtype)
    added = sums[0]
    for part in sums[1:]:
        added = added + part
    for place in range(left):
        tile = walked(whole + place, down, across)
        m, n = tile[0] * tile_m, tile[1] * tile_n
        rows, columns = min(tile_m, M - m), min(tile_n, N - n)
        expected[m : m + rows, n : n + columns] = added[place, :rows, :columns].to(dtype)
    assert torch.equal(memory.isnan(), expected.isnan())
    assert torch.equal(memory.nan_to_num(), expected.nan_to_num())


def walked(tile: int, down: int, across: int) -> tuple[int, int]:
    """The row and column of a tile where eight rows of tiles are walked together, column by column."""
    order = [(m, n) for first in range(0, down, 8) for n in range(across) for m in range(first, min(first + 8, down))]
    return order[tile]


class Kernel:
    """Stands for a kernel that is not compiled: keeps what it is launched with."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.options: dict[str, Any] = {}

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            described = [(d.base.data_ptr(), d.shape, d.strides, d.block_shape) for d in arguments[:3]]
            self.launched.append((grid, *described, *arguments[3:]))
            self.options = options

        return launch


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: H200)
    return Kernel()


def test_descriptors_say_what_is_stored(kernel: Kernel) -> None:
    a = torch.zeros(1032, 304, dtype=torch.bfloat16)[:1000, :300].t()  # 300 x 1000, its columns stored
    b = torch.zeros(1000, 520, dtype=torch.bfloat16)
    out = torch.zeros(300, 528, dtype=torch.bfloat16)[:, :520]
    kernel_launcher = Launcher(kernel)
    for _ in range(2):
        host_descriptors.launch(kernel_launcher, a, b, out, "128x256x64_s4_w64x64_specialized")
    grid, in_a, in_b, in_c, sums, *numbers = kernel.launched[1]
    assert kernel.launched[0] == kernel.launched[1]
    assert grid == (9, 1, 1)
    assert in_a == (a.data_ptr(), [1000, 300], [304, 1], [64, 128])
    assert in_b == (b.data_ptr(), [1000, 520], [520, 1], [64, 256])
    assert in_c == (out.data_ptr(), [300, 520], [528, 1], [64, 64])
    assert sums is None
    assert numbers == [300, 520, 1000, 9, 1]
    assert (kernel.options["A_LAYOUT"], kernel.options["B_LAYOUT"], kernel.options["SHARED"]) == ("t", "n", False)


def test_192_rows_of_a_are_described_64_at_a_time(kernel: Kernel) -> None:
    a, b = torch.zeros(200, 128, dtype=torch.float16), torch.zeros(128, 136, dtype=torch.float16)
    out = torch.zeros(200, 136, dtype=torch.float16)
    kernel_launcher = Launcher(kernel)
    for left in (a, a.t().contiguous().t()):
        host_descriptors.launch(kernel_launcher, left, b, out, "192x128x64_s5_w64x32_specialized")
    for (grid, in_a, in_b, in_c, *_), stored in zip(kernel.launched, ([200, 128], [128, 200]), strict=True):
        assert grid == (4, 1, 1)
        assert in_a[1:] == (stored, [stored[1], 1], [64, 64])
        assert in_b[1:] == ([128, 136], [136, 1], [64, 128])
        assert in_c[1:] == ([200, 136], [136, 1], [64, 64])


def test_192_columns_of_b_are_described_64_at_a_time(kernel: Kernel) -> None:
    a, b = torch.zeros(400, 128, dtype=torch.float16), torch.zeros(128, 200, dtype=torch.float16)
    out = torch.zeros(400, 200, dtype=torch.float16)
    kernel_launcher = Launcher(kernel)
    for right in (b, b.t().contiguous().t()):
        host_descriptors.launch(kernel_launcher, a, right, out, "192x192x64_s4_w64x48_specialized")
    for (grid, in_a, in_b, in_c, *_), stored in zip(kernel.launched, ([128, 200], [200, 128]), strict=True):
        assert grid == (6, 1, 1)
        assert in_a[1:] == ([400, 128], [128, 1], [64, 64])
        assert in_b[1:] == (stored, [stored[1], 1], [64, 64])
        assert in_c[1:] == ([400, 200], [200, 1], [64, 64])


def test_a_column_major_out_is_computed_transposed_and_batches_one_by_one(kernel: Kernel) -> None:
    a = torch.zeros(3, 128, 64, dtype=torch.float16)
    b = torch.zeros(64, 256, dtype=torch.float16)
    out = torch.zeros(3, 256, 128, dtype=torch.float16).mT
    host_descriptors.launch(Launcher(kernel), a, b, out, "128x128x64_s6_w64x32_specialized")
    assert len(kernel.launched) == 3
    for batch, (grid, in_a, in_b, in_c, *_) in enumerate(kernel.launched):
        assert grid == (2, 1, 1)
        assert in_a[:3] == (b.data_ptr(), [64, 256], [256, 1])  # b transposed, 256 x 64, its columns stored
        assert in_b[:3] == (a[batch].data_ptr(), [128, 64], [64, 1])
        assert in_c[:3] == (out[batch].data_ptr(), [256, 128], [128, 1])
    assert (kernel.options["A_LAYOUT"], kernel.options["B_LAYOUT"]) == ("t", "t")


def test_shared_tiles_have_a_workspace_and_are_added(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Any] = []

    def addition(*arguments: Any) -> Any:
        added.append(arguments)
        return lambda sums, out: added.append((sums.shape, out.data_ptr()))

    monkeypatch.setattr(host_descriptors, "addition", addition)
    a, b = torch.zeros(1024, 4096, dtype=torch.float16), torch.zeros(4096, 6144, dtype=torch.float16)
    out = torch.zeros(1024, 6144, dtype=torch.float16)
    host_descriptors.launch(Launcher(kernel), a, b, out, LARGEST)
    (grid, _, _, _, sums, *numbers) = kernel.launched[0]
    assert grid == (132, 1, 1)
    assert sums.shape == (120, 128, 256)
    assert sums.dtype == torch.float32
    assert numbers[3:5] == [132, 2]
    assert added[0][2:6] == (1024, 6144, 6144, Sharing(132, 2))
    assert added[1] == ((120, 128, 256), out.data_ptr())


def test_other_devices_and_the_cpu_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.ones(128, 128, dtype=torch.bfloat16)
    with pytest.raises(hgemm.UnsupportedProblem, match=rf"{LARGEST} is written in Gluon, which Triton does not interp"):
        hgemm.matmul(a, a, backend="triton", config=LARGEST)
    with pytest.raises(hgemm.UnsupportedProblem, match="is written in Gluon"):
        get("triton").run(a, a, torch.empty_like(a), LARGEST)
    for major, minor in ((10, 0), (12, 0)):
        device = SimpleNamespace(**{**vars(H200), "name": "another", "major": major, "minor": minor})
        assert f"capability 9.0, and another has {major}.{minor}; leave config out" in (
            adapter._specialized_rule(LARGEST, device) or ""
        )
    assert adapter._specialized_rule(LARGEST, H200) is None
    assert adapter._specialized_rule("64x64x64_s4_w32x32", None) is None

    def lacking(module: str) -> None:
        raise ImportError("cannot import name 'warpgroup_mma'")

    adapter._gluon_missing.cache_clear()
    adapter._specialized_missing.cache_clear()
    monkeypatch.setattr(adapter, "_compiled", lacking)
    assert "lacks a part of Gluon that it uses (cannot import name 'warpgroup_mma')" in (
        adapter._specialized_rule(LARGEST, H200) or ""
    )
    adapter._gluon_missing.cache_clear()
    adapter._specialized_missing.cache_clear()


def test_no_default_is_specialised_where_none_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def weighed(capability: tuple[int, int], batch: int = 1) -> set[str]:
        found = adapter.kernels(TMA, rates("a board", capability, 132), Size(4096, 4096, 4096, batch))
        return {kernel.config.name for kernel in found if kernel.config} & set(SPECIALIZED)

    known = set(ALONE if triton.__version__.startswith("3.6.") else SPECIALIZED)
    assert weighed((9, 0)) == known
    assert weighed((9, 0), batch=2) == weighed((10, 0)) == weighed((12, 0)) == set()
    monkeypatch.setattr(adapter, "_specialized_missing", lambda: "not in this Triton")
    assert weighed((9, 0)) == set()
    assert all(set(entry.shared_bytes) == {90} for entry in TMA.configs if entry.config.name in SPECIALIZED)
    assert {specialized_options(name)["num_warps"] for name in SPECIALIZED} == {4}


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.10.0+git1234"])
def test_clusters_are_refused_where_gluon_sends_no_tiles(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    versions.multicast_missing.cache_clear()
    rules = {name: adapter._specialized_rule(name, H200) for name in SPECIALIZED}
    offered = adapter.kernels(TMA, rates(H200.name, (9, 0), 132), Size(4096, 4096, 4096))
    versions.multicast_missing.cache_clear()
    names = {kernel.config.name for kernel in offered if kernel.config}
    assert {name for name, rule in rules.items() if rule} == (set(MULTICAST) if version == "3.6.0" else set())
    assert names & set(SPECIALIZED) == {name for name, rule in rules.items() if not rule}
    if version == "3.6.0":
        assert set(rules.values()) - {None} == {
            "multicast to a cluster of blocks needs Gluon of Triton 3.7 or newer, found 3.6.0; "
            "pip install 'triton>=3.7', or leave config out"
        }
