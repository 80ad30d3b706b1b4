"""What is measured: named suites against sizes worked out by hand, batches, layouts, and shapes from a file."""

from pathlib import Path

import pytest
from made_up_suites import PROJECTIONS, ROWS

from hgemm.bench.options import parser, plan_of
from hgemm.bench.shapes_file import ListedShape, read_shapes
from hgemm.bench.suites import SUITES, Case, Shape


def planned(*arguments: str) -> tuple[Case, ...]:
    return plan_of(parser().parse_args(arguments)).cases


def test_projections_are_those_of_the_models_at_five_numbers_of_tokens() -> None:
    found: dict[str | None, dict[int, tuple[int, int]]] = {}
    for shape in SUITES["llm"]:
        found.setdefault(shape.label, {})[shape.M] = shape.N, shape.K
    assert found == {label: dict.fromkeys(ROWS, size) for label, size in PROJECTIONS.items()}


def test_the_llm_suite_multiplies_by_transposed_weights_unless_told_otherwise() -> None:
    assert {case.layout for case in planned("--suite", "llm")} == {"nt"}
    assert {case.layout for case in planned("--suite", "llm", "--layouts", "nn,tt")} == {"nn", "tt"}
    assert {case.layout for case in planned("--suite", "squares")} == {"nn"}
    # What stands beside the suite keeps the layout that it has without it.
    assert {case.layout for case in planned("--suite", "llm", "--mnk", "8,8,8") if case.shape.M == 8} == {"nn"}


def test_squares_reach_from_256_to_16384() -> None:
    sizes = [shape.M for shape in SUITES["squares"]]
    assert (sizes[0], sizes[-1]) == (256, 16384)
    assert sizes == sorted(sizes)
    assert all(shape.M == shape.N == shape.K for shape in SUITES["squares"])


def test_every_suite_is_small_enough_for_32_bit_batches_and_has_no_case_twice() -> None:
    for name, shapes in SUITES.items():
        assert len(set(shapes)) == len(shapes), name
    assert all(shape.batch > 1 for shape in SUITES["batched"])


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("4096,2048,512", Shape(4096, 2048, 512)),
        (" 8x16, 24,32 ", Shape(16, 24, 32, batch=8)),
        ("8 x 16,24,32", Shape(16, 24, 32, batch=8)),
        ("1x16,24,32", Shape(16, 24, 32)),
    ],
)
def test_a_shape_may_have_a_batch(text: str, shape: Shape) -> None:
    assert Shape.parse(text) == shape
    assert Shape.parse(str(shape)) == shape


@pytest.mark.parametrize("text", ["0x8,8,8", "x8,8,8", "2x3x8,8,8", "2*8,8,8", "2x8,8", "-2x8,8,8"])
def test_a_batch_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"BxM,N,K, as in 8x1024,1024,512; found"):
        Shape.parse(text)


def test_without_a_suite_the_quick_one_is_measured_and_shapes_take_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("M,N,K\n8,16,24\n")
    assert {case.shape for case in planned()} == set(SUITES["quick"])
    assert [case.shape for case in planned("--mnk", "8,8,8")] == [Shape(8, 8, 8)]
    assert [case.shape for case in planned("--shapes", str(path))] == [Shape(8, 16, 24)]
    both = planned("--shapes", str(path), "--mnk", "8,8,8", "--suite", "quick")
    assert [case.shape for case in both] == [*SUITES["quick"], Shape(8, 8, 8), Shape(8, 16, 24)]


FILE = """\ufeff# what our service multiplies
 label , M,N, K,batch,dtype,layout

attention, 128,128,64,32,fp16,nt
"up, gate",16,4096,1024,,,
,8,8,8,1,,nn
"""


def test_a_file_of_shapes(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(FILE, encoding="utf-8")
    assert read_shapes(path) == (
        ListedShape(Shape(128, 128, 64, 32, "attention"), "fp16", "nt"),
        ListedShape(Shape(16, 4096, 1024, 1, "up, gate"), None, None),
        ListedShape(Shape(8, 8, 8), None, "nn"),
    )
    # What a line says stands; what it leaves open is for the options. Dtype by dtype.
    cases = planned("--shapes", str(path), "--dtypes", "bf16,fp16", "--layouts", "tn")
    assert [(case.shape.M, case.dtype, case.layout) for case in cases] == [
        (128, "fp16", "nt"),
        (16, "fp16", "tn"),
        (8, "fp16", "nn"),
        (16, "bf16", "tn"),
        (8, "bf16", "nn"),
    ]
    for listed in read_shapes(path):
        assert ListedShape.parse(listed.text) == listed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.csv: empty; the first line is a header such as M,N,K,label"),
        ("# nothing\n\n", "mine.csv: empty"),
        ("M,N\n1,2\n", "line 1: the header names M, N, K and, where wanted, batch, dtype, layout, label, each once; "),
        ("M,N,K,K\n", "line 1: the header names M, N, K"),
        ("M,N,K,stride\n", "found 'M,N,K,stride'"),
        ("4096,4096,4096\n", "found '4096,4096,4096'"),
        ("M,N,K\n", "line 1: there is no shape after the header"),
        ("M,N,K\n8,8,8\n\n# x\n8,0,8\n", "line 5: N must be a positive integer, found '0'"),
        (f"M,N,K\n8,8,1{'0' * 400}\n", f"line 2: K must be a positive integer, found '1{'0' * 78} ("),
        ("M,N,K,label\n8,8,8,a\x1b[31m\n", "line 2: label must be text without control characters, found 'a\\x1b[31m'"),
        ("M,N,K\n8,8,1e3\n", "line 2: K must be a positive integer, found '1e3'"),
        ("M,N,K\n8,8,²\n", "line 2: K must be a positive integer, found '²'"),
        ("M,N,K\n8,8\n", "line 2: the header has 3 columns, found 2: '8,8'"),
        ("M,N,K,batch\n8,8,8,-1\n", "line 2: batch must be a positive integer, found '-1'"),
        ("M,N,K,dtype\n8,8,8,fp8\n", "line 2: dtype must be one of bf16, fp16 or empty, found 'fp8'"),
        ("M,N,K,layout\n8,8,8,NT\n", "line 2: layout must be one of nn, nt, tn, tt or empty, found 'NT'"),
        (b"M,N,K\n\xff\xfe\n", "not a text file in UTF-8"),
        (None, "mine.csv: No such file or directory"),
    ],
)
def test_a_file_of_no_use_is_refused_with_its_line(
    text: str | bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SystemExit):
        planned("--shapes", str(path))
    assert message in capsys.readouterr().err.splitlines()[-1]
