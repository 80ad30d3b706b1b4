"""What a report says: figures worked out by hand, every chart, all text as text, and the files themselves."""

import base64
import dataclasses
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import matplotlib.pyplot as plt
import pytest
from html_page import Page
from made_up_results import RAGGED, SERIES, SQUARES, results, row, timing
from matplotlib.figure import Figure

from hgemm.bench.metrics import CEILING, COPY
from hgemm.bench.results import write
from hgemm.bench.schema import Mode, Results, Roof, Row, Timing
from hgemm.plot import KINDS, WHOLE_RUN, NothingToDraw
from hgemm.report import charts, read, render

FASTEST = "The fastest contestant of each product"
NOT_TIMED = "What was not timed, and why"
EVIL = """<script>document.title = "taken"</script><img src="x" onerror="alert(1)">'"&amp;"""
SHORT_EVIL = "<script>taken</script>"


def source(measured: Results, folder: Path, name: str = "run.json"):
    path = folder / name
    write(measured, path)
    return read(path)


def page_of(measured: Results, folder: Path) -> Page:
    return Page(render([source(measured, folder)]))


def exact(tera: list[float], flops: int, **changes: object) -> Timing:
    """Samples of exactly these speeds, a round each."""
    made = timing(1.0, flops, 10**6, len(tera), random.Random(0))
    return dataclasses.replace(made, samples_us=[flops / speed * 1e-6 for speed in tera], **changes)


def hand_made(*rows: Row, M: int = 1000, bytes_moved: int = 10**6) -> Results:
    """One case of 2 x M x 1000 x 1000 operations, with a ceiling of 200 TFLOPS and copies at 1000 GB/s."""
    whole = results(shapes=SQUARES[:1], rounds=3)
    flops = 2 * M * 10**6
    ceiling = row("roof", CEILING, None, exact([200.0, 200.0, 200.0], flops))
    case = dataclasses.replace(
        whole.cases[0],
        M=M,
        N=1000,
        K=1000,
        flops=flops,
        compulsory_bytes=bytes_moved,
        rows=[ceiling, *(_moving(bytes_moved, each) for each in rows)],
    )
    roofs = [
        Roof(CEILING, "compute", "TFLOPS", "bf16", "float32", 200.0, [200.0], 1980.0, "made up"),
        Roof(COPY, "bandwidth", "GB/s", None, None, 1000.0, [1000.0], 1980.0, "made up"),
    ]
    return dataclasses.replace(whole, cases=[case], roofs=roofs)


def _moving(nbytes: int, row: Row) -> Row:
    return dataclasses.replace(row, timing=row.timing and dataclasses.replace(row.timing, bytes_per_call=nbytes))


def contestant(backend: str, tera: list[float], config: str | None = None, M: int = 1000) -> Row:
    return row("contestant", backend, config, exact(tera, 2 * M * 10**6), registers=128, shared_bytes=49152)


