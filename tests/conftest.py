"""What every test file shares: `gpu` tests are skipped without a device, `nvcc` tests without a compiler (in CI they
fail instead); no registration outlives its test, and nothing that the user tuned counts in one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hgemm import tuned
from hgemm.backends import _registered
from hgemm.cuda_kernels import toolchain


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skips = {}
    if not torch.cuda.is_available():
        skips["gpu"] = "needs a CUDA device; torch finds none"
    if missing := _missing_nvcc():
        skips["nvcc"] = missing
    for item in items:
        for marker, reason in skips.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _missing_nvcc() -> str | None:
    """Why the tests that compile CUDA are skipped. In CI they run, and fail, so that a machine without nvcc is seen."""
    if os.environ.get("CI"):
        return None
    try:
        toolchain.find_nvcc()
    except toolchain.BuildError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what Triton compiles, one for all files and processes of a run: each kernel is compiled once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "triton"


@pytest.fixture(scope="module")
def own_cache(triton_cache: Path) -> Iterator[None]:
    """Nothing is taken from the user's cache of kernels, nor left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(triton_cache))
        yield


@pytest.fixture(autouse=True)
def nothing_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices are those of a machine where nothing was tuned."""
    monkeypatch.setattr(tuned, "folders", list)


@pytest.fixture(autouse=True)
def restored_registry() -> Iterator[None]:
    """Takes back every ``register_backend`` of the test."""
    before = dict(_registered)
    yield
    _registered.clear()
    _registered.update(before)
