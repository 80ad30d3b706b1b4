"""python -m hgemm.tune on a CUDA device: what it keeps is what ``auto`` follows."""

import json
from pathlib import Path

import pytest
import torch

import hgemm
from hgemm import check, tuned, tuned_file
from hgemm.tune.__main__ import main

pytestmark = pytest.mark.gpu

WHO = ["--backends", "triton*"]  # no CUDA units to build in an empty cache


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuned, "folders", tuned_file.folders)
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("jobs", ["0", "2"])
def test_what_is_tuned_is_followed(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--mnk", "1000,504,256", "4x256,256,128", "--layouts", "nt", *WHO, "--jobs", jobs, "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["tuned"]) == 2
    for one in document["tuned"]:
        assert one["ranking"] and not one["wrong"]
        batch = () if one["batch"] == 1 else (one["batch"],)
        a = torch.randn(*batch, one["M"], one["K"], device="cuda", dtype=torch.bfloat16)
        b = torch.randn(*batch, one["N"], one["K"], device="cuda", dtype=torch.bfloat16).mT
        choice = hgemm.explain(a, b)
        first = one["ranking"][0]
        assert (choice.backend, choice.config) == (first["backend"], first["config"])
        assert "tuned here on " in choice.reason
        c = hgemm.matmul(a, b)
        products = [(a, b, c)] if not batch else list(zip(a, b, c, strict=True))
        assert all(check.verify(*product).passed for product in products)
    assert main(command) == 0
    assert len(json.loads(capsys.readouterr().out)["known"]) == 2
    assert main(["--forget"]) == 0
    assert "2 tuned products" in capsys.readouterr().out
    assert "tuned here" not in hgemm.explain(a, b).reason
