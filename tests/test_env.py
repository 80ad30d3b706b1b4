"""hgemm.env: what a machine can run and why not the rest; a report with nothing personal in it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hgemm
from hgemm import env
from hgemm.backends import _registered
from hgemm.cuda_kernels.toolchain import Tool


@pytest.fixture
def ada(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user, ada, at home on the host countess, whose setup fails in ways that mention all of that."""
    home = tmp_path / "ada"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "ada")
    monkeypatch.setattr("platform.node", lambda: "countess")
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(home / "cache"))
    monkeypatch.setenv("CUDA_HOME", "/scratch/ada/cuda")
    tools: dict[str, Tool | str] = {
        "nvcc": f"CUDA_HOME={home}/cuda has no bin/nvcc",
        "C++ compiler": Tool((f"{home}/bin/g++",), "13.2", "PATH"),
        "ninja": "no ninja: pip install ninja",
    }
    monkeypatch.setattr("hgemm.env.toolchain.describe", lambda: tools)
    record = hgemm.register_backend("broken", lambda a, b, out, config: None)
    _registered["broken"] = replace(
        record,
        unavailable=lambda device_type: f"on {device_type}: {home}/lib.so is a|b, missing on countess, says /var/ada",
    )
    return home


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert env.main(arguments) == 0
    return capsys.readouterr().out


def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    facts: dict[str, Any] = json.loads(shown(["--json"], capsys))
    assert [backend["name"] for backend in facts["backends"]] == list(hgemm.backends().names)
    for backend in facts["backends"]:
        record = hgemm.backends()[backend["name"]]
        assert backend["configs"] == list(record.configs)
        for device_type in ("cuda", "cpu"):
            assert (backend["unavailable"][device_type] is None) == record.available_on(device_type)
    assert len(facts["gpus"]) == torch.cuda.device_count()
    assert {"nvcc", "C++ compiler", "ninja", "kernel cache"} == {tool["name"] for tool in facts["toolchain"]}
    assert all(tool["detail"] for tool in facts["toolchain"])
    assert facts["versions"]["hgemm"] == hgemm.__version__
    assert facts["versions"]["torch"] == torch.__version__


def test_every_reason_is_on_the_screen(capsys: pytest.CaptureFixture[str], ada: Path) -> None:
    text = " ".join(shown([], capsys).split())
    for name in hgemm.backends().names:
        assert name in text
    assert "not on cpu: broken: on cpu: ~/lib.so is a|b, missing" in text
    assert "not on cuda: broken: on cuda: ~/lib.so is a|b, missing" in text
    assert "no nvcc: CUDA_HOME=~/cuda has no bin/nvcc" in text
    assert "yes C++ compiler: 13.2 (PATH)" in text
    assert "no ninja: no ninja: pip install ninja" in text
    assert "yes kernel cache: ~/cache" in text
    assert f"torch {torch.__version__}" in text


@pytest.mark.parametrize("form", [[], ["--json"], ["--report"]])
def test_nothing_personal(form: list[str], capsys: pytest.CaptureFixture[str], ada: Path) -> None:
    text = shown(form, capsys)
    assert "broken" in text
    for word in (str(ada), r"\bada\b", r"\bcountess\b", re.escape(str(Path.cwd()))):
        assert not re.search(word, text), word
    assert "missing on <host>, says /var/<user>" in " ".join(text.split())


def test_a_home_that_is_part_of_another_name_is_left_alone(ada: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_CACHE_DIR", f"{ada}line/cache")
    monkeypatch.setenv("CXX", "/opt/adamant/bin/g++")
    assert env.describe()["variables"]["HGEMM_CACHE_DIR"] == f"{ada}line/cache"
    assert env.describe()["variables"]["CXX"] == "/opt/adamant/bin/g++"


def test_the_report_is_markdown(capsys: pytest.CaptureFixture[str], ada: Path) -> None:
    lines = shown(["--report"], capsys).splitlines()
    assert lines[0] == "### hgemm environment"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(hgemm.backends())
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in table)
    assert any(line.startswith("| torch | ") and line.endswith(" | yes |") for line in table)
    assert "- `CUDA_HOME=/scratch/<user>/cuda`" in lines
    assert f"- torch: {torch.__version__}" in lines
    if not torch.cuda.is_available():
        assert "- GPU: none that torch finds" in lines


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written(ada: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ada.chmod(0o500)
    assert cache_entry()["found"] is False


def test_a_cache_below_a_file_cannot_be_written(ada: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ada / "file").write_text("")
    (ada / "file").chmod(0o755)
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(ada / "file" / "cache"))
    entry = cache_entry()
    assert entry["found"] is False
    assert "~/file/cache cannot be written (Not a directory); set HGEMM_CACHE_DIR" in entry["detail"]
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(ada / "not" / "yet"))
    assert cache_entry() == {"name": "kernel cache", "found": True, "detail": "~/not/yet"}
    assert not (ada / "not").exists(), "looking creates nothing"


def test_a_cache_that_looks_writable_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_CACHE_DIR", "/proc/x")
    entry = cache_entry()
    assert entry["found"] is False
    assert "/proc/x cannot be written (" in entry["detail"]


def test_settings_of_the_emulator_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HGEMM_EMULATOR_LIMIT", "12345")
    assert "HGEMM_EMULATOR_LIMIT=12345" in shown([], capsys)


def cache_entry() -> dict[str, Any]:
    (entry,) = (tool for tool in env.describe()["toolchain"] if tool["name"] == "kernel cache")
    return dict(entry)


@pytest.mark.gpu
def test_the_gpu_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(shown(["--json"], capsys))
    gpu = facts["gpus"][0]
    assert gpu["GPU"] == torch.cuda.get_device_name(0)
    assert gpu["compute capability"] == ".".join(map(str, torch.cuda.get_device_capability(0)))
    assert gpu["multiprocessors"] > 0
    assert gpu["driver"]
