"""A launch brings the scratch memory that descriptors need, and leaves the user's allocator as it was."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton

from hgemm.triton_kernels import tma
from hgemm.triton_kernels.launcher import Launcher


class RecordingKernel:
    """Stands in for a kernel that is not compiled: asks for scratch memory as a launch does, keeps what it is given."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: object, **options: object) -> None:
            scratch = current_allocator()(4096, 128, 0)
            self.launches.append((grid, arguments, options, scratch))

        return launch


def current_allocator() -> Callable[[int, int, int | None], torch.Tensor]:
    """What a launch in this context would call; Triton has no public way to ask."""
    from triton.runtime import _allocation

    return _allocation._allocator.get()


def test_a_launch_brings_its_own_allocator_and_leaves_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = RecordingKernel()
    monkeypatch.setattr(tma, "_launcher", Launcher(kernel))
    a, b, out = (torch.zeros(shape, dtype=torch.float16) for shape in ((200, 64), (64, 136), (200, 136)))
    before = current_allocator()

    def users(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        raise AssertionError("the user's allocator was called")

    def launch_with_users_allocator() -> None:
        triton.set_allocator(users)
        tma.launch(a, b, out, "128x128x64_s3_w64x32")
        assert current_allocator() is users

    faults: list[BaseException] = []

    def in_thread() -> None:
        try:
            tma.launch(a, b, out, "128x128x64_s3_w64x32")
            launch_with_users_allocator()
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join(60)
    assert faults == []
    tma.launch(a, b, out, "128x128x64_s3_w64x32")
    assert current_allocator() is before
    assert len(kernel.launches) == 3
    for grid, arguments, options, scratch in kernel.launches:
        assert grid == (4, 1, 1)  # 2 rows of tiles, 2 columns
        assert arguments == (a, b, out, 200, 136, 64, 1, 64, 136, 136, 0, 0, 0)
        assert (options["A_LAYOUT"], options["B_LAYOUT"], options["BATCHED"]) == ("n", "n", False)
        assert options["num_warps"] == 8
        assert options["num_stages"] == 3
        assert scratch.nbytes == 4096
        assert scratch.device == a.device
