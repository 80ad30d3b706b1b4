"""The package as others get it: a wheel in a fresh environment, an archive of its sources, a checkout not installed."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_CLONED = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")


def call(command: Sequence[str | Path], cwd: Path) -> str:
    """Standard output of a command that has to succeed with no GPU, no package index and nothing on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def environment(folder: Path) -> Path:
    """The Python of a fresh environment that finds the dependencies here, but not this package however installed.

    A path that a .pth file adds is not searched for further .pth files, which is how an editable install shows itself.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(call([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site / "dependencies.pth").write_text("\n".join(paths))
    return python


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout as a fresh clone has it: building in it leaves nothing behind."""
    folder = tmp_path_factory.mktemp("clone") / "hgemm"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*NOT_CLONED))
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by way of the archive of sources, as an index would get both."""
    pytest.importorskip("build", reason="the package `build` is not installed: pip install 'hgemm[test]'")
    dist = tmp_path_factory.mktemp("dist")
    call([sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, clone], clone)
    assert len(list(dist.glob("hgemm-*.tar.gz"))) == 1
    (built,) = dist.glob("hgemm-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("installed")
    python = environment(folder)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--ignore-installed"]
    call([*pip, wheel], folder)
    return python


def sources(folder: Path) -> set[str]:
    """What the package holds in a checkout, by the names that it has inside the wheel."""
    suffixes = {".py", ".typed", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".json", ".html", ".css", ".js"}
    inside = {"cuda_kernels": "hgemm/cuda_kernels", "triton_kernels": "hgemm/triton_kernels"}
    inside |= {"plots/results": "hgemm/results"}
    assert all((folder / link).resolve() == (folder / home).resolve() for home, link in inside.items())
    return {
        f"{inside.get(home, home)}/{path.relative_to(folder / home)}"
        for home in ("hgemm", *inside)
        for path in (folder / home).rglob("*")
        if path.suffix in suffixes and not path.is_relative_to(folder / "hgemm" / "results")
        # Whether a search follows links to folders depends on the release of Python.
        if home != "hgemm" or path.relative_to(folder / home).parts[0] not in ("cuda_kernels", "triton_kernels")
    }


def test_the_wheel_holds_every_source_once(wheel: Path, clone: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    inside = [name for name in names if ".dist-info/" not in name]
    assert sorted(inside) == sorted(sources(clone))
    assert {"hgemm/py.typed", "hgemm/cuda_kernels/ptx.cuh", "hgemm/cuda_kernels/launch.h"} <= set(inside)
    assert {"hgemm/cuda_kernels/binding.cpp", "hgemm/triton_kernels/tma.py"} <= set(inside)
    assert any(name.endswith(("/licenses/LICENSE", ".dist-info/LICENSE")) for name in names)


def test_the_wheel_is_pure_python_and_names_its_dependencies(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode().splitlines()
    required = {line.removeprefix("Requires-Dist: ") for line in metadata if line.startswith("Requires-Dist: ")}
    assert {"torch>=2.10", "triton>=3.6", "ninja", "numpy"} <= required
    assert "Requires-Python: >=3.11" in metadata
    assert {f"Provides-Extra: {extra}" for extra in ("test", "dev", "toolkit")} <= set(metadata)


def test_the_installed_package_works_elsewhere(installed: Path, tmp_path: Path) -> None:
    program = """
import json, torch, hgemm
a, b = torch.eye(8, 16).half(), torch.arange(128.).reshape(16, 8).half()
print(json.dumps({
    "file": hgemm.__file__,
    "right": torch.equal(hgemm.matmul(a, b, backend="torch"), b[:8]),
    "triton": torch.equal(hgemm.matmul(a, b, backend="triton_pointer"), b[:8]),
    "cuda": hgemm.backends()["cuda_tma"].configs,
}))
"""
    found = json.loads(call([installed, "-c", program], tmp_path))
    assert Path(found["file"]).is_relative_to(installed.parents[1])
    assert found["right"]
    assert found["triton"]
    assert "128x128x64_s3_w64x32" in found["cuda"]
    assert json.loads(call([installed, "-m", "hgemm.env", "--json"], tmp_path))["versions"]["hgemm"]


def test_the_installed_package_plots_its_own_measurements(installed: Path, tmp_path: Path) -> None:
    if not list((ROOT / "plots" / "results").glob("*.json")):
        pytest.skip("no measurements are packaged: plots/results holds no file")
    drawn = json.loads(call([installed, "-m", "hgemm.plot", "--json"], tmp_path))
    assert Path(drawn["source"]).is_relative_to(installed.parents[1])
    assert drawn["files"]
    for picture in drawn["files"]:
        assert (tmp_path / "plots" / Path(picture).name).stat().st_size > 10_000


def test_a_checkout_runs_without_being_installed(clone: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "bare")
    where = json.loads(call([python, "-c", "import json, hgemm; print(json.dumps(hgemm.__file__))"], clone))
    assert Path(where) == clone / "hgemm" / "__init__.py"
    found = json.loads(call([python, "-m", "hgemm.env", "--json"], clone))
    assert len(found["backends"]) >= 7
    kernels = "from hgemm.cuda_kernels.configs import FAMILIES, Unit; print(Unit('tma', 'f16').source())"
    assert '#include "tma.cuh"' in call([python, "-c", kernels], clone)
