"""Kernels with descriptors, launched by address: Triton's C function is called with what Triton itself would call it
with, and a tensor map is encoded once an address. Compiled for sm_90; the C functions only record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from test_triton_bound import CALLS, ENCODED, FAILURES, arguments_of, c_function, encode, plain  # noqa: F401  fixture
from test_triton_host_descriptors import LARGEST, fresh
from test_triton_launcher import RECORD, STREAM, compilations, hopper, operands  # noqa: F401  fixtures
from triton.backends.nvidia import driver

from hgemm.arrangement import arrange
from hgemm.problem import Problem
from hgemm.triton_kernels import descriptors, launcher, specialized, tensor_maps, tma
from hgemm.triton_kernels.specialized_configs import MOST_PARTS
from hgemm.triton_kernels.tensor_maps import MOST_KEPT, TensorMaps

__all__ = ["fresh"]
PLAIN = LARGEST.removesuffix("_tail")
SMALL, SMALL_PLAIN = "64x128x128_s4_w64x32_specialized_tail", "64x96x128_s5_w32x16_specialized"


@pytest.fixture(autouse=True)
def driver_that_encodes(c_function: None, fresh: None) -> None:  # noqa: F811
    pass


def by_tensor_and_by_address(config: str, tensors: tuple[torch.Tensor, ...]) -> tuple[list[Any], list[Any]]:
    addresses = [tensor.data_ptr() for tensor in tensors]
    CALLS.clear()
    specialized.launch(*tensors, config)
    by_tensor = plain(CALLS, tensors)
    launch = bound(config, tensors)
    launch(*addresses)
    return by_tensor, plain(CALLS, tensors)


def bound(
    config: str, tensors: tuple[torch.Tensor, ...], kernels: Any = specialized
) -> Callable[[int, int, int], None]:
    launch = kernels.bind(Problem.from_tensors(*tensors), config)
    assert launch is not None
    CALLS.clear()
    ENCODED.clear()
    return launch


def various() -> Iterator[tuple[torch.Tensor, ...]]:
    a, b, out = operands(200, 264, 4096)
    yield a, b, out
    yield a, b, out.t().contiguous().t()  # computed as B^T A^T
    yield (
        torch.zeros(4096, 208, dtype=torch.float16)[:, :200].t(),
        b,
        torch.zeros(200, 272, dtype=torch.float16)[:, :264],
    )
    yield operands(64, 96, 64, torch.bfloat16)  # one tile


# Small tiles, which are compiled in a fraction of the time: how a launch is called does not depend on the tile.
@pytest.mark.parametrize("config", [SMALL, pytest.param(SMALL_PLAIN, marks=pytest.mark.one_triton)])
def test_triton_calls_its_c_functions_with_the_same(config: str, compilations: list[str]) -> None:  # noqa: F811
    for tensors in various():
        before = len(compilations)
        by_tensor, by_address = by_tensor_and_by_address(config, tensors)
        if len(by_tensor) == 1:  # no tile is shared: nothing for what would be left alone
            (by_tensor,) = ([None if x == "memory of its own" else x for x in call] for call in [flat(by_tensor[0])])
            by_address = flat(by_address[0])
        assert by_address == by_tensor
        assert flat(by_address).count("tensor map") == 3
        assert len(compilations) - before <= 2
    assert compilations.count("matmul_specialized") == 4  # three pairs of layouts, and another type


def flat(values: list[Any]) -> list[Any]:
    return [x for value in values for x in (flat(value) if isinstance(value, list) else [value])]


def test_an_address_is_encoded_once_and_each_operand_by_itself() -> None:
    launch = bound(LARGEST, next(various()))
    shapes = [[200, 4096], [4096, 264], [200, 264]]
    for addresses, asked in (
        ((1 << 20, 2 << 20, 3 << 20), (0, 1, 2)),
        ((1 << 20, 2 << 20, 3 << 20), ()),
        ((1 << 20, 2 << 20, 4 << 20), (2,)),
        ((2 << 20, 2 << 20, 3 << 20), (0,)),  # that of B has another shape
        ((1 << 20, 2 << 20, 4 << 20), ()),
    ):
        ENCODED.clear()
        CALLS.clear()
        launch(*addresses)
        assert [(arguments[0], arguments[5]) for arguments in ENCODED] == [(addresses[i], shapes[i]) for i in asked]
        passed = [x[1] for x in arguments_of(CALLS[0]) if isinstance(x, tuple) and x[0] == "tensor map"]
        assert passed == list(addresses)


def maps(encode: Callable[..., Any] = encode) -> TensorMaps:
    descriptor = SimpleNamespace(shape=[8, 64], strides=[64, 1], padding="zero")
    expected = {"swizzle": 3, "elem_size": 2, "elem_type": 9, "block_size": [8, 64], "fp4_padded": False}
    return TensorMaps(encode, descriptor, expected)


class Driver:
    """Stands for libcuda: a thread without a context, and device 2's."""

    def __init__(self, order: list[str]) -> None:
        self.order = order
        self.current: int | None = None

    def cuCtxGetCurrent(self, context: Any) -> None:
        context._obj.value = self.current

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:
        assert device == 2
        context._obj.value = 0xC2

    def cuCtxSetCurrent(self, context: Any) -> None:
        self.current = context.value
        self.order.append("context")


