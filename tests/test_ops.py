"""torch.ops.hgemm: what torch traces, compiles and exports is what eager mode computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import hgemm
from hgemm.reference import exact_integers

GENERATOR = torch.Generator().manual_seed(0)
A, B, EXPECTED = exact_integers(8, 24, 16, torch.float16, "cpu", GENERATOR)


@pytest.fixture(autouse=True)
def ran() -> list[str | None]:
    """Registers ``mine``, in fp64; returns the configurations that it was called with."""
    configs: list[str | None] = []

    def fp64(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        configs.append(config)
        out.copy_(a.double() @ b.double())

    hgemm.register_backend("mine", fp64, configs=("small", "large"))
    return configs


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize(("backend", "config"), [("torch", None), ("mine", None), ("mine", "large")])
def test_opcheck(backend: str, config: str | None) -> None:
    torch.library.opcheck(torch.ops.hgemm.mm.default, (A, B, backend, config))
    torch.library.opcheck(torch.ops.hgemm.mm_out.default, (A, B, torch.empty_like(EXPECTED), backend, config))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (A.t().contiguous().t(), B.t().contiguous().t()),
        (A.expand(3, 8, 16), B),
        (torch.stack([A, A]), torch.stack([B, B]).mT.contiguous().mT),
        (A[0], B),
        (A, B[:, 0]),
        (A[:0], B),
    ],
)
def test_opcheck_of_other_shapes_and_layouts_with_gradients(a: Tensor, b: Tensor) -> None:
    out = torch.empty(torch.matmul(a, b).shape[::-1]).half().permute(*range(torch.matmul(a, b).dim())[::-1])
    torch.library.opcheck(torch.ops.hgemm.mm_out.default, (a, b, out, "mine", None))
    torch.library.opcheck(torch.ops.hgemm.mm.default, (a.detach().requires_grad_(), b.detach(), "mine", None))
    torch.library.opcheck(torch.ops.hgemm.mm.default, (a.detach(), b.detach().requires_grad_(), "mine", None))


def test_the_ops_compute(ran: list[str | None]) -> None:
    assert torch.equal(torch.ops.hgemm.mm(A, B, "mine", "large"), EXPECTED)
    assert ran == ["large"]
    out = torch.full_like(EXPECTED, torch.nan)
    assert torch.ops.hgemm.mm_out(A, B, out, "mine", None) is None
    assert torch.equal(out, EXPECTED)
    assert ran == ["large", "small"]


def test_eager_calls_skip_the_ops(monkeypatch: pytest.MonkeyPatch, ran: list[str | None]) -> None:
    def unreachable(*args: object) -> None:
        raise AssertionError("went through torch.ops")

    monkeypatch.setattr("hgemm.dispatch._through_ops", unreachable)
    assert torch.equal(hgemm.matmul(A, B, backend="mine"), EXPECTED)
    assert ran == ["small"]


def test_compiled_whole(ran: list[str | None]) -> None:
    function = compiled(lambda a, b: 2 * hgemm.matmul(a, b, backend="mine", config="large"))
    assert torch.equal(function(A, B), 2 * EXPECTED)
    assert ran == ["large"]


def test_compiled_with_out(ran: list[str | None]) -> None:
    def step(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        return hgemm.matmul(a, b, backend="mine", out=out) + 1

    out = torch.full_like(EXPECTED, torch.nan)
    assert torch.equal(compiled(step)(A, B, out), EXPECTED + 1)
    assert torch.equal(out, EXPECTED)
    assert ran == ["small"]


def test_compiled_for_any_size() -> None:
    function = compiled(lambda a, b: hgemm.matmul(a, b), dynamic=True)
    for M, N, K in ((8, 24, 16), (3, 5, 7), (31, 8, 64)):
        a, b, expected = exact_integers(M, N, K, torch.bfloat16, "cpu", GENERATOR)
        assert torch.equal(function(a, b), expected)


def test_the_fake_result_is_like_the_real_one() -> None:
    pairs = [
        (A, B),
        (A.t().contiguous().t(), B),
        (A[0], B),
        (A, B[:, 0]),
        (A.expand(3, 8, 16), B),
        (A, torch.stack([B, B])),
        (A[:0], B),
        (A[:, :0], B[:0]),
    ]
    for a, b in pairs:
        with FakeTensorMode() as mode:
            fake = hgemm.matmul(mode.from_tensor(a), mode.from_tensor(b))
        real = torch.ops.hgemm.mm(a, b, "auto", None)
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (
            real.shape,
            real.stride(),
            real.dtype,
            real.device,
        )
        assert hgemm.matmul(a.to("meta"), b.to("meta")).shape == real.shape


def test_fake_tensors_are_held_to_the_same_rules() -> None:
    with FakeTensorMode() as mode:
        a, b = mode.from_tensor(A), mode.from_tensor(B)
        with pytest.raises(ValueError, match=r"the columns of a .* \(8, 16\) and \(8, 16\)"):
            hgemm.matmul(a, a)
        with pytest.raises(TypeError, match="one dtype"):
            hgemm.matmul(a, b.bfloat16())
        with pytest.raises(ValueError, match=r"shape of the product, \(8, 24\), found \(8, 16\)"):
            hgemm.matmul(a, b, out=torch.empty_like(a))
        with pytest.raises(ValueError, match="columns of a"):
            torch.ops.hgemm.mm(a, a, "auto", None)


def test_refusals_come_when_a_compiled_call_runs() -> None:
    hgemm.register_backend("few", lambda a, b, out, config: None, accepts=lambda problem, config: f"M = {problem.M}")
    function = compiled(lambda a, b: hgemm.matmul(a, b, backend="few"))
    with pytest.raises(hgemm.UnsupportedProblem, match="'few' cannot compute this product: M = 8"):
        function(A, B)
    with pytest.raises(ValueError, match="unknown backend 'fwe', did you mean 'few'"):
        compiled(lambda a, b: hgemm.matmul(a, b, backend="fwe"))(A, B)


def test_traced_and_exported_graphs_hold_the_op() -> None:
    graph = make_fx(lambda a, b: hgemm.matmul(a, b, backend="mine"))(A, B)
    assert "torch.ops.hgemm.mm.default(a_1, b_1, 'mine', None)" in graph.code

    class Product(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return hgemm.matmul(a, b, backend="mine")

    program = torch.export.export(Product(), (A, B))
    assert "torch.ops.hgemm.mm.default" in program.graph_module.code
    assert torch.equal(program.module()(A, B), EXPECTED)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_the_older_tracer_sees_the_op() -> None:
    def step(a: Tensor, b: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        hgemm.matmul(a, b, backend="mine", out=out)
        return out, hgemm.matmul(a, b, backend="mine")

    traced = torch.jit.trace(step, (A, B, torch.empty_like(EXPECTED)))
    assert str(traced.graph).count("hgemm::mm") == 2
    for left in (2 * A, A[:3]):
        expected = (left.double() @ B.double()).half()
        for product in traced(left, B, torch.full_like(expected, torch.nan)):
            assert torch.equal(product, expected)


@pytest.mark.parametrize("which", [0, 1])
def test_no_gradient_is_lost_in_out(which: int, ran: list[str | None]) -> None:
    operands = [A.clone(), B.clone()]
    operands[which].requires_grad_()
    message = f"{'ab'[which]} requires grad"
    out = torch.empty_like(EXPECTED)
    with pytest.raises(hgemm.UnsupportedProblem, match=message):
        torch.ops.hgemm.mm_out(*operands, out, "mine", None)
    with pytest.raises(Exception, match=message):  # in an exception of the compiler's own
        compiled(lambda a, b, out: hgemm.matmul(a, b, backend="mine", out=out))(*operands, out)
    assert not ran
    with torch.no_grad():
        torch.ops.hgemm.mm_out(*operands, out, "mine", None)
        assert torch.equal(out, EXPECTED)


@pytest.mark.parametrize("which", [0, 1])
def test_no_gradient_is_lost_in_a_traced_function(which: int) -> None:
    """Where the operand is computed from what requires grad: then the fake tensor at hand does not say so itself."""
    operands = [A.clone(), B.clone()]
    operands[which].requires_grad_()

    def function(a: Tensor, b: Tensor) -> Tensor:
        out = a.new_empty(EXPECTED.shape)
        torch.ops.hgemm.mm_out(a * 1, b * 1, out, "mine", None)
        return out

    traced = aot_function(function, fw_compiler=lambda graph, inputs: graph)
    with pytest.raises(hgemm.UnsupportedProblem, match=f"{'ab'[which]} requires grad"):
        traced(*operands)
    with torch.no_grad():
        assert torch.equal(traced(*operands), EXPECTED)


def test_a_subclass_of_tensor_is_computed_too() -> None:
    class Labelled(Tensor):
        pass

    product = hgemm.matmul(A.as_subclass(Labelled), B, backend="mine")
    assert torch.equal(product.as_subclass(Tensor), EXPECTED)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "triton", "cuda_tma", "cuda_cp_async"])
def test_on_a_gpu(backend: str) -> None:
    a, b = A.cuda(), B.cuda()
    torch.library.opcheck(torch.ops.hgemm.mm.default, (a, b, backend, None))
    torch.library.opcheck(torch.ops.hgemm.mm_out.default, (a, b, torch.empty_like(EXPECTED).cuda(), backend, None))
    function = compiled(lambda a, b: 2 * hgemm.matmul(a, b, backend=backend))
    assert torch.equal(function(a, b).cpu(), 2 * EXPECTED)
