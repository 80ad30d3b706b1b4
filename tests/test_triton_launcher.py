"""Compiled for sm_90 and launched on a driver that only records: each form is compiled once, to the instructions that
its backend stands for, and the environment is left as it was."""

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import max_shared_mem

from hgemm.triton_kernels import adapter, gluon, launcher, mma_sync, pointer, split_k, tma
from hgemm.triton_kernels.compile_ahead import disassemble
from hgemm.triton_kernels.configs import MMA_SYNC
from hgemm.triton_kernels.launcher import Launcher

KNOB = "DISABLE_MMA_V3"
CONFIG = "128x128x64_s4_w64x32"  # of triton and of triton_mma_sync
STREAM = 77


class Launch:
    """What the driver was asked to run, in place of Triton's CudaLauncher, which takes the same arguments."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata = metadata

    def __call__(self, *call: Any) -> None:
        from triton.runtime import _allocation

        *grid, stream, function, packed, launch_metadata, enter, exit_ = call[:9]
        assert packed[0] == self.metadata.num_warps
        if enter is not None:
            enter(launch_metadata)
        size = grid[0] * self.metadata.global_scratch_size
        scratch = _allocation._allocator.get()(size, 128, stream) if size else None
        RECORD.launches.append(
            SimpleNamespace(
                grid=tuple(grid),
                stream=stream,
                function=function,
                arguments=call[9:],
                scratch=scratch,
                hooks=(launch_metadata, enter, exit_),
                knob=os.environ.get(KNOB),
            )
        )


class Record:
    """A driver with one Hopper, as far as Triton asks. ``ptx`` of each kernel by what stands for its function."""

    launcher_cls = Launch

    def __init__(self) -> None:
        self.launches: list[SimpleNamespace] = []
        self.kernels: list[Any] = []
        self.shared_memory = {0: 232_448, 1: 101_376}
        self.device = 0
        self.utils = SimpleNamespace(
            load_binary=self.load_binary,
            unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": self.shared_memory[device]},
        )

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        self.kernels.append(SimpleNamespace(name=name, code=binary, device=device))
        return len(self.kernels), len(self.kernels) - 1, 100, 0, 1024

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return STREAM


RECORD = Record()


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch, triton_cache: Path) -> Iterator[None]:
    """Launchers that have compiled nothing, on a fresh driver; one cache of kernels for all, none of the user's."""
    RECORD.__init__()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(triton_cache))
    monkeypatch.delenv(KNOB, raising=False)
    launchers = []
    kernels = {
        tma: tma.matmul_tma,
        mma_sync: mma_sync.matmul_mma_sync,
        gluon: gluon.matmul_gluon,
        pointer: pointer.matmul_pointer,
        split_k: split_k.add_parts,
    }
    max_shared_mem.cache_clear()
    for module, kernel in kernels.items():
        used = module._launcher
        launchers.append(Launcher(kernel, used.environment, used._without))
        monkeypatch.setattr(module, "_launcher", launchers[-1])
        kernel.device_caches.clear()
    monkeypatch.setattr(triton.runtime.driver, "_active", RECORD)  # what set_active sets; there is no unsetting it
    yield
    for launcher_ in launchers:
        for compiled in launcher_.forms.values():
            compiled.kernel.module = None  # nothing to unload on a driver that is no longer there
        launcher_.kernel.device_caches.clear()
    max_shared_mem.cache_clear()


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The kernels that were looked for in vain among those in memory, by name."""
    found: list[str] = []
    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = lambda *, fn, **_: found.append(fn.name) or False
    yield found
    triton.knobs.runtime.jit_cache_hook = before


def operands(M: int = 200, N: int = 136, K: int = 64, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros(shape, dtype=dtype) for shape in ((M, K), (K, N), (M, N)))


def instructions(module: Any) -> set[str]:
    """The tensor cores' instruction in each form that a module's launcher keeps."""
    ptx = [compiled.kernel.asm["ptx"] for compiled in module._launcher.forms.values()]
    return {name for name in ("wgmma", "mma.sync") for text in ptx if f"{name}." in text}


@pytest.mark.parametrize("order", [(tma, mma_sync), (mma_sync, tma)], ids=["triton first", "triton second"])
def test_neither_is_taken_for_the_other(order: tuple[Any, Any], compilations: list[str]) -> None:
    for _ in range(2):
        for module in order:
            module.launch(*operands(), CONFIG)
    assert (instructions(tma), instructions(mma_sync)) == ({"wgmma"}, {"mma.sync"})
    names = {tma: "matmul_tma", mma_sync: "matmul_mma_sync"}
    assert [RECORD.kernels[launch.function].name for launch in RECORD.launches] == [names[m] for m in order] * 2
    assert b"matmul_mma_sync" in RECORD.kernels[order.index(mma_sync)].code
    assert len(compilations) == 2
    assert [launch.knob for launch in RECORD.launches] == [None] * 4  # only while something compiles


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_the_environment_is_left_as_found(
    before: str | None, monkeypatch: pytest.MonkeyPatch, compilations: list[str]
) -> None:
    if before is not None:
        monkeypatch.setenv(KNOB, before)
    mma_sync.launch(*operands(), CONFIG)
    assert os.environ.get(KNOB) == before
    assert instructions(mma_sync) == {"mma.sync"}

    def fails(*_: object, **__: object) -> bool:
        assert os.environ[KNOB] == "1"
        raise ZeroDivisionError

    triton.knobs.runtime.jit_cache_hook = fails
    with pytest.raises(ZeroDivisionError):
        mma_sync.launch(*operands(dtype=torch.bfloat16), CONFIG)
    assert os.environ.get(KNOB) == before
    assert len(RECORD.launches) == 1


def test_a_compiler_that_ignores_the_knob_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "compiler_environment", nullcontext)
    with pytest.raises(RuntimeError, match=r"matmul_tma to wgmma in spite of DISABLE_MMA_V3=1"):
        mma_sync.launch(*operands(), CONFIG)
    assert RECORD.launches == []


def test_what_is_compiled_in_the_background_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # nothing is there already
    if not hasattr(triton, "AsyncCompileMode"):
        pytest.skip(f"Triton {triton.__version__} has no AsyncCompileMode")
    with ThreadPoolExecutor(1) as pool, triton.AsyncCompileMode(pool):
        pool.submit(time.sleep, 0.5)  # what is put off is compiled when the environment is the user's again
        tma.launch(*operands(), CONFIG)
        mma_sync.launch(*operands(), CONFIG)
    assert (instructions(tma), instructions(mma_sync)) == ({"wgmma"}, {"mma.sync"})


@pytest.mark.parametrize(
    ("module", "config"),
    [(tma, CONFIG), (mma_sync, CONFIG), (gluon, "128x128x64_s3_w64x32")],
    ids=["tma", "mma_sync", "gluon"],
)
def test_arguments_reach_the_kernel_in_its_order(module: Any, config: str) -> None:
    a, b, out = operands()
    module.launch(a, b, out, config)
    module.launch(a, b, out.t().contiguous().t(), config)  # computed as B^T A^T
    ragged = operands(40, 72, 8)
    module.launch(*ragged, config)
    first, turned, last = RECORD.launches
    kernel = module._launcher.kernel
    for launch in RECORD.launches:
        assert len(launch.arguments) == len(kernel.arg_names)
        assert all(value is None for value in launch.arguments[13:])  # constants
        assert launch.stream == STREAM
        assert (launch.scratch is None) == (module is tma)  # for descriptors that programs make
    assert kernel.arg_names[12:14] == ["batch_c", "A_LAYOUT"]
    assert first.grid == (4, 1, 1)
    assert [getattr(each, "base", each) for each in first.arguments[:3]] == [a, b, out]
    assert first.arguments[3:13] == (200, 136, 64, 1, 64, 136, 136, 0, 0, 0)
    assert [getattr(each, "base", each) for each in turned.arguments[:2]] == [b, a]
    assert turned.arguments[3:13] == (136, 200, 64, 1, 136, 64, 200, 0, 0, 0)
    assert last.grid == (1, 1, 1)
    assert last.arguments[3:13] == (40, 72, 8, 1, 8, 72, 72, 0, 0, 0)


def test_a_form_is_compiled_once_and_each_by_itself(compilations: list[str]) -> None:
    def launched(*tensors: torch.Tensor, config: str = CONFIG) -> int:
        before = len(compilations)
        tma.launch(*tensors, config)
        return len(compilations) - before

    a, b, out = operands()
    assert launched(a, b, out) == 1
    for shape in ((1, 8, 8), (16, 24, 40), (129, 1000, 520)):
        assert launched(*operands(*shape)) == 0
    assert launched(a.t().contiguous().t(), b, out) == 1
    assert launched(a, b.t().contiguous().t(), out) == 1
    assert launched(*operands(dtype=torch.bfloat16)) == 1
    assert launched(*(tensor.expand(2, *tensor.shape).contiguous() for tensor in (a, b, out))) == 1
    assert launched(a, b, out, config="64x64x64_s4_w32x32") == 1
    far = torch.empty(2**31 + 64, dtype=torch.float16).as_strided((2, 64), (2**31, 1))  # touches no page
    assert launched(far, b, out[:2]) == 1
    assert RECORD.launches[-1].arguments[7] == 2**31
    RECORD.device = 1
    assert launched(a, b, out) == 0  # the caller's device is that of its tensors, here the CPU


@pytest.mark.parametrize("offset", [0, 1])
def test_pointers_are_compiled_for_their_alignment(offset: int, compilations: list[str]) -> None:
    a, b, out = operands()
    place = torch.zeros(a.numel() + 8, dtype=torch.float16)
    pointer.launch(a, b, out, "128x128x32_s2_w64x32")
    pointer.launch(place[offset:][: a.numel()].view(a.shape), b, out, "128x128x32_s2_w64x32")
    assert len(compilations) == 1 + offset
    assert RECORD.launches[0].arguments[3:15] == (200, 136, 64, 64, 136, 136, 1, 1, 1, 0, 0, 0)
    assert RECORD.launches[0].grid == (4, 1, 1)


SPLIT = "16x64x128_s5_w16x16_split4"


def test_a_split_product_is_two_launches_of_one_workspace(compilations: list[str]) -> None:
    a, b, out = operands(20, 136, 520)
    tma.launch(a, b, out, SPLIT)
    parts, addition = RECORD.launches
    assert [RECORD.kernels[launch.function].name for launch in RECORD.launches] == ["matmul_tma", "add_parts"]
    assert parts.grid == (4 * 2 * 3, 1, 1)  # parts, rows and columns of tiles
    assert addition.grid == (20, 1, 1)  # a row of 136 columns each
    assert parts.stream == addition.stream == STREAM
    sums = parts.arguments[2]
    assert (sums.shape, sums.dtype, sums.device) == ((4, 1, 20, 136), torch.float32, a.device)
    assert sums.is_contiguous()
    assert addition.arguments[0] is sums
    assert addition.arguments[1] is out
    assert addition.arguments[2:7] == (20, 136, 1, 136, 0)
    assert compilations == ["matmul_tma", "add_parts"]
    # A batch with a column-major out, which is computed as 136 x 24 of B^T A^T.
    wide = torch.zeros(3, 24, 520, dtype=torch.float16), torch.zeros(520, 136, dtype=torch.float16)
    turned = torch.zeros(3, 136, 24, dtype=torch.float16).mT
    tma.launch(*wide, turned, SPLIT)
    parts, addition = RECORD.launches[2:]
    assert parts.grid == (4 * 3 * 9 * 1, 1, 1)
    assert parts.arguments[2].shape == (4, 3, 136, 24)
    assert addition.arguments[2:7] == (136, 24, 3, 24, 136 * 24)
    assert addition.grid == (3 * 136, 1, 1)
    assert compilations.count("add_parts") == 1  # the same for every shape


def test_parts_are_added_only_when_the_kernel_before_has_ended() -> None:
    tma.launch(*operands(20, 136, 520), SPLIT)
    (form,) = split_k._launcher.forms.values()
    assert form.kernel.metadata.launch_pdl  # launched before it has
    sass = disassemble(form.kernel.asm["cubin"])
    code = [name for name in ("ACQBULK", "LDG", "STG") if name in sass]
    assert code == ["ACQBULK", "LDG", "STG"]
    assert sass.index("ACQBULK") < sass.index("LDG")
    assert set(re.findall(r"LDG\S*", sass)) == {"LDG.E.128"}
    assert sass.count("LDG.E.128") == 4  # 16 bytes of each part
    assert "STG.E.64" in sass
    (form,) = tma._launcher.forms.values()
    assert not form.kernel.metadata.launch_pdl  # it may overwrite what the kernel before still reads
    assert "griddepcontrol.launch_dependents" in form.kernel.asm["ptx"]
    tma.launch(*operands(20, 136, 520), "16x64x128_s5_w16x16")
    whole = next(form.kernel for key, form in tma._launcher.forms.items() if SPLIT not in key)
    assert "griddepcontrol" not in whole.asm["ptx"]
    assert len(RECORD.launches) == 3


def test_a_hook_that_keeps_triton_from_compiling_keeps_it_from_launching() -> None:
    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = lambda **_: True
    try:
        mma_sync.launch(*operands(), CONFIG)
    finally:
        triton.knobs.runtime.jit_cache_hook = before
    assert RECORD.launches == []
    assert os.environ.get(KNOB) is None
    mma_sync.launch(*operands(), CONFIG)
    assert len(RECORD.launches) == 1
    assert instructions(mma_sync) == {"mma.sync"}


def test_too_much_shared_memory_for_the_device_names_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="Hopper Nano"))
    RECORD.device = 1  # 101,376 bytes
    config = MMA_SYNC.configs[0].config.name
    a, b, out = operands()

    def launch(*_: object) -> None:
        mma_sync.launch(a, b, out, config)

    monkeypatch.setattr(adapter, "_compiled", lambda module: SimpleNamespace(launch=launch))
    on_gpu = SimpleNamespace(device=torch.device("cuda:1"))
    record = {record.name: record for record in adapter.backends()}["triton_mma_sync"]
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"213,016 bytes of shared memory .*, and Hopper Nano has 101,376"
        ) as raised:
            record.run(on_gpu, on_gpu, on_gpu, config)
        assert type(raised.value).__name__ == "UnsupportedProblem"
        assert "backend 'triton_mma_sync'" in str(raised.value)
        assert config in str(raised.value)
    assert RECORD.launches == []


def test_other_errors_of_a_launch_are_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Triton Error [CUDA]: invalid argument")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(adapter, "_compiled", lambda module: SimpleNamespace(launch=fails))
    on_gpu = SimpleNamespace(device=torch.device("cuda:0"))
    with pytest.raises(RuntimeError, match="invalid argument"):
        adapter.backends()[1].run(on_gpu, on_gpu, on_gpu, CONFIG)


def test_hooks_of_launches_are_called_once_there_are_some() -> None:
    told: list[tuple[str, str]] = []
    runtime = triton.knobs.runtime

    def enter(metadata: Any) -> None:
        told.append(("enter", metadata.get()["name"]))

    tma.launch(*operands(), CONFIG)
    runtime.launch_enter_hook.add(enter)
    try:
        tma.launch(*operands(), CONFIG)
    finally:
        runtime.launch_enter_hook.remove(enter)
    tma.launch(*operands(), CONFIG)
    first, hooked, last = RECORD.launches
    assert (first.hooks, last.hooks) == ((None, None, None),) * 2
    assert told == [("enter", "matmul_tma")]
    assert [launch.arguments[3:] for launch in (hooked, last)] == [first.arguments[3:]] * 2
    assert (hooked.grid, hooked.stream, hooked.function) == (first.grid, first.stream, first.function)


@pytest.mark.parametrize("module", [tma, mma_sync, pointer])
def test_a_triton_without_the_parts_that_are_used_is_launched_as_anyone_would(
    module: Any, monkeypatch: pytest.MonkeyPatch, compilations: list[str]
) -> None:
    a, b, out = operands()
    config = "128x128x32_s3_w64x32" if module is pointer else CONFIG
    module.launch(a, b, out, config)
    kept = module._launcher
    monkeypatch.setattr(module, "_launcher", Launcher(kept.kernel, kept.environment))
    (form,) = kept.forms.values()
    bare = SimpleNamespace(asm=form.kernel.asm, run=form.run)  # no function, no packed_metadata
    monkeypatch.setattr(kept.kernel, "warmup", lambda *_, **__: bare)
    module.launch(a, b, out, config)
    first, second = RECORD.launches
    assert module._launcher.forms == {}
    assert len(compilations) == 1
    assert first.function == second.function
    numbers = [value for value in first.arguments if isinstance(value, int)]
    assert list(second.arguments[3 : 3 + len(numbers)]) == numbers
    assert (first.grid, first.stream) == (second.grid, second.stream)