def test_a_thread_gets_a_context_before_anything_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    cuda = Driver(order)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(tensor_maps, "_driver", lambda: cuda)
    kept = maps(lambda *arguments: order.append("encode"))
    assert kept[16] == kept[16]
    assert kept[32] == kept[16]
    assert order == ["context", "encode", "encode"]
    assert cuda.current == 0xC2
    del order[:]
    p = arrange((8, 64), (64, 1), (64, 16), (16, 1), (8, 16), (16, 1))
    made = descriptors.Descriptors(lambda *described: SimpleNamespace(), torch.float16, p, [(8, 64)] * 3)
    cuda.current = None
    assert [one.base for one in made.of("a", "b", "c")] == ["a", "b", "c"]  # which Triton encodes
    assert order == ["context"]


def test_as_many_are_kept_as_is_said_the_last_ones() -> None:
    kept = maps()
    for address in range(16, 16 * 1001, 16):
        assert kept[address][0][1] == address
        assert len(kept) <= MOST_KEPT
    last = range(16 * (1001 - MOST_KEPT), 16 * 1001, 16)
    assert list(kept) == list(last)
    ENCODED.clear()
    assert [kept[address][0][1] for address in last] == list(last)
    assert ENCODED == []
    assert kept[16] == (
        ("tensor map", 16, 3, 2, driver.TMA_DTYPE_DEVICE_TO_HOST[9], [8, 64], [8, 64], [64, 1], 0),
        8,
        64,
        64,
        1,
    )


