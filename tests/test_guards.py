"""What a guard tells apart, and that ``matmul`` takes a call for one before only where it is like it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import hgemm
from hgemm import dispatch, guards

SQUARE = torch.arange(64.0).reshape(8, 8).half()


class Watched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_plans", {})
    monkeypatch.setattr(dispatch, "_seen", {})


def test_this_torch_can_be_asked() -> None:
    assert guards.guard(SQUARE.clone(), SQUARE) is not None


DIFFERENT: dict[str, Callable[[], Tensor]] = {
    "strides": lambda: SQUARE.t(),
    "shape": lambda: SQUARE[:7],
    "dimensions": lambda: SQUARE[None],
    "dtype": lambda: SQUARE.bfloat16(),
    "device": lambda: SQUARE.to("meta"),
    "sign": lambda: torch._neg_view(SQUARE),
    "memory": lambda: torch._efficientzerotensor((8, 8), dtype=torch.float16),
    "gradient": lambda: SQUARE.clone().requires_grad_(),
    "subclass": lambda: torch.nn.Parameter(SQUARE, requires_grad=False),
    "layout": lambda: SQUARE.to_sparse(),
    "kind": lambda: "a",  # type: ignore[dict-item,return-value]
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_is_seen(what: str) -> None:
    like = guards.guard(SQUARE.clone(), SQUARE.clone())
    assert like is not None
    assert like(SQUARE, SQUARE.clone()) is True
    other = DIFFERENT[what]()
    assert like(SQUARE, other) is False
    assert like(other, SQUARE) is False


@pytest.mark.parametrize("state", [torch.autocast("cpu"), torch.inference_mode()], ids=["autocast", "inference"])
def test_what_the_thread_has_switched_on_is_seen(state: torch.autocast) -> None:
    a, b = SQUARE.clone(), SQUARE.clone()
    like = guards.guard(a, b)
    assert like is not None
    with state:
        assert like(a, b) is False
    assert like(a, b) is True


def test_a_guard_keeps_no_tensor() -> None:
    a, b = SQUARE.clone(), SQUARE.clone()
    like = guards.guard(a, b)
    gone = weakref.ref(a), weakref.ref(b)
    del a, b
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert like is not None
    assert like(SQUARE, SQUARE.clone())


@pytest.fixture(params=["asked", "not asked"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """How each call of ``matmul`` was answered; half of the time as in a torch that cannot be asked."""
    ways: list[str] = []
    again, multiply, through_ops = dispatch._again, dispatch.multiply, dispatch._through_ops

    def noted_again(*args: object) -> Tensor | None:
        product = again(*args)  # type: ignore[arg-type]
        if product is not None:
            ways.append("again")
        return product

    monkeypatch.setattr(dispatch, "_again", noted_again)
    monkeypatch.setattr(dispatch, "multiply", lambda *args: ways.append("anew") or multiply(*args))
    monkeypatch.setattr(dispatch, "_through_ops", lambda *args: ways.append("ops") or through_ops(*args))
    if request.param == "not asked":
        monkeypatch.setattr(guards, "_works", lambda: False)
    return ways


def test_the_third_call_is_like_those_before(calls: list[str]) -> None:
    a, b = SQUARE[:4], SQUARE
    expected = (a.double() @ b.double()).half()
    for out in (None, torch.empty_like(expected)):
        calls.clear()
        for _ in range(4):
            assert torch.equal(hgemm.matmul(a, b, out=out), expected)
        able = guards._works()
        assert calls == ["anew", "anew", *(["again", "again"] if able else ["anew", "anew"])]
    assert hgemm.matmul(a, b, out=out) is out


def test_a_gradient_is_never_lost_to_a_call_before(calls: list[str]) -> None:
    a, weight = SQUARE[:4], torch.nn.Parameter(SQUARE.clone())
    for enabled in (False, True, False, True):
        with torch.set_grad_enabled(enabled):
            for _ in range(3):
                assert hgemm.matmul(a, weight).requires_grad == enabled
    if guards._works():
        assert calls == ["anew", "anew", "again", *["ops"] * 3, *["again"] * 3, *["ops"] * 3]
    out = torch.empty_like(a)
    with torch.no_grad():
        for _ in range(3):
            hgemm.matmul(a, weight, out=out)
    with pytest.raises(hgemm.UnsupportedProblem, match="b requires grad"):
        hgemm.matmul(a, weight, out=out)
    for _ in range(3):
        assert not hgemm.matmul(a, weight.detach()).requires_grad
    assert hgemm.matmul(a, weight.detach().requires_grad_()).requires_grad


def test_a_mode_or_a_transform_still_sees_the_call(calls: list[str]) -> None:
    a, b = SQUARE[:4].clone(), SQUARE
    expected = hgemm.matmul(a, b)
    for _ in range(3):
        hgemm.matmul(a, b)
    calls.clear()
    with Watched():
        assert torch.equal(hgemm.matmul(a, b), expected)
    assert calls[0] == "ops"
    calls.clear()
    stacked = torch.func.vmap(lambda row: hgemm.matmul(a, b))(a)
    assert torch.equal(stacked[0], expected)
    assert calls[0] == "ops"
    calls.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hgemm.matmul(a, b).dtype == torch.bfloat16
    assert calls[0] == "ops"


def test_what_was_made_in_inference_mode_is_written_there_alone(calls: list[str]) -> None:
    hgemm.register_backend("zeros", lambda a, b, out, config: None)
    a, b = SQUARE[:4].clone(), SQUARE
    with torch.inference_mode():
        out = torch.empty_like(a)
    for _ in range(3):
        for _ in range(3):
            with pytest.raises(ValueError, match="out was made in inference mode"):
                hgemm.matmul(a, b, backend="zeros", out=out)
        with torch.inference_mode():
            for _ in range(3):
                assert hgemm.matmul(a, b, backend="zeros", out=out) is out
    if guards._works():
        assert calls.count("again") == 7


def test_alignment_and_memory_are_looked_at_each_time(calls: list[str]) -> None:
    flat = torch.arange(4096).remainder(7).half()
    seen: list[tuple[int, ...]] = []

    def noting(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        out.copy_(a.double() @ b.double())

    def accepts(problem: object, config: str | None) -> str | None:
        seen.append(tuple(operand.alignment for _, operand in problem.operands))  # type: ignore[attr-defined]
        return None

    hgemm.register_backend("noting", noting, accepts=accepts)

    def view(offset: int) -> Tensor:
        return flat[offset : offset + 64].view(8, 8)

    for _ in range(4):
        hgemm.matmul(view(0), view(64), backend="noting", out=view(128))
    asked = [(16, 16, 16)]
    for offsets, alignments in (
        ((1, 128, 256), (2, 16, 16)),
        ((0, 132, 256), (16, 8, 16)),
        ((0, 128, 258), (16, 16, 4)),
    ):
        a, b, out = map(view, offsets)
        hgemm.matmul(a, b, backend="noting", out=out)
        asked.append(alignments)
        assert seen == asked
        assert torch.equal(out, (a.double() @ b.double()).half())
    for offset, name in ((0, "a"), (120, "b")):
        with pytest.raises(ValueError, match=f"out shares memory with {name}"):
            hgemm.matmul(view(0), view(64), backend="noting", out=view(offset))


def test_a_backend_that_is_registered_again_is_another() -> None:
    for number in (1, 2):
        hgemm.register_backend("numbered", lambda a, b, out, config, number=number: out.fill_(number))  # type: ignore[misc]
        for _ in range(4):
            assert hgemm.matmul(SQUARE[:4], SQUARE, backend="numbered").unique().tolist() == [number]
