"""Colours that stay apart, titles that fit, and what the footer says of how a file was measured."""

from itertools import combinations

import numpy as np
import pytest
from made_up_results import SERIES, SQUARES, results
from picture_texts import assert_texts_are_apart_and_inside, texts

from hgemm.backends import backends
from hgemm.bench.metrics import timed_rows
from hgemm.plot import ceiling, heatmap, sizes, style
from hgemm.plot.grouping import best_of_backends, by_configuration, groups

# What is seen with all three cones, and without one kind of them: Machado, Oliveira and Fernandes, "A Physiologically-
# based Model for Simulation of Color Vision Deficiency", 2009, severity 1.0, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Linear RGB to cones, and their cube roots to Oklab (Ottosson, 2020).
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def seen(colour: str, vision: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return OKLAB @ np.cbrt(CONES @ np.clip(VISION[vision] @ linear, 0, 1))


@pytest.mark.parametrize("vision", VISION)
def test_colours_of_backends_stay_apart(vision: str) -> None:
    names = [*(backend.name for backend in backends()), "triton_mma_sync", "triton_gluon"]
    looks = style.backend_looks(dict.fromkeys(names))
    for (first, a), (second, b) in combinations(looks.items(), 2):
        distance = np.linalg.norm(seen(a.colour, vision) - seen(b.colour, vision))
        # A difference of 0.02 is just seen when patches touch.
        assert distance > 0.06, f"{first} and {second} under {vision}: {distance:.3f}"


def test_ink_contrasts_with_what_it_is_written_on() -> None:
    assert style.ink_on((1, 1, 1, 1)) == style.INK
    assert style.ink_on((0.02, 0.19, 0.38, 1)) == "white"
    assert style.ink_on((0.4, 0.0, 0.12)) == "white"


@pytest.mark.parametrize("kind", [ceiling.draw, heatmap.draw, sizes.draw])
def test_the_longest_names_fit_the_page(kind) -> None:
    made_up = results(
        shapes=SQUARES[:2], series=SERIES[:2], gpu="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    )
    for case in made_up.cases:
        case.layout, case.batch, case.distribution = "tt", 16384, "zeros"
    assert_texts_are_apart_and_inside(kind(made_up, "bf16"))


def test_long_remarks_are_wrapped_at_words() -> None:
    figure = style.new_figure(3)
    remark = " ".join(["a remark that goes on"] * 20)
    made_up = results(shapes=SQUARES[:1], series=SERIES[:1])
    style.footer(figure, made_up, remark)
    (text,) = texts(figure)
    assert " ".join(text.splitlines()).startswith(remark)
    assert len(text.splitlines()) >= 5
    assert style.footer_inches(made_up, remark) > style.footer_inches(made_up, "short") + 0.2
    assert_texts_are_apart_and_inside(figure)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("cold", "device time, L2 flushed before each call"), ("e2e", "the host's time to issue a call")],
)
def test_the_footer_names_the_mode(mode: str, words: str) -> None:
    made_up = results(shapes=SQUARES[:1], series=SERIES[:1])
    timed_rows(made_up.cases[0])[0].timing.mode = mode
    assert style.provenance(made_up)[1].startswith(words)


def test_calls_that_allocate_are_entrants_of_their_own() -> None:
    made_up = results(shapes=SQUARES[:2], series=SERIES[:1])
    for case in made_up.cases:
        case.rows += results(shapes=SQUARES[:1], series=SERIES[:1]).cases[0].rows
        timed_rows(case)[1].allocates = True
    assert [entrant.name for entrant in by_configuration(made_up.cases)] == ["torch", "torch, allocating"]
    assert [entrant.name for entrant in best_of_backends(made_up.cases)] == ["torch", "torch, allocating"]


def test_cases_are_grouped_by_what_they_have_in_common() -> None:
    shape = type(SQUARES[0])
    made_up = results(shapes=[*SQUARES, shape(64, 512, 256), shape(16, 512, 256), shape(3, 5, 7)], series=SERIES[:1])
    found = [(group.title, group.axis, [case.M for case in group.cases]) for group in groups(made_up.cases)]
    assert found == [
        ("M = N = K", "size", [2048, 4096, 8192]),
        ("N 512, K 256", "M", [16, 64]),
        ("other products", "case", [3]),
    ]
    # A square alone joins the products of its weight; a layout of its own is a group of its own.
    made_up.cases = made_up.cases[2:3] + results(shapes=[shape(16, 8192, 8192)], series=SERIES[:1]).cases
    assert [(group.title, group.axis) for group in groups(made_up.cases)] == [("N 8192, K 8192", "M")]
    made_up.cases[0].layout = "nt"
    assert [group.title for group in groups(made_up.cases)] == ["other products, nt", "other products"]