def test_threads_that_ask_at_the_same_time_get_the_same() -> None:
    asking = threading.Barrier(8)

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.05)
        return object(), *arguments

    kept = maps(lambda *arguments: encode(*arguments) and slowly(*arguments))

    def ask(thread: int) -> Any:
        asking.wait(60)
        return kept[16]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert all(each is found[0] for each in found)
    assert len(ENCODED) == 1

    crowded = maps(lambda address, *_: time.sleep(1e-5) or address)

    def ask_many(thread: int) -> bool:
        asking.wait(60)
        return all(crowded[address][0] == address for step in range(2000) for address in [(step * (thread + 1)) % 200])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask_many, range(8)))
    assert len(crowded) == MOST_KEPT


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("kernels", "config", "elements"),
    [
        (specialized, LARGEST, 4 * MOST_PARTS * 128 * 256),  # of 2 x 2 tiles
        (tma, "16x64x128_s5_w16x16_split4", 4 * 200 * 264),
    ],
    ids=["tail", "split"],
)
def test_the_workspace_is_of_the_stream_and_given_back_after_both_launches(
    kernels: Any, config: str, elements: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(size: int, stream: int) -> int:
        CALLS.append(("given", size, stream))
        return 2**40

    monkeypatch.setattr(launcher, "_allocator", lambda device: (allocate, lambda at: CALLS.append(("back", at))))
    launch = bound(config, next(various()), kernels)
    if fails:
        FAILURES.append(RuntimeError("no launch"))
        with pytest.raises(RuntimeError, match="no launch"):
            launch(16, 32, 48)
    else:
        launch(16, 32, 48)
    given, *launches, back = CALLS
    assert given == ("given", 4 * elements, STREAM)  # in fp32
    assert back == ("back", 2**40)
    assert [arguments_of(call).count(2**40) for call in launches] == [1] * (1 if fails else 2)


def test_hooks_are_told_of_what_is_launched_and_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = triton.knobs.runtime
    tensors = next(various())
    # What a kernel adds is told by the names of its arguments.
    kernel = specialized.matmul_specialized
    monkeypatch.setattr(kernel, "launch_metadata", lambda grid, compiled, by_name: {"M": by_name["M"], "grid": grid})

    def enter(metadata: Any) -> None:
        raise AssertionError("the C function calls it, and here it only records")

    runtime.launch_enter_hook.add(enter)
    try:
        specialized.bind(Problem.from_tensors(*tensors), PLAIN)
        assert CALLS
        assert not any(runtime.launch_enter_hook in call for call in CALLS)
        _, by_address = by_tensor_and_by_address(PLAIN, tensors)
    finally:
        runtime.launch_enter_hook.remove(enter)
    _, without = by_tensor_and_by_address(PLAIN, tensors)
    (hooked,), (silent,) = by_address, without
    (told,) = [value.get() for value in hooked if hasattr(value, "get")]
    assert (told["name"], told["M"], told["grid"]) == ("matmul_specialized", 200, (4, 1, 1))
    assert runtime.launch_enter_hook in hooked
    assert runtime.launch_enter_hook not in silent
    assert arguments_of(hooked)[-20:] == arguments_of(silent)[-20:]


def test_what_is_tried_when_it_is_bound_launches_nothing() -> None:
    assert specialized.bind(Problem.from_tensors(*next(various())), LARGEST) is not None
    (call,) = CALLS
    assert call[:4] == (0, 1, 1, STREAM)


@pytest.mark.parametrize("why", ["another Triton", "another closure", "other arguments", "another descriptor"])
@pytest.mark.parametrize("config", [LARGEST, PLAIN])
def test_what_is_not_known_is_left_to_triton(why: str, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encodes_itself: list[Any] = []
    if why == "another Triton":
        monkeypatch.setattr(launcher, "_ORDERS", {"3.5": "scratch first"})
    elif why == "another closure":
        known = driver.wrap_handle_tensordesc

        def wrap(launcher_: Any, *arguments: Any) -> Any:
            wrapped = known(launcher_, *arguments)
            return wrapped if wrapped is launcher_ else lambda *call: wrapped(*call)

        monkeypatch.setattr(driver, "wrap_handle_tensordesc", wrap)
    elif why == "other arguments":
        FAILURES.append(TypeError("function takes exactly 47 arguments (46 given)"))
    else:
        monkeypatch.setattr(tensor_maps, "TensorMaps", lambda *_: {}["elem_type"])
    tensors = next(various())
    launch = specialized.bind(Problem.from_tensors(*tensors), config)
    FAILURES.clear()
    if why == "another Triton" and config == LARGEST:
        assert launch is None  # what adds by address is not known there either
        return
    assert launch is not None
    copied = descriptors.copy.copy
    monkeypatch.setattr(descriptors, "copy", SimpleNamespace(copy=lambda x: encodes_itself.append(x) or copied(x)))
    CALLS.clear()
    launch(*(tensor.data_ptr() for tensor in tensors))
    assert len(encodes_itself) == 3
    by_address = plain(CALLS, tensors)
    CALLS.clear()
    specialized.launch(*tensors, config)
    assert by_address == plain(CALLS, tensors)
