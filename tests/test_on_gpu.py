"""The stages that a GPU has to show, run here with commands that need none."""

from __future__ import annotations

from pathlib import Path

import on_gpu
import pytest
from on_gpu import STAGES, Stage

from hgemm.bench.options import parser, plan_of

QUICK = (
    Stage("prints", "-c 'print([1])' --json", 60, "printed.json"),
    Stage("fails", "-c 'import sys; print(5); sys.exit(\"no GPU\")' --json", 60, "failed.json"),
    Stage("hangs", "-c 'import time; time.sleep(60)'", 1),
    Stage("last", "-c 'print(3)'", 60),
)


def test_a_stage_that_fails_keeps_no_other_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_gpu, "STAGES", QUICK)
    assert on_gpu.main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "prints: well" in said
    assert "fails: 1 after" in said
    assert "hangs: more than 1 s" in said
    assert "last: well" in said
    assert said.endswith("failed: fails, hangs\n")
    assert (tmp_path / "printed.json").read_text() == "[1]\n"
    assert not (tmp_path / "failed.json").exists()
    assert (tmp_path / "fails.log").read_text() == "5\n"
    assert "no GPU" in (tmp_path / "fails.err").read_text()


def test_a_result_that_is_there_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_gpu, "STAGES", QUICK)
    (tmp_path / "printed.json").write_text("mine")
    assert on_gpu.main([str(tmp_path), "prints"]) == 0
    assert "printed.json is there" in capsys.readouterr().out
    assert (tmp_path / "printed.json").read_text() == "mine"
    with pytest.raises(SystemExit):
        on_gpu.main([str(tmp_path), "printing"])


def test_every_measurement_is_a_command_of_bench(tmp_path: Path) -> None:
    for stage in STAGES:
        command = stage.command(tmp_path)
        if "hgemm.bench" in command:
            options = parser().parse_args(command[3:])
            assert str(options.out) == str(tmp_path / (stage.result or ""))
            assert plan_of(options).cases
