"""Gradients, autocast, torch.compile, torch.func and vmap: what torch.matmul gives, by hgemm's own products."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import hgemm

SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((4, 5), (5, 3)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 3)),
    ((2, 3, 4, 5), (5,)),
    ((5,), (2, 3, 5, 4)),
]
EMPTY = [((0, 5), (5, 3)), ((4, 0), (0, 3)), ((2, 4, 0), (0, 3)), ((0, 4, 5), (5, 3)), ((2, 4, 5), (2, 5, 0))]
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR).half()


@pytest.fixture(autouse=True)
def products() -> list[tuple[Tensor, Tensor]]:
    """Registers ``mine``, in fp64; returns the operands that it was given."""
    seen: list[tuple[Tensor, Tensor]] = []

    def fp64(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        assert config == "small"
        seen.append((a, b))
        out.copy_(a.double() @ b.double())

    hgemm.register_backend("mine", fp64, configs=("small", "large"))
    return seen


def mine(a: Tensor, b: Tensor) -> Tensor:
    return hgemm.matmul(a, b, backend="mine")


def in_fp64(*tensors: Tensor) -> Iterator[Tensor]:
    return (tensor.detach().double().requires_grad_() for tensor in tensors)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], times: float) -> None:
    """Within some roundings to fp16 of the largest element."""
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == torch.float16
        assert x.shape == y.shape
        assert float((x.double() - y).detach().abs().max()) <= times * 2.0**-11 * float(y.detach().abs().max())


@pytest.mark.parametrize(("shape_a", "shape_b"), SHAPES)
def test_first_and_second_derivatives(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], products: list[tuple[Tensor, Tensor]]
) -> None:
    a, b = normal(*shape_a).requires_grad_(), normal(*shape_b).requires_grad_()
    product = mine(a, b)
    direction = normal(*product.shape) if product.dim() else normal(1)[0]
    launches = len(products)
    gradients = torch.autograd.grad(product, (a, b), direction, create_graph=True)
    assert len(products) == 3 * launches, "one forward, one for each gradient"

    a64, b64 = in_fp64(a, b)
    exact = torch.autograd.grad(torch.matmul(a64, b64), (a64, b64), direction.double(), create_graph=True)
    close(gradients, exact, times=4)

    def penalty(tensors: tuple[Tensor, ...]) -> Tensor:
        return sum((tensor.double() ** 2).sum() for tensor in tensors)  # type: ignore[return-value]

    found = torch.autograd.grad(penalty(gradients), (a, b))
    close(found, torch.autograd.grad(penalty(exact), (a64, b64)), times=16)
    assert len(products) > 3 * launches, "the second derivatives are products of ours too"


@pytest.mark.parametrize(("shape_a", "shape_b"), EMPTY)
def test_gradients_of_empty_products(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
    a, b = normal(*shape_a).requires_grad_(), normal(*shape_b).requires_grad_()
    a64, b64 = in_fp64(a, b)
    for x, y in zip(
        torch.autograd.grad(mine(a, b).sum(), (a, b)),
        torch.autograd.grad(torch.matmul(a64, b64).sum(), (a64, b64)),
        strict=True,
    ):
        assert torch.equal(x.double(), y)


@pytest.mark.parametrize("which", [0, 1])
def test_a_gradient_nobody_asks_for_is_not_computed(which: int, products: list[tuple[Tensor, Tensor]]) -> None:
    operands = [normal(4, 5), normal(5, 3)]
    operands[which].requires_grad_()
    mine(*operands).sum().backward()
    assert len(products) == 2
    assert operands[1 - which].grad is None
    for tensor in products[1]:
        assert 0 not in tensor.stride(), "the gradient of a sum is written out"


def test_gradients_read_transposed_views(products: list[tuple[Tensor, Tensor]]) -> None:
    a, b = normal(4, 5).requires_grad_(), normal(5, 3).requires_grad_()
    mine(a, b).backward(normal(4, 3))
    assert products[1][1].data_ptr() == b.data_ptr()
    assert products[1][1].stride() == (1, 3)
    assert products[2][0].data_ptr() == a.data_ptr()
    assert products[2][0].stride() == (1, 5)


def test_a_weight_shared_by_a_batch_gets_one_product(products: list[tuple[Tensor, Tensor]]) -> None:
    """Partial sums over the batch are never rounded: 2048 + 1 is 2048 in fp16, and with - 2048 the whole sum is 1."""
    a = torch.tensor([[2048.0, 1.0], [-2048.0, 0.0]]).half().unsqueeze(-1)
    b = torch.ones(1, 1).half().requires_grad_()
    mine(a, b).backward(torch.ones(2, 2, 1).half())
    assert b.grad is not None
    assert float(b.grad) == 1.0
    assert len(products) == 2


def test_a_refusal_in_the_backward_pass_is_named() -> None:
    def fp64(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        out.copy_(a.double() @ b.double())

    hgemm.register_backend("nn", fp64, accepts=lambda problem, config: "not NT" if problem.layout == "nt" else None)
    a = normal(4, 5).requires_grad_()
    product = hgemm.matmul(a, normal(5, 3), backend="nn")
    with pytest.raises(hgemm.UnsupportedProblem, match="backend 'nn' cannot compute this product: not NT"):
        product.backward(normal(4, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_what_torch_matmul_casts(dtype: torch.dtype) -> None:
    single, half = torch.randn(4, 5, generator=GENERATOR), normal(5, 3)
    for a, b in ((single, half), (single, half.float()), (single.bfloat16(), half)):
        with torch.autocast("cpu", dtype=dtype):
            product = hgemm.matmul(a, b)
            assert product.dtype == torch.matmul(a, b).dtype == dtype
            assert torch.equal(product, torch.ops.hgemm.mm(a, b, "auto", None))
        assert torch.equal(product, hgemm.matmul(a.to(dtype), b.to(dtype)))
    with torch.autocast("cpu", dtype=dtype), pytest.raises(TypeError, match="float64"):
        hgemm.matmul(single.double(), half)
    with torch.autocast("cpu", dtype=dtype), pytest.raises(TypeError, match=r"torch\.int32"):
        hgemm.matmul(single.int(), half)
    with torch.autocast("cpu", dtype=dtype, enabled=False), pytest.raises(TypeError, match="float32"):
        hgemm.matmul(single, half)
    with torch.autocast("cpu", dtype=dtype), pytest.raises(TypeError, match="float32"):
        hgemm.matmul(single, single.t(), out=torch.empty(4, 4, dtype=dtype))


def test_what_autocast_casts_is_explained_too() -> None:
    a, b = torch.randn(4, 5, generator=GENERATOR), normal(5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hgemm.explain(a, b).backend == "torch"
        with pytest.raises(TypeError, match="float32"):
            hgemm.explain(a, b, torch.empty(4, 3).half())
    with pytest.raises(TypeError, match="float32"):
        hgemm.explain(a, b)


def test_autocast_passes_gradients_on() -> None:
    weight = torch.randn(5, 3, generator=GENERATOR).requires_grad_()
    x = normal(4, 5)
    with torch.autocast("cpu", dtype=torch.float16):
        product = mine(x, weight)
    product.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert torch.equal(weight.grad, x.double().sum(0).half().float().unsqueeze(1).expand(5, 3))


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **options)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole_with_gradients(dynamic: bool, products: list[tuple[Tensor, Tensor]]) -> None:
    function = compiled(lambda a, b: 2 * mine(a, b.t()), backend="aot_eager", dynamic=dynamic)
    for scale in (1, 2, 3):
        a, b = normal(scale + 1, 4 * scale, 5).requires_grad_(), normal(3, 5).requires_grad_()
        product = function(a, b)
        direction = normal(*product.shape)
        gradients = torch.autograd.grad(product, (a, b), direction)
        a64, b64 = in_fp64(a, b)
        close(gradients, torch.autograd.grad(2 * torch.matmul(a64, b64.t()), (a64, b64), direction.double()), times=4)
    assert len(products) == 9


def test_compiled_under_autocast() -> None:
    function = compiled(mine, backend="aot_eager")
    a, b = torch.randn(4, 5, generator=GENERATOR), torch.randn(5, 3, generator=GENERATOR)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = function(a, b)
    assert torch.equal(product, mine(a.bfloat16(), b.bfloat16()))


@pytest.mark.parametrize(("shape_a", "shape_b"), SHAPES)
def test_vmap_is_one_more_batch(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], products: list[tuple[Tensor, Tensor]]
) -> None:
    a, b = normal(4, *shape_a), normal(4, *shape_b)
    pairs: list[tuple[tuple[int | None, int | None], Tensor, Tensor]] = [
        ((0, 0), a, b),
        ((0, None), a, b[0]),
        ((None, 0), a[0], b),
        ((-1, 0), a.movedim(0, -1), b),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a loop
        for in_dims, left, right in pairs:
            found = torch.vmap(mine, in_dims=in_dims)(left, right)
            expected = torch.vmap(torch.matmul, in_dims=in_dims)(left.double(), right.double())
            assert found.shape == expected.shape
            assert torch.equal(found, expected.half())


def test_vmap_does_not_write_into_out() -> None:
    with pytest.raises(hgemm.UnsupportedProblem, match="leave out out"):
        torch.vmap(lambda a, out: hgemm.matmul(a, a, out=out))(normal(2, 3, 3), normal(2, 3, 3))


def test_torch_func() -> None:
    a, b = normal(2, 4, 5), normal(5, 3)

    def norm(a: Tensor, b: Tensor) -> Tensor:
        return (mine(a, b).float() ** 2).sum()

    a64, b64 = in_fp64(a, b)
    exact = torch.autograd.grad((torch.matmul(a64, b64) ** 2).sum(), (a64, b64))
    close(torch.func.grad(norm, argnums=(0, 1))(a, b), exact, times=8)
    each = torch.vmap(torch.func.grad(norm), in_dims=(0, None))(a, b)
    close((each,), (exact[0],), times=8)


Function = Callable[[Tensor], Tensor]


def pair(x: Tensor) -> Tensor:
    return torch.stack([x, 2 * x])


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
    "jacrev of jacrev": lambda function: torch.func.jacrev(torch.func.jacrev(function)),
    "jacrev of jacfwd": lambda function: torch.func.jacrev(torch.func.jacfwd(function)),
    "grad of vmap": lambda function: torch.func.grad(lambda x: torch.vmap(function)(pair(x)).sum()),
    "jacfwd of vmap": lambda function: torch.func.jacfwd(lambda x: torch.vmap(function)(pair(x))),
    "vmap of hessian": lambda function: lambda x: torch.vmap(torch.func.hessian(function))(pair(x)),
    "jvp": lambda function: lambda x: torch.func.jvp(function, (x,), (x + 1,))[1],
    "linearize": lambda function: lambda x: torch.func.linearize(function, x)[1](x + 1),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("of", ["a", "b", "both", "vectors"])
def test_transforms_of_torch_func_may_be_nested(transform: str, of: str, products: list[tuple[Tensor, Tensor]]) -> None:
    x, other = normal(2, 3), normal(3, 2)

    def squares(matmul: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        fixed = other.to(x.dtype)
        a, b = {"a": (x, fixed), "b": (fixed, x), "both": (x.mT, x), "vectors": (x[0], x[1])}[of]
        return (matmul(a, b).double() ** 2).sum()

    found = TRANSFORMS[transform](lambda x: squares(mine, x))(x)
    expected = TRANSFORMS[transform](lambda x: squares(torch.matmul, x))(x.double())
    assert float((found.double() - expected).abs().max()) <= 2.0**-6 * float(expected.abs().max())
    assert products


def test_forward_mode() -> None:
    a, b, tangent_a, tangent_b = normal(4, 5), normal(5, 3), normal(4, 5), normal(5, 3)
    for _ in range(3):
        mine(a, b)
    with forward_ad.dual_level():
        dual_a, dual_b = forward_ad.make_dual(a, tangent_a), forward_ad.make_dual(b, tangent_b)
        for operands, exact in (
            ((dual_a, b), tangent_a.double() @ b.double()),
            ((a, dual_b), a.double() @ tangent_b.double()),
            ((dual_a, dual_b), tangent_a.double() @ b.double() + a.double() @ tangent_b.double()),
        ):
            product, tangent = forward_ad.unpack_dual(mine(*operands))
            assert torch.equal(product, (a.double() @ b.double()).half())
            close((tangent,), (exact,), times=4)
        assert forward_ad.unpack_dual(mine(a, b)).tangent is None


def test_no_tangent_is_lost() -> None:
    a, b, out = normal(4, 5), normal(5, 3), torch.full((4, 3), torch.nan).half()
    lost = "has no forward-mode derivative"
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, a)
        with pytest.raises(hgemm.UnsupportedProblem, match=lost):
            torch.ops.hgemm.mm(dual, b, "mine", None)
        with torch.no_grad(), pytest.raises(hgemm.UnsupportedProblem, match=lost):
            torch.ops.hgemm.mm(dual, b, "mine", None)
        with pytest.raises(hgemm.UnsupportedProblem, match=lost):
            hgemm.matmul(dual, b, backend="mine", out=out)
        with pytest.raises(hgemm.UnsupportedProblem, match=lost):
            hgemm.matmul(a, b, backend="mine", out=forward_ad.make_dual(out, out))
        assert out.isnan().all()
        assert torch.equal(hgemm.matmul(a, b, backend="mine", out=out), mine(a, b))
    with pytest.raises(Exception, match=lost):  # in an exception of the compiler's own
        compiled(lambda a: torch.func.jvp(lambda x: mine(x, b), (a,), (a,))[1], backend="aot_eager")(a)


def test_inference_mode() -> None:
    a, b = normal(2, 4, 5), normal(5, 3)
    with torch.inference_mode():
        product = mine(a, b)
        out = mine(a, b).fill_(torch.nan)
        hgemm.matmul(a, b, backend="mine", out=out)
    assert product.is_inference()
    assert torch.equal(product, mine(a, b))
    assert torch.equal(out, product)
