"""Names of configurations: one grammar, both ways, and errors that name the bad part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgemm.config import CLUSTERS, FLAGS, SPLITS, Config, warp_tile


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (Config(128, 128, 32, 2, 64, 32), "128x128x32_s2_w64x32"),
        (Config(128, 128, 64, 3, 64, 32), "128x128x64_s3_w64x32"),
        (
            Config(256, 128, 64, 4, 64, 64, ("rotate", "persistent", "store-tma")),
            "256x128x64_s4_w64x64_rotate_persistent_store-tma",
        ),
    ],
)
def test_a_name_spells_its_configuration(config: Config, name: str) -> None:
    assert config.name == str(config) == name
    assert Config.parse(name) == config


SIZES = st.integers(1, 8).map(lambda exponent: 2**exponent)
# Of the splits of K, and of the clusters, a configuration has one at most.
KINDS = {**dict.fromkeys(SPLITS, "split"), **dict.fromkeys(CLUSTERS, "cluster")}
SETS_OF_FLAGS = st.lists(st.sampled_from(FLAGS), unique_by=lambda flag: KINDS.get(flag, flag))


@given(SIZES, SIZES, SIZES, st.integers(1, 12), SIZES, SIZES, SETS_OF_FLAGS)
def test_every_name_parses_back(
    down: int, across: int, k: int, stages: int, warp_m: int, warp_n: int, flags: list[str]
) -> None:
    config = Config(down * warp_m, across * warp_n, k, stages, warp_m, warp_n, tuple(flags))
    assert Config.parse(config.name) == config
    assert config.warps == down * across
    assert config.threads == 32 * down * across


def test_a_split_says_into_how_many_parts() -> None:
    parts = {"16x64x128_s5_w16x16": 1, "16x64x128_s5_w16x16_split2": 2, "64x64x64_s4_w32x32_rotate_split8": 8}
    assert {name: Config.parse(name).parts for name in parts} == parts


def test_a_cluster_says_which_blocks_share_what() -> None:
    shapes = {"": (1, 1), "_multicast": (1, 2), "_multicast-b": (2, 1)}
    configs = {flag: Config.parse(f"64x32x64_s4_w32x32{flag}") for flag in shapes}
    assert {flag: config.cluster_shape for flag, config in configs.items()} == shapes
    assert {flag: config.cluster for flag, config in configs.items()} == {
        flag: down * across for flag, (down, across) in shapes.items()
    }
    # 65 x 65 elements are 2 x 3 tiles, of which clusters are whole.
    tiles = {flag: config.tiles(65, 65) for flag, config in configs.items()}
    assert tiles == {
        "": (2, 3),
        "_multicast": (2, 4),
        "_multicast-b": (2, 3),
    }
    assert configs["_multicast-b"].tiles(129, 32) == (4, 1)
    with pytest.raises(ValueError, match="a block is of one cluster, found multicast-b and multicast"):
        Config(64, 32, 64, 4, 32, 32, ("multicast-b", "multicast"))


def test_flags_have_one_order() -> None:
    one = Config(64, 64, 64, 2, 32, 32, ("tail", "rotate"))
    other = Config(64, 64, 64, 2, 32, 32, ("rotate", "tail"))
    assert one == other
    assert hash(one) == hash(other)
    assert one.name == "64x64x64_s2_w32x32_rotate_tail"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "'' should read <tile M>x<tile N>x<tile K>"),
        ("128x128_s3_w64x32", "'128x128' should read <tile M>x<tile N>x<tile K>"),
        ("128x128x0_s3_w64x32", "'128x128x0' should read"),
        ("0128x128x64_s3_w64x32", "'0128x128x64' should read"),
        ("128x128x64", "part 2, s<stages>, is missing"),
        ("128x128x64_3_w64x32", "'3' should read s<stages>"),
        ("128x128x64_s3", "part 3, w<warp M>x<warp N>, is missing"),
        ("128x128x64_s3_64x32", "'64x32' should read w<warp M>x<warp N>"),
        ("128x128x64_s3_w64x32_split2_split8", "K is split once, found split2 and split8"),
        ("128x128x64_s3_w64x32_split3", "unknown flag 'split3'"),
        ("128x128x64_s3_w48x32", "a warp tile of 48x32 does not divide a block tile of 128x128"),
        ("128x128x64_s3_w64x48", "a warp tile of 64x48 does not divide a block tile of 128x128"),
        ("128x128x64_s3_w64x32_rotation", "unknown flag 'rotation'"),
        ("128x128x64_s3_w64x32_", "unknown flag ''"),
        ("128x128x64_s3_w64x32_rotate_rotate", "'rotate' is given more than once"),
        ("128x128x64_s3_w64x32_tail_rotate", "'128x128x64_s3_w64x32_rotate_tail' is how it is written"),
        ("128x128x64_s3_w64x32 ", "'w64x32 ' should read"),
        ("128x128x64_s3_w64x32\n", "should read"),
        ("128x128x6\u0664_s3_w64x32", "should read"),
    ],
)
def test_a_bad_name_is_refused_by_its_bad_part(name: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        Config.parse(name)
    assert complaint in str(caught.value)
    assert "_s<stages>_" in str(caught.value), "the message spells the grammar"


@pytest.mark.parametrize("field", range(6))
def test_sizes_are_at_least_one(field: int) -> None:
    sizes = [64, 64, 64, 2, 32, 32]
    sizes[field] = 0
    with pytest.raises(ValueError, match="at least 1, found 0"):
        Config(*sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tile_m", "tile_n", "warps", "expected"),
    [
        (128, 256, 8, (64, 64)),
        (256, 128, 8, (64, 64)),
        (128, 128, 8, (64, 32)),
        (128, 128, 4, (64, 64)),
        (64, 64, 4, (32, 32)),
        (128, 64, 4, (64, 32)),
        (64, 128, 4, (64, 32)),
        (64, 256, 4, (64, 64)),
        (64, 256, 2, (64, 128)),
        (64, 64, 1, (64, 64)),
    ],
)
def test_warps_share_a_tile_as_squarely_as_they_can(
    tile_m: int, tile_n: int, warps: int, expected: tuple[int, int]
) -> None:
    assert warp_tile(tile_m, tile_n, warps) == expected
    assert Config(tile_m, tile_n, 64, 3, *expected).warps == warps


def test_an_uneven_split_is_refused() -> None:
    with pytest.raises(ValueError, match="3 warps cannot share a 128x128 tile"):
        warp_tile(128, 128, 3)
