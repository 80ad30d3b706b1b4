"""The table of devices against figures that the vendor prints."""

import dataclasses

import pytest

from hgemm.bench.bursts import FASTEST_CLOCK_HZ
from hgemm.bench.results import packaged, read
from hgemm.devices import DEVICES, LIMITS, find, limits_of, rates


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        # Dense fp16 and bf16 with fp32 accumulation, half of the sparse figures where those are printed.
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 PCIe", 756.4),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA GeForce RTX 5080", 112.6),
        ("NVIDIA GeForce RTX 5070 Ti", 87.9),
        ("NVIDIA GeForce RTX 5070", 61.7),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8),
    ],
)
def test_peaks_are_those_that_nvidia_prints(name: str, tflops: float) -> None:
    device = find(name)
    assert device is not None
    assert device.tensor_tflops() == pytest.approx(tflops, rel=1e-3)


def test_a_spin_lasts_as_long_as_it_should_on_every_board() -> None:
    # Boards boost beyond the clock that their peak is rated at: a 5090 of 2,407 MHz to some 2,900.
    assert min(FASTEST_CLOCK_HZ / (device.clock_mhz * 1e6) for device in DEVICES) > 1.2


def test_a_peak_scales_with_the_clock() -> None:
    device = find("NVIDIA GeForce RTX 5090", 170)
    assert device is not None
    assert device.tensor_tflops(device.clock_mhz / 2) == pytest.approx(device.tensor_tflops() / 2)


def test_another_board_under_a_known_name_is_not_found() -> None:
    assert find("NVIDIA H200", 66) is None
    assert find("NVIDIA GeForce RTX 5090 D") is None
    assert find("NVIDIA GeForce RTX 5060 Ti") is not find("NVIDIA GeForce RTX 5060")


def test_an_l2_is_as_large_as_a_driver_reported_it() -> None:
    """In every packaged measurement of a board that the table knows."""
    known = 0
    for path in packaged():
        env = read(path).env
        if device := find(env.gpu, env.multiprocessors):
            assert device.l2_mib << 20 == env.l2_bytes, path.name
            known += 1
    assert known


def test_names_are_unique_and_every_device_has_limits() -> None:
    names = [name for device in DEVICES for name in device.names]
    assert len(names) == len(set(names))
    for device in DEVICES:
        assert device.limits is LIMITS[device.compute_capability]


def test_geforce_blackwell_shares_100_kib_of_shared_memory() -> None:
    assert LIMITS[12, 0].shared_bytes_per_block == 99 * 1024
    assert LIMITS[12, 0].shared_bytes_per_multiprocessor == 100 * 1024
    assert LIMITS[9, 0].shared_bytes_per_block == 227 * 1024


def test_rates_are_those_of_the_board_or_by_multiprocessors_of_one_of_its_kind() -> None:
    known = rates("NVIDIA GeForce RTX 5060 Laptop GPU", (12, 0), 26)
    assert known.multiprocessors * known.flops_per_clock * known.clock_hz == pytest.approx(33.24e12, rel=1e-3)
    assert (known.bandwidth, known.shared_bytes) == (pytest.approx(384e9), 102_400)
    assert rates("RTX 5060 Laptop", (12, 0), 26) == dataclasses.replace(known, title="RTX 5060 Laptop")
    # Nobody's: by its multiprocessors as an A100, whose 108 have 312 TFLOPS and 2,039 GB/s.
    unknown = rates("NVIDIA A30", (8, 0), 54)
    assert unknown.multiprocessors * unknown.flops_per_clock * unknown.clock_hz == pytest.approx(156e12, rel=1e-2)
    assert unknown.bandwidth == pytest.approx(2039e9 / 2)
    # A partition of an H200: half of it.
    half = rates("NVIDIA H200", (9, 0), 66)
    assert (half.multiprocessors, half.bandwidth) == (66, pytest.approx(2.4e12))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 7), (9, 0), (10, 3), (11, 0), (12, 0), (12, 1), (13, 0)])
def test_every_capability_has_rates_and_limits(capability: tuple[int, int]) -> None:
    found = rates("a board", capability, 10)
    assert min(found.flops_per_clock, found.clock_hz, found.bandwidth) > 0
    assert found.shared_bytes == limits_of(capability).shared_bytes_per_multiprocessor
    assert limits_of(capability) == LIMITS.get(capability, limits_of(capability))
