"""The cost model by hand: waves, fills, bytes and depth of small products, and what must never get quicker."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hgemm import cost, occupancy
from hgemm.backends import backends
from hgemm.config import Config
from hgemm.cost import Fit, Kernel, Known, Prediction, Size, Traits
from hgemm.devices import DEVICES, Device, rates
from hgemm.problem import LAYOUTS

ROOT = Path(__file__).parents[1]
H200 = rates("NVIDIA H200", (9, 0), 132)
RTX_5090 = rates("NVIDIA GeForce RTX 5090", (12, 0), 170)
# Nothing but tensor work: feeding takes no time, memory is as quick as it can be, a tile costs its filling alone.
BARE = Traits(pace=1e-6, wait=0.0, tile=0.0, reach=1.0, launch=0.0)


def kernel(name: str, shared_bytes: int = 100_000, blocks: int = 2, backend: str = "cuda_tma") -> Kernel:
    return Kernel(backend, Config.parse(name), shared_bytes, blocks)


def predict(made: Kernel, size: Size, traits: Traits = BARE, device: cost.Rates = H200) -> Prediction:
    return cost.predict(made, size, device, Known(traits))


ONE_A_TIME = kernel("256x128x64_s4_w64x64", 196_672, 1)
TWO_A_TIME = kernel("128x128x64_s3_w64x32", 98_328, 2)


@pytest.mark.parametrize(
    ("made", "size", "slots", "waves", "fill", "steps"),
    [
        (ONE_A_TIME, Size(4096, 4096, 4096), 132, 512 / 132, 512 / 132 / 4, 64),  # 16 x 32 tiles: 4 waves, 97% full
        (TWO_A_TIME, Size(4096, 4096, 4096), 264, 1024 / 264, 1024 / 264 / 4, 64),
        (TWO_A_TIME, Size(129, 128, 65), 264, 2 / 264, 2 / 264, 2),  # a second row of tiles, a second step
        (TWO_A_TIME, Size(128, 128, 128, batch=300), 264, 300 / 264, 300 / 528, 2),
        # Clusters of four leave eight multiprocessors over. Parts of 16 steps; of two steps no more than two are made.
        (kernel("128x128x64_s3_w64x32_split4", 98_328), Size(128, 1280, 4096), 248, 40 / 248, 40 / 248, 16),
        (kernel("128x128x64_s3_w64x32_split4", 98_328), Size(128, 1280, 128), 248, 20 / 248, 20 / 248, 1),
    ],
)
def test_waves_and_their_fill(made: Kernel, size: Size, slots: int, waves: float, fill: float, steps: int) -> None:
    found = predict(made, size)
    assert (found.slots, found.steps) == (slots, steps)
    assert found.waves == pytest.approx(waves)
    assert found.fill == pytest.approx(fill)


def test_full_waves_take_the_time_of_the_tensor_cores() -> None:
    # 132 tiles of 256 x 128 for 64 steps: 2 x 256 x 128 x 64 operations a step, of 4,096 x 0.655 a clock of 1.83 GHz.
    step = 2 * 256 * 128 * 64 / (4096 * 0.655)
    expected = (64 * step + cost.FILLING_CLOCKS) / 1.83e9
    assert predict(ONE_A_TIME, Size(256 * 132, 128, 4096)).tensor == pytest.approx(expected)
    # One tile more is a second wave, as long as the first; 131 more cost nothing.
    assert predict(ONE_A_TIME, Size(256 * 133, 128, 4096)).tensor == pytest.approx(2 * expected)
    assert predict(ONE_A_TIME, Size(256 * 264, 128, 4096)).tensor == pytest.approx(2 * expected)
    # On an RTX 5090, 512 operations a clock of 2.407 GHz.
    geforce = predict(ONE_A_TIME, Size(256 * 170, 128, 4096), device=RTX_5090).tensor
    assert geforce == pytest.approx((64 * 2 * 256 * 128 * 64 / 512 + cost.FILLING_CLOCKS) / 2.407e9)


def test_two_blocks_take_twice_as_long_together_and_one_alone_waits() -> None:
    traits = replace(BARE, wait=100.0)
    step = 2 * 128 * 128 * 64 / (4096 * 0.655)
    together = predict(TWO_A_TIME, Size(128 * 264, 128, 6400), traits).tensor * 1.83e9 - cost.FILLING_CLOCKS
    alone = predict(TWO_A_TIME, Size(128 * 132, 128, 6400), traits).tensor * 1.83e9 - cost.FILLING_CLOCKS
    assert together == pytest.approx(100 * 2 * step)
    assert alone == pytest.approx(100 * (step + 100))


def test_shared_memory_feeds_mma_sync_and_binds_hopper_long_before_geforce() -> None:
    small, large = Config.parse("128x128x64_s3_w64x32"), Config.parse("128x256x64_s2_w64x64")
    # 8 warps read 64 + 32 rows of 128 bytes, TMA writes 256: 1,024 x 128 bytes, at 128 a clock. The tensor cores need
    # 2^21 / 2,683 = 782 clocks.
    assert cost.step_clocks(small, H200, "mma.sync") == pytest.approx(1024, rel=0.02)
    # 8 x 128 and 384: 1,408; the tensor cores need 1,563.
    assert cost.step_clocks(large, H200, "mma.sync") == pytest.approx(1563, rel=0.06)
    assert cost.step_clocks(small, RTX_5090, "mma.sync") == pytest.approx(2 * 128 * 128 * 64 / 512, rel=1e-3)
    # wgmma reads A and B once for each 64 rows of A: 2 x (64 + 256) and 384 rows, as long as its 1,024 clocks.
    assert cost.step_clocks(large, H200, "wgmma") == pytest.approx(1024 * 2 ** (1 / cost.FEEDING))


def test_memory_is_read_once_and_bounds_few_rows() -> None:
    size = Size(1, 28672, 4096)
    assert size.bytes == 2 * (4096 + 4096 * 28672 + 28672)
    found = predict(kernel("16x64x128_s4_w16x16", 81_984), size, replace(BARE, reach=0.5))
    assert found.memory == pytest.approx(size.bytes / 2.4e12)
    assert found.seconds >= found.memory > found.tensor


@pytest.mark.parametrize("made", [ONE_A_TIME, TWO_A_TIME, kernel("256x128x64_s4_w64x64_rotate_persistent_tail")])
def test_more_work_never_takes_less_time(made: Kernel) -> None:
    size = Size(1000, 1500, 700)
    for field in ("M", "N", "K", "batch"):
        times = [
            predict(made, replace(size, **{field: getattr(size, field) * factor}), Traits()).seconds
            for factor in (1, 2, 3, 5, 8, 20)
        ]
        assert times == sorted(times)
    for field, worse in (("pace", 2.0), ("wait", 500.0), ("tile", 5000.0), ("reach", 0.4), ("launch", 9.0)):
        slower = predict(made, size, replace(Traits(), **{field: worse})).seconds
        assert slower >= predict(made, size, Traits()).seconds


def test_a_tail_shares_out_a_last_wave_that_is_worth_it() -> None:
    whole, cut = (kernel(f"256x128x64_s4_w64x64_rotate_persistent{flag}", 196_672, 1) for flag in ("", "_tail"))
    size = Size(256 * 66, 128, 8192)  # half a wave of 128 steps
    difference = predict(whole, size).tensor - predict(cut, size).tensor
    step = 2 * 256 * 128 * 64 / (4096 * 0.655) / 1.83e9
    assert difference == pytest.approx((128 - 64 - cost.TAIL_COST) * step)
    assert predict(cut, size).seconds > predict(cut, size).tensor + cost.ADDITION_SECONDS * 0.99  # a second kernel
    for full in (Size(256 * 132, 128, 8192), Size(256 * 66, 128, 64 * 16)):  # no last wave, or too few steps
        assert predict(cut, full).seconds == predict(whole, full).seconds


@pytest.mark.parametrize("copies", ["rotate", "producer"])
def test_blocks_that_share_a_come_in_pairs_and_read_half_of_it(copies: str) -> None:
    names = (f"256x128x64_s3_w64x64_{copies}_persistent{flag}_store-tma_tail" for flag in ("", "_multicast"))
    alone, pairs = (kernel(name, 213_040, 1) for name in names)
    even, odd = Size(256 * 33, 256, 8192), Size(256 * 66, 128, 8192)  # half a wave of tiles; every second outside of C
    assert predict(pairs, even).tensor == pytest.approx(predict(alone, even).tensor)
    assert (predict(alone, odd).waves, predict(pairs, odd).waves) == (0.5, 1)
    large = Size(16384, 16384, 16384)  # of the 256 rows and 128 columns of a step L2 gives each 128 and 128
    assert predict(pairs, large).memory == pytest.approx(predict(alone, large).memory * 2 / 3)


def test_what_a_tail_costs_is_what_the_kernel_counts_with() -> None:
    text = (ROOT / "cuda_kernels" / "tail.cuh").read_text()
    assert int(re.findall(r"LEAST_SAVING = (\d+);", text)[0]) == cost.TAIL_COST
    assert int(re.findall(r"LEAST_SHARE = (\d+);", text)[0]) == cost.TAIL_LEAST_SHARE


def test_splitting_k_pays_for_few_tiles_and_a_long_k() -> None:
    whole, split = (kernel(f"128x128x64_s3_w64x32{flag}", 98_328) for flag in ("", "_split4"))
    few, many = Size(512, 512, 16384), Size(4096, 4096, 16384)
    assert predict(split, few, Traits()).seconds < predict(whole, few, Traits()).seconds / 2
    assert predict(split, many, Traits()).seconds > predict(whole, many, Traits()).seconds


@pytest.mark.parametrize(
    ("backend", "once", "times"), [("triton", cost.ADDITION_SECONDS, 1), ("cuda_tma", cost.MEETING_SECONDS, 2)]
)
def test_a_split_costs_a_second_kernel_or_a_meeting_and_its_sums_twice(backend: str, once: float, times: int) -> None:
    split = predict(kernel("128x128x64_s3_w64x32_split4", 98_328, backend=backend), Size(512, 512, 16384))
    sums = 4 * 512 * 512 * 4 * 2  # parts x elements x bytes, written and read
    added = split.seconds - cost.either(split.tensor, split.memory, cost.OVERLAP)
    assert added == pytest.approx(once + times * sums / (132 * 64 * 1.83e9))


def test_a_column_major_b_is_fed_at_its_own_pace() -> None:
    traits = Traits(pace=3.0, columns=2.0)
    times = {layout: predict(TWO_A_TIME, Size(4096, 4096, 4096, 1, layout), traits).tensor for layout in LAYOUTS}
    twice = predict(TWO_A_TIME, Size(4096, 4096, 4096), Traits(pace=6.0)).tensor
    assert times["nn"] == times["tn"] < times["nt"] == times["tt"] == twice


FIT = Fit(
    "NVIDIA H200",
    (9, 0),
    {
        "cuda_tma:128x128x64_s3_w64x32": Traits(pace=2.0),
        "cuda_tma:16x64x64_s7_w16x16": Traits(pace=3.0),
        "triton:128x128x64_s3_w64x32": Traits(pace=4.0),
        "triton_mma_sync:128x128x64_s4_w64x32": Traits(pace=5.0),
    },
)


def test_what_was_not_measured_is_like_the_most_similar_of_its_family_and_doubted() -> None:
    assert FIT.of(TWO_A_TIME, H200) == Known(Traits(pace=2.0))
    for name, like in (("128x256x64_s2_w64x64", "128x128x64_s3_w64x32"), ("16x128x64_s4_w16x32", "16x64x64_s7_w16x16")):
        known = FIT.of(kernel(name), H200)
        assert known.like == f"cuda_tma:{like}"
        assert known.doubt > 1 + cost.UNMEASURED
        assert f"not measured, taken to be like cuda_tma:{like}" in str(
            cost.predict(kernel(name), Size(9, 9, 9), H200, known)
        )
    # A twin without any difference in what it does would still have to be expected to be quicker.
    again = FIT.of(kernel("128x128x64_s3_w64x32_rotate"), H200)
    ranking = cost.rank([kernel("128x128x64_s3_w64x32_rotate"), TWO_A_TIME], Size(4096, 4096, 4096), H200, FIT)
    assert again.like and ranking[0].kernel == TWO_A_TIME
    assert FIT.of(kernel("128x128x32_s2_w64x32", backend="cuda_cp_async"), H200).like == "nothing"


def test_where_triton_has_no_wgmma_it_is_like_the_kernel_that_has_none_either() -> None:
    twin = kernel("128x128x64_s4_w64x32", backend="triton")
    assert FIT.of(twin, H200).like == "triton:128x128x64_s3_w64x32"
    assert FIT.of(twin, RTX_5090).like == "triton_mma_sync:128x128x64_s4_w64x32"
    measured_with_wgmma = kernel("128x128x64_s3_w64x32", backend="triton")
    assert FIT.of(measured_with_wgmma, RTX_5090).like == "triton_mma_sync:128x128x64_s4_w64x32"


def test_where_nothing_was_measured_the_deeper_ring_of_two_that_are_as_quick() -> None:
    shallow, deep = (kernel(f"128x128x32_s{stages}_w64x32", 49_176) for stages in (2, 3))
    fit = Fit("NVIDIA H200", (9, 0), {shallow.name: Traits(tile=800.0), deep.name: Traits(tile=840.0)})
    size = Size(4096, 4096, 4096)
    for device, first in ((H200, shallow), (RTX_5090, deep)):
        ranking = cost.rank([shallow, deep], size, device, fit)
        assert [prediction.kernel for prediction in ranking] == [first, deep if first is shallow else shallow]
    clearly = Fit("NVIDIA H200", (9, 0), {shallow.name: Traits(), deep.name: Traits(tile=50_000.0)})
    assert cost.rank([shallow, deep], size, RTX_5090, clearly)[0].kernel == shallow


def test_a_library_that_was_not_measured_is_left_out() -> None:
    library = Kernel("cublaslt", None)
    assert cost.rank([library, TWO_A_TIME], Size(64, 64, 64), H200, FIT)[0].kernel == TWO_A_TIME
    assert [p.kernel for p in cost.rank([library], Size(64, 64, 64), RTX_5090, cost.committed())] == []


def test_reasons_say_what_the_time_consists_of() -> None:
    found = predict(ONE_A_TIME, Size(4096, 4096, 4096), Traits())
    assert str(found).startswith("model for NVIDIA H200: 3.88 waves of 132 blocks, 97% full; 64 steps of K; ")
    assert f"{found.tensor * 1e6:.1f} by tensor work, {found.memory * 1e6:.1f} by memory" in str(found)


@pytest.mark.parametrize("device", [H200, RTX_5090, rates("a board", (8, 0), 60), rates("a board", (12, 1), 48)])
def test_every_configuration_has_a_positive_finite_prediction(device: cost.Rates) -> None:
    for size in (Size(1, 1, 1), Size(1, 4096, 4096, 1, "nt"), Size(8192, 8192, 8192, 4)):
        for record in backends():
            for prediction in cost.rank(record.kernels(device, size) if record.kernels else (), size, device):
                assert 0 < prediction.seconds < math.inf
                assert 0 < prediction.fill <= 1


CARDS = [device for device in DEVICES if device.compute_capability[0] == 12]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.title)
def test_what_is_chosen_for_a_card_fits_it(card: Device) -> None:
    board = rates(card.names[0], card.compute_capability, card.multiprocessors)
    for size in (
        Size(1, 4096, 4096),
        Size(4096, 4096, 4096),
        Size(8192, 8192, 8192, layout="nt"),
        Size(256, 256, 8192),
    ):
        for record in backends():
            for prediction in cost.rank(record.kernels(board, size) if record.kernels else (), size, board)[:1]:
                assert prediction.kernel.shared_bytes <= 101_376
                assert prediction.device == card.names[0]


def test_a_fit_survives_its_document() -> None:
    document = json.loads((ROOT / "hgemm" / "cost.json").read_text())
    fit = cost.from_document(document)
    assert fit.traits == cost.committed().traits
    assert cost.to_document(fit).items() <= document.items()


@pytest.mark.parametrize(("cluster", "reached"), [(1, 132), (2, 132), (4, 124), (8, 104)])
def test_clusters_leave_multiprocessors_over_where_they_are_larger_than_a_pair(cluster: int, reached: int) -> None:
    # Of 8 GPCs each lacks, on average, half of the pairs that a further cluster of 4 or 8 blocks would take.
    assert occupancy.reached(cluster, 132) == reached
    assert occupancy.reached(cluster, 4) >= cluster


def test_blocks_that_share_a_tile_read_it_once() -> None:
    # Nothing but reading from L2, 64 bytes a clock and multiprocessor: 32 x 32 tiles of (128 + 128) x 1024 elements.
    def seconds(flags: str) -> float:
        made = kernel(f"128x128x64_s6_w64x32{flags}", 230_000, 1, "triton")
        return predict(made, Size(4096, 4096, 1024)).memory

    alone = 2 * 32 * 32 * 256 * 1024 / (132 * H200.clock_hz * 64)
    assert seconds("") == pytest.approx(alone)
    assert seconds("_multicast") == pytest.approx(alone * 3 / 4)
    assert seconds("_multicast-b") == pytest.approx(alone * 3 / 4)


def test_a_cluster_of_tritons_that_was_not_measured_is_not_weighed() -> None:
    alone, cluster = (
        kernel(f"128x256x64_s4_w64x64{flag}_specialized", backend="triton") for flag in ("", "_multicast-b")
    )
    size, known = Size(4096, 4096, 4096), Traits()

    def weighed(*measured: Kernel) -> set[Kernel]:
        fit = Fit("NVIDIA H200", (9, 0), {made.name: known for made in measured})
        return {prediction.kernel for prediction in cost.rank((alone, cluster), size, H200, fit)}

    assert weighed(alone) == {alone}
    assert weighed(cluster) == weighed(alone, cluster) == {alone, cluster}