THREE = (
    contestant("torch", [50.0, 40.0, 60.0]),
    contestant("cuda_tma", [100.0, 80.0, 120.0], "128x128x64_s3_w64x32"),
    contestant("triton", [99.5, 79.6, 119.4]),
)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is beside them."""
    monkeypatch.setattr("hgemm.report.charts.KINDS", {})


Drawn = dict[tuple[int, str, str | None], str | None]
"""By section, kind and dtype: why there is no such chart, or None where there is."""


@pytest.fixture(scope="module")
def whole_and_drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Drawn]:
    """A page of two files, one in each dtype, with every kind of chart; and what was to be drawn for it."""
    folder = tmp_path_factory.mktemp("whole")
    squares = source(results(shapes=(*SQUARES, RAGGED)), folder, "squares.json")
    other = results(shapes=SQUARES[:2], dtypes=("fp16",), gpu="NVIDIA GeForce RTX 5090")
    for case in other.cases:
        case.rows = [each for each in case.rows if each.role != "roof"]
    drawn: Drawn = {}

    def watched(kind: str, draw: Callable[..., Figure], measured: Results, dtype: str | None) -> Figure:
        place = 1 if measured.env.gpu == "NVIDIA H200" else 2, kind, dtype
        try:
            figure = draw(measured, dtype)
        except NothingToDraw as error:
            drawn[place] = str(error)
            raise
        drawn[place] = None
        return figure

    with pytest.MonkeyPatch.context() as patch:
        kinds = {kind: functools.partial(watched, kind, draw) for kind, draw in KINDS.items()}
        patch.setattr("hgemm.report.charts.KINDS", kinds)
        return render([squares, source(other, folder, "other.json")]), drawn


@pytest.fixture(scope="module")
def whole(whole_and_drawn: tuple[str, Drawn]) -> str:
    return whole_and_drawn[0]


@pytest.mark.usefixtures("without_charts")
def test_the_answer_is_the_fastest_with_its_ratio_share_and_equals(tmp_path: Path) -> None:
    page = page_of(hand_made(*THREE), tmp_path)
    headings, line = page.tables[FASTEST]
    found = dict(zip(headings, line, strict=True))
    # 2e9 operations at 100 TFLOPS take 20 us. Each round it is at exactly twice torch, and triton at 0.995 of it.
    assert found == {
        "M × N × K": "1000 × 1000 × 1000",
        "Kind": "bf16",
        "Bound by": "compute",
        "Fastest": "cuda_tma128x128x64_s3_w64x32",
        "TFLOPS": "100.0",
        "µs": "20.00",
        "× torch (95% interval)": "2.000 (2.000–2.000)",
        "Of mma.sync": "50.0%",
        "Of copy": "",
        "Within 1% of it": "triton",
    }
    assert (
        "In the one compute-bound product, cuda_tma is fastest; within 1% of it: triton. "
        "Among the kernels that are no vendor's library cuda_tma leads, at 2.00 × torch."
    ) in page.text


@pytest.mark.usefixtures("without_charts")
def test_a_ratio_of_a_single_round_has_no_interval(tmp_path: Path) -> None:
    page = page_of(hand_made(contestant("torch", [50.0]), contestant("triton", [100.0])), tmp_path)
    headings, line = page.tables[FASTEST]
    assert dict(zip(headings, line, strict=True))["× torch (95% interval)"] == "2.000 (one round)"


@pytest.mark.usefixtures("without_charts")
def test_a_run_cut_short_tells_how_many_rounds_there_were(tmp_path: Path) -> None:
    assert "Then come 3 rounds. In each" in page_of(hand_made(*THREE), tmp_path).text
    cut = hand_made(*THREE)
    cut.cases.append(hand_made(contestant("torch", [50.0]), M=2000).cases[0])
    assert "Then come 1 to 3 rounds. In each" in page_of(cut, tmp_path).text


@pytest.mark.usefixtures("without_charts")
def test_who_is_more_than_the_margin_behind_is_not_level(tmp_path: Path) -> None:
    page = page_of(hand_made(THREE[0], THREE[1], contestant("triton", [98.9, 79.1, 118.6])), tmp_path)
    assert page.tables[FASTEST][1][-1] == ""
    assert "is fastest. Among" in page.text


@pytest.mark.usefixtures("without_charts")
def test_a_product_below_the_ridge_is_bound_by_memory(tmp_path: Path) -> None:
    # The roofs meet at 200e12 / 1000e9 = 200 operations a byte; here are 2e9 / 1e7 = 200 and then a little less.
    assert page_of(hand_made(*THREE, bytes_moved=10**7), tmp_path).tables[FASTEST][1][2] == "compute"
    page = page_of(hand_made(*THREE, bytes_moved=10**7 + 10**5), tmp_path)
    assert page.tables[FASTEST][1][2] == "memory"
    # 10.1 MB in 20 us are 505 GB/s.
    assert page.tables[FASTEST][1][8] == "50.5%"
    assert "In the one memory-bound product, cuda_tma is fastest; " in page.text


@pytest.mark.usefixtures("without_charts")
def test_the_answer_counts_over_products(tmp_path: Path) -> None:
    first = hand_made(*THREE)
    second = hand_made(contestant("torch", [90.0] * 3, M=2000), contestant("cuda_tma", [45.0] * 3, M=2000), M=2000)
    third = hand_made(contestant("torch", [90.0] * 3, M=3000), contestant("cuda_tma", [45.0] * 3, M=3000), M=3000)
    cases = [case for each in (first, second, third) for case in each.cases]
    text = page_of(dataclasses.replace(first, cases=cases), tmp_path).text
    assert "Of 3 compute-bound products, torch is fastest in 2, cuda_tma in 1. " in text
    assert "Fastest or within 1% of it: torch in 2, cuda_tma in 1, triton in 1. " in text
    # (2 x 1/2 x 1/2) to the power 1/3
    assert "cuda_tma leads, at 0.79 × torch in the geometric mean, from 0.50 to 2.00." in text


@pytest.mark.usefixtures("without_charts")
def test_the_table_of_a_case_has_everybody_fastest_first_and_the_ceiling_below(tmp_path: Path) -> None:
    page = page_of(hand_made(*THREE), tmp_path)
    (name,) = (caption for caption in page.tables if caption.startswith("1000 × 1000 × 1000, bf16"))
    headings, *lines = page.tables[name]
    assert [line[0] for line in lines] == ["cuda_tma", "triton", "torch", "mma.sync"]
    assert dict(zip(headings, lines[0], strict=True)) == {
        "Backend": "cuda_tma",
        "Configuration": "128x128x64_s3_w64x32",
        "TFLOPS": "100.0",
        "5%–95%": "82.0–118.0",
        "µs": "20.00",
        "GB/s": "50",
        "× torch (95% interval)": "2.000 (2.000–2.000)",
        "Of mma.sync": "50.0%",
        "Error / bound": "0.31",
        "Clock, MHz": "1980",
        "Registers": "128",
        "Shared, KiB": "48",
        "Remarks": "noisy",
    }


@pytest.mark.usefixtures("without_charts")
def test_what_was_not_timed_is_said_once_with_its_reason_and_its_places(tmp_path: Path) -> None:
    refused = Row("contestant", "triton", "128x128x64_s3_w64x32", "refused", "N must be a multiple of 8")
    crashed = Row("contestant", "mine", None, "failed", "RuntimeError: <no> good")
    measured = results(shapes=SQUARES, rounds=3)
    for case in measured.cases:
        case.rows = [each for each in case.rows if each.timing] + [refused]
    measured.cases[1].rows.append(crashed)
    _, *lines = page_of(measured, tmp_path).tables[NOT_TIMED]
    assert lines == [
        ["triton:128x128x64_s3_w64x32", "refused", "N must be a multiple of 8", "in every product"],
        ["mine", "failed", "RuntimeError: <no> good", "4096 × 4096 × 4096 bf16"],
    ]


@pytest.mark.usefixtures("without_charts")
def test_batches_labels_and_layouts_tell_cases_apart(tmp_path: Path) -> None:
    measured = hand_made(*THREE)
    measured.cases[0] = dataclasses.replace(measured.cases[0], M=250, batch=4, label="8B gate_up", layout="nt")
    line = page_of(measured, tmp_path).tables[FASTEST][1]
    assert line[:2] == ["4 × (250 × 1000 × 1000)", "bf16, nt, 8B gate_up"]


@pytest.mark.usefixtures("without_charts")
def test_time_on_the_host_is_no_share_of_the_device_and_like_is_compared_with_like(tmp_path: Path) -> None:
    rows = []
    for each in THREE:
        assert each.timing is not None
        host = dataclasses.replace(each.timing, mode="e2e", finished_us=[30.0, 31.0, 35.0])
        # Whoever allocates takes four times as long; torch is the faster for it, and not the fastest in the answer.
        slower = 0.4 if each.backend == "torch" else 4
        slow = dataclasses.replace(host, samples_us=[slower * time for time in host.samples_us])
        rows += [dataclasses.replace(each, timing=host)]
        rows += [dataclasses.replace(each, timing=slow, allocates=True)]
    refused = Row("contestant", "cublas", None, "refused", "no")
    measured = hand_made(*rows, refused, dataclasses.replace(refused, allocates=True))
    page = page_of(measured, tmp_path)
    assert not {"TFLOPS", "Of mma.sync", "Of copy", "GB/s"} & {
        heading for lines in page.tables.values() for heading in lines[0]
    }
    assert page.tables[FASTEST][1][3:6] == ["cuda_tma128x128x64_s3_w64x32", "20.00", "2.000 (2.000–2.000)"]
    assert page.tables[FASTEST][1][-1] == "triton"
    (name,) = (caption for caption in page.tables if caption.startswith("1000 × 1000 × 1000, bf16"))
    assert [(line[0], *line[2:6]) for line in page.tables[name][1:]] == [
        ("cuda_tma", "into out=", "20.00", "31.00", "2.000 (2.000–2.000)"),
        ("triton", "into out=", "20.10", "31.00", "1.990 (1.990–1.990)"),
        ("torch", "into out=", "40.00", "31.00", "1.000 (1.000–1.000)"),
        ("torch", "allocated", "16.00", "31.00", "1.000 (1.000–1.000)"),
        ("cuda_tma", "allocated", "80.00", "31.00", "0.200 (0.200–0.200)"),
        ("triton", "allocated", "80.40", "31.00", "0.199 (0.199–0.199)"),
    ]
    assert page.tables[NOT_TIMED][1:] == [["cublas", "refused", "no", "in the one product"]]
    assert "Time is the host's to issue one call" in page.text


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.usefixtures("without_charts")
def test_every_mode_is_explained(mode: Mode, tmp_path: Path) -> None:
    rows = [dataclasses.replace(each, timing=dataclasses.replace(each.timing, mode=mode)) for each in THREE]
    if mode == "e2e":
        rows = [
            dataclasses.replace(each, timing=dataclasses.replace(each.timing, finished_us=[30.0] * 3)) for each in rows
        ]
    assert page_of(hand_made(*rows), tmp_path).text.count("Time is the ") == 1


def test_every_kind_of_chart_is_there_or_its_absence_is_explained(whole_and_drawn: tuple[str, Drawn]) -> None:
    whole, drawn = whole_and_drawn
    dtypes = {1: "bf16", 2: "fp16"}
    assert set(drawn) == {
        (section, kind, None if kind in WHOLE_RUN else dtype) for section, dtype in dtypes.items() for kind in KINDS
    }
    pages = dict(zip(dtypes, whole.split("<section ")[1:], strict=True))
    for (section, kind, dtype), reason in drawn.items():
        assert (f'id="s{section}-{kind}-{dtype or "all"}-' in pages[section]) == (reason is None)
        assert reason is None or reason in Page(pages[section]).text
    assert {reason is None for reason in drawn.values()} == {True, False}
    pictures = Page(whole).all("svg")
    assert len(pictures) == list(drawn.values()).count(None)
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    assert not plt.get_fignums()


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_has_a_caption_that_says_what_it_shows(kind: str) -> None:
    caption = charts.caption(KINDS[kind])
    assert caption.endswith(".") and len(caption.split()) > 5


def test_it_stands_alone_and_every_reference_inside_it_leads_somewhere(whole: str) -> None:
    page = Page(whole)
    assert page.outside == []
    assert "@import" not in whole and "<link" in whole
    assert len(page.ids) == len(set(page.ids))
    assert page.references and page.references <= set(page.ids)
    assert page.all("script") == [{}]


def test_style_sheets_of_charts_do_not_reach_the_page(whole: str) -> None:
    assert whole.count("<style") == 1
    assert "<!DOCTYPE svg" not in whole and "<metadata" not in whole


@pytest.mark.usefixtures("without_charts")
def test_the_page_carries_its_files_byte_by_byte(whole: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write(results(shapes=SQUARES[:1], rounds=3), path)
    path.write_bytes(path.read_bytes() + b"\n\n")  # still what was measured, and not what would be written today
    (link,) = (each for each in Page(render([read(path)])).all("a") if "download" in each)
    assert link["download"] == "run.json"
    assert base64.b64decode(link["href"].removeprefix("data:application/json;base64,")) == path.read_bytes()
    assert [each["download"] for each in Page(whole).all("a") if "download" in each] == ["squares.json", "other.json"]


def test_each_file_is_a_section_and_every_gpu_is_in_the_title(whole: str) -> None:
    page = Page(whole)
    assert [each["id"] for each in page.all("section")] == ["s1", "s2"]
    assert "<title>Half-precision matrix products on NVIDIA H200, NVIDIA GeForce RTX 5090</title>" in whole


def test_equal_files_give_equal_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgemm.report.charts.KINDS", {"roofline": KINDS["roofline"]})
    measured = source(results(shapes=SQUARES[:1], rounds=3), tmp_path)
    assert render([measured]) == render([measured])


def test_text_from_a_file_stays_text(tmp_path: Path) -> None:
    measured = results(
        shapes=SQUARES[:1], rounds=3, series=(*SERIES[:2], (SHORT_EVIL, SHORT_EVIL, 2.0, 128, 49152)), gpu=EVIL
    )
    measured.cases[0].rows.append(Row("contestant", EVIL, EVIL, "failed", EVIL))
    measured.cases[0] = dataclasses.replace(measured.cases[0], label=EVIL)
    measured.env = dataclasses.replace(measured.env, driver=EVIL, platform=EVIL)
    measured.run = dataclasses.replace(measured.run, revision=EVIL, options={EVIL: [EVIL]})
    measured.flags = {EVIL: EVIL}
    measured.roofs[0] = dataclasses.replace(measured.roofs[0], note=EVIL)
    named = dataclasses.replace(source(measured, tmp_path), name=EVIL)
    page = Page(render([named]))
    assert page.all("script") == [{}]
    assert page.all("img") == []
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count("taken") > 10
    assert page.tables[FASTEST][1][3] == 2 * SHORT_EVIL


@pytest.mark.usefixtures("without_charts")
def test_a_run_that_ended_early_says_so(tmp_path: Path) -> None:
    measured = hand_made(*THREE)
    assert "ended early" not in page_of(measured, tmp_path).text
    measured.run = dataclasses.replace(measured.run, complete=False)
    assert "This run ended early" in page_of(measured, tmp_path).text


@pytest.mark.usefixtures("without_charts")
def test_a_case_that_nobody_was_timed_in_is_no_answer(tmp_path: Path) -> None:
    measured = hand_made(*THREE)
    nobody = [Row("contestant", "torch", None, "interrupted")]
    measured.cases.append(dataclasses.replace(measured.cases[0], M=7, flops=14 * 10**6, rows=nobody))
    page = page_of(measured, tmp_path)
    assert len(page.tables[FASTEST]) == 2
    assert page.tables[NOT_TIMED][1] == ["torch", "interrupted", "", "7 × 1000 × 1000 bf16"]


def test_a_page_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one results file"):
        render([])
