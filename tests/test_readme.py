"""What the README tells a reader to type does what it says."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = README + (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "plots" / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, flags=re.M | re.S)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[-1][:40])
def test_examples_run(example: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning:hgemm", "-c", example]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_registered_example_passes_the_check(tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES if "register_backend" in text)
    (tmp_path / "my_kernel.py").write_text(example)
    assert "python -m hgemm.check --backend my_kernel:mine" in README
    command = [sys.executable, "-m", "hgemm.check", "--backend", "my_kernel:mine", "--quick", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_every_make_target_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, flags=re.M))
    named = set(re.findall(r"`?\bmake ([a-z-]+)(?: VENV=)?[`\n]", DOCUMENTS))
    assert {"study", "test"} <= named <= targets


def test_every_option_named_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"python -m hgemm\.(\w+(?:\.\w+)*)((?: --?[a-z][\w-]*(?: [\w./:*]+)?)*)", DOCUMENTS)
    assert len(lines) > 8
    for tool, rest in lines:
        package = ROOT / "hgemm" / tool.replace(".", "/") / "__main__.py"
        module = importlib.import_module(f"hgemm.{tool}.__main__" if package.exists() else f"hgemm.{tool}")
        with pytest.raises(SystemExit):
            module.main(["--help"])
        usage = capsys.readouterr().out
        for option in re.findall(r"--[\w-]+", rest):
            assert option in usage, f"python -m hgemm.{tool} has no {option}"


def test_every_built_in_backend_is_in_the_table() -> None:
    from hgemm.backends import _built_in

    (table,) = re.findall(r"^## The backends\n(.*?)^## ", README, flags=re.M | re.S)
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.M) == list(_built_in())
