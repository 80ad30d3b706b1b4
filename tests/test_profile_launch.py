"""The process that ncu watches, as far as it goes without a GPU: its operands, and what it answers when it fails."""

import dataclasses
from pathlib import Path

import pytest
import torch

from hgemm.bench.suites import DTYPES, LAYOUTS, Case, Shape
from hgemm.problem import layout_of
from hgemm.profile import launch
from hgemm.profile.launch import Answer, Launch


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_operands_are_those_of_the_case(dtype: str, layout: str) -> None:
    case = Case(Shape(24, 40, 16), dtype, layout, seed=7)
    a, b, out = launch._operands(case, torch.device("cpu"))
    assert (a.shape, b.shape, out.shape) == ((24, 16), (16, 40), (24, 40))
    assert layout_of(a, b) == layout and out.is_contiguous()
    assert {tensor.dtype for tensor in (a, b, out)} == {DTYPES[dtype]}
    again, _, _ = launch._operands(case, torch.device("cpu"))
    other, _, _ = launch._operands(dataclasses.replace(case, seed=8), torch.device("cpu"))
    assert torch.equal(a, again) and not torch.equal(a, other)
    assert 0.8 < a.float().std() < 1.2


def test_a_failure_is_answered_in_words(tmp_path: Path) -> None:
    spec, answer = tmp_path / "launch.json", tmp_path / "answer.json"
    spec.write_text(Launch("cuda_tmaa", None, Case(Shape(64, 64, 64)), 0).dumps())
    assert Answer.read(answer) is None
    assert launch.main([str(spec), str(answer)]) == 0
    found = Answer.read(answer)
    assert found is not None
    assert found.status == "failed"
    assert found.reason.startswith("ValueError: unknown backend 'cuda_tmaa', did you mean 'cuda_tma'?")


def test_a_registered_backend_is_known_to_the_other_process(tmp_path: Path) -> None:
    """Loaded again from its file there: what is found is the backend, and what fails is only the device."""
    file, spec, answer = tmp_path / "mine.py", tmp_path / "launch.json", tmp_path / "answer.json"
    marks = tmp_path / "marks"
    file.write_text(
        "import pathlib, hgemm\n"
        f"pathlib.Path({str(marks)!r}).touch()\n"
        "hgemm.register_backend('mine', lambda a, b, out, config: None)\n"
    )
    wanted = Launch("mine", None, Case(Shape(64, 64, 64)), 99, (str(file),))
    assert Launch.loads(wanted.dumps()) == wanted
    spec.write_text(wanted.dumps())
    launch.main([str(spec), str(answer)])
    found = Answer.read(answer)
    assert marks.exists()
    assert found is not None and found.status == "failed"
    assert "unknown backend" not in found.reason
