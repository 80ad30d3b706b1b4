"""hgemm.matmul where all is well: the right numbers for every legal product, whatever was called before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hgemm
from hgemm.problem import VECTOR_BYTES, Problem, row_major_rule
from hgemm.reference import exact_integers

DTYPES = [torch.float16, torch.bfloat16]


def integers(
    M: int, N: int, K: int, dtype: torch.dtype = torch.float16, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    return exact_integers(M, N, K, dtype, "cpu", torch.Generator().manual_seed(seed))


def fp64(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """The definition, for contiguous strides or not."""
    out.copy_(a.double() @ b.double())


@pytest.fixture
def seen() -> list[Problem]:
    """Registers ``mine``, which notes the problems it is given."""
    problems: list[Problem] = []

    def noting(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        problems.append(Problem.from_tensors(a, b, out))
        fp64(a, b, out, config)

    hgemm.register_backend("mine", noting)
    return problems


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), [(1, 1, 1), (1, 8, 16), (7, 24, 8), (5, 13, 17), (65, 72, 40)])
def test_exact_integers_come_out_exact(M: int, N: int, K: int, dtype: torch.dtype) -> None:
    a, b, expected = integers(M, N, K, dtype)
    product = hgemm.matmul(a, b)
    assert product.dtype == dtype
    assert torch.equal(product, expected)
    out = torch.full_like(expected, torch.nan)
    assert hgemm.matmul(a, b, out=out) is out
    assert torch.equal(out, expected)


@pytest.mark.filterwarnings("error")
def test_auto_takes_what_torch_matmul_takes() -> None:
    square, _, _ = integers(6, 6, 6)
    stack = torch.stack([square, 2 * square])
    vector = square[0]
    pairs = [
        (square.t(), square),
        (square, square.t()),
        (square[:, ::2], square[::2]),
        (square[:1].expand(4, 6), square),
        (vector, square),
        (square, vector),
        (vector, vector),
        (stack, square),
        (square, stack),
        (stack.unsqueeze(1), stack),
    ]
    for a, b in pairs:
        for backend in ("auto", "torch"):
            product = hgemm.matmul(a, b, backend=backend)
            expected = torch.matmul(a.double(), b.double()).half()
            assert torch.equal(product, expected)
            assert product.shape == expected.shape
            out = torch.full_like(expected, torch.nan)
            assert hgemm.matmul(a, b, backend=backend, out=out) is out
            assert torch.equal(out, expected)
    out = torch.full((6, 6), torch.nan).half().t()
    hgemm.matmul(square, square, out=out)
    assert torch.equal(out, (square.double() @ square.double()).half())


@pytest.mark.parametrize("backend", ["auto", "torch", "mine"])
@pytest.mark.parametrize(("M", "N", "K"), [(0, 8, 8), (8, 0, 8), (0, 0, 8), (8, 8, 0), (0, 8, 0), (3, 5, 0)])
def test_empty_products(backend: str, M: int, N: int, K: int, seen: list[Problem]) -> None:
    a, b = torch.ones(M, K).half(), torch.ones(K, N).half()
    for _ in range(2):
        product = hgemm.matmul(a, b, backend=backend)
        assert product.shape == (M, N)
        assert product.eq(0).all()
        arena = torch.full((M + 2, N), torch.nan).half()
        out = arena[1 : M + 1]
        assert hgemm.matmul(a, b, backend=backend, out=out) is out
        assert out.eq(0).all()
        assert arena[0].isnan().all()
        assert arena[-1].isnan().all()
    assert not seen, "no backend has to know of empty products"


@pytest.mark.parametrize(
    ("shape_a", "stride_a", "shape_b", "stride_b"),
    [
        ((1, 8), (3, 1), (8, 8), (8, 1)),
        ((1, 8), (0, 1), (8, 8), (8, 1)),
        ((1, 8), (2**40, 1), (8, 8), (8, 1)),
        ((5, 1), (1, 77), (1, 8), (5, 1)),
        ((1, 1), (9, 11), (1, 1), (0, 0)),
        ((4, 8), (8, 1), (8, 1), (1, 5)),
    ],
)
def test_any_stride_is_legal_where_a_size_is_one(
    shape_a: tuple[int, ...],
    stride_a: tuple[int, ...],
    shape_b: tuple[int, ...],
    stride_b: tuple[int, ...],
    seen: list[Problem],
) -> None:
    values = torch.arange(1, 101).half()
    a, b = values.as_strided(shape_a, stride_a), values.as_strided(shape_b, stride_b)
    expected = (a.double() @ b.double()).half()
    assert torch.equal(hgemm.matmul(a, b, backend="mine"), expected)
    assert all(operand.row_major for operand in (seen[0].a, seen[0].b, seen[0].out)), "kernels see plain strides"
    out = torch.full(expected.shape, torch.nan).half()
    odd = out.as_strided(out.shape, [999 if size == 1 else out.stride(i) for i, size in enumerate(out.shape)])
    assert hgemm.matmul(a, b, backend="mine", out=odd) is odd
    assert torch.equal(out, expected)


def test_row_strided_views_and_offsets_reach_the_backend_as_they_are(seen: list[Problem]) -> None:
    a, b, expected = integers(5, 8, 16)
    wide = torch.full((5, 40), torch.nan).half()
    wide[:, 3:19] = a
    arena = torch.full((5, 24), torch.nan).half()
    hgemm.matmul(wide[:, 3:19], b, backend="mine", out=arena[:, 8:16])
    assert torch.equal(arena[:, 8:16], expected)
    assert arena[:, :8].isnan().all()
    assert arena[:, 16:].isnan().all()
    assert (seen[0].a.row_stride, seen[0].a.alignment, seen[0].out.row_stride) == (40, 2, 24)


def test_a_call_like_one_before_is_still_checked(seen: list[Problem]) -> None:
    """The plan of a call is kept; what may differ between two calls that share it is looked at again."""
    a, b, expected = integers(8, 8, 8)
    for _ in range(2):
        assert torch.equal(hgemm.matmul(a, b, backend="mine", out=torch.empty_like(a)), expected)
    with pytest.raises(ValueError, match="out shares memory with a"):
        hgemm.matmul(a, b, backend="mine", out=a)
    with pytest.raises(hgemm.UnsupportedProblem, match="b requires grad"):
        hgemm.matmul(a, b.clone().requires_grad_(), backend="mine", out=torch.empty_like(a))
    assert len(seen) == 2
    negative = torch._neg_view(a)
    with pytest.raises(hgemm.UnsupportedProblem, match="a must hold its own values, found a lazily negated view"):
        hgemm.matmul(negative, b, backend="mine", out=torch.empty_like(a))
    for _ in range(2):
        assert torch.equal(hgemm.matmul(a, b), expected)
        assert torch.equal(hgemm.matmul(negative, b), -expected)
        out = torch._neg_view(torch.full_like(a, torch.nan))
        assert torch.equal(hgemm.matmul(a, b, out=out), expected)


def test_a_plan_is_not_taken_for_another_problem() -> None:
    """The same call but for one thing each time, so that a key that forgets the thing would answer wrongly."""

    def rule(problem: Problem) -> str | None:
        """Whole rows of 16 bytes, on 16 bytes."""
        rows = all(not operand.row_stride % 8 and operand.alignment == VECTOR_BYTES for _, operand in problem.operands)
        return row_major_rule(problem) or (None if rows and problem.N % 8 == 0 else "rows of 16 bytes")

    hgemm.register_backend("vectors", fp64, accepts=lambda problem, config: rule(problem), configs=("one", "two"))
    flat = torch.randn(4096).half()

    def matrix(
        rows: int = 8, columns: int = 8, stride: int = 8, offset: int = 0, dtype: torch.dtype = torch.float16
    ) -> Tensor:
        return flat.to(dtype).as_strided((rows, columns), (stride, 1), offset)

    def attempt(a: Tensor, b: Tensor, out: Tensor | None = None, config: str | None = None) -> Tensor:
        return hgemm.matmul(a, b, backend="vectors", out=out, config=config)

    def empty(columns: int = 8, stride: int = 8, offset: int = 0) -> Tensor:
        return torch.empty(512).half().as_strided((8, columns), (stride, 1), offset)

    attempt(matrix(), matrix())
    attempt(matrix(), matrix(), empty())
    refused: list[Callable[[], Tensor]] = [
        lambda: attempt(matrix(offset=1), matrix()),
        lambda: attempt(matrix(), matrix(offset=4)),
        lambda: attempt(matrix(), matrix(), empty(offset=2)),
        lambda: attempt(matrix(stride=9), matrix()),
        lambda: attempt(matrix(), matrix(stride=12)),
        lambda: attempt(matrix(), matrix(), empty(stride=10)),
        lambda: attempt(matrix(), matrix().t()),
        lambda: attempt(matrix().t(), matrix()),
        lambda: attempt(matrix(), matrix(), empty().t()),
        lambda: attempt(matrix(), matrix(columns=7)),
    ]
    for call in refused:
        with pytest.raises(hgemm.UnsupportedProblem):
            call()
    with pytest.raises(TypeError):
        attempt(matrix(), matrix(dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="no configuration 'three'"):
        attempt(matrix(), matrix(), config="three")
    wide = {columns: matrix(columns=columns, stride=24) for columns in (8, 16, 24)}
    for a in (matrix(), matrix(rows=16), matrix(rows=24)):
        for b in wide.values():
            assert torch.equal(attempt(a, b), (a.double() @ b.double()).half())


def test_a_failure_below_is_described_again() -> None:
    """A kernel's own refusal (a RuntimeError from C++) becomes the rule, if there is one."""
    limit = [10**9]

    def strict(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        limit[0] = 4
        raise RuntimeError("refused on the device")

    hgemm.register_backend(
        "strict",
        strict,
        accepts=lambda problem, config: f"M up to 4, found {problem.M}" if limit[0] < problem.M else None,
    )
    a, b, _ = integers(8, 8, 8)
    with pytest.raises(hgemm.UnsupportedProblem, match=r"'strict' cannot .* M up to 4, found 8") as caught:
        hgemm.matmul(a, b, backend="strict")
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("error", [RuntimeError("a sticky error"), ValueError("mine"), KeyboardInterrupt()])
def test_any_other_failure_below_is_passed_on(error: BaseException) -> None:
    def failing(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        raise error

    hgemm.register_backend("failing", failing)
    a, b, _ = integers(8, 8, 8)
    with pytest.raises(type(error)) as caught:
        hgemm.matmul(a, b, backend="failing")
    assert caught.value is error


def test_weights_are_multiplied_where_no_gradient_is_asked_for() -> None:
    a, b, expected = integers(8, 8, 8)
    weight = torch.nn.Parameter(b)
    with torch.no_grad():
        product = hgemm.matmul(a, weight)
        assert type(product) is Tensor
        assert torch.equal(product, expected)
    with torch.inference_mode():
        out = torch.empty_like(expected)
        assert torch.equal(hgemm.matmul(a, weight, out=out), expected)
    assert torch.equal(hgemm.matmul(a, torch.nn.Parameter(b, requires_grad=False)), expected)


def test_autograd_notices_that_a_saved_tensor_was_overwritten() -> None:
    a, b, _ = integers(8, 8, 8)
    hgemm.register_backend("mine", lambda a, b, out, config: None)
    saved = torch.ones(8, 8).half()
    x = torch.ones(8, 8).half().requires_grad_()
    y = (x * saved).sum()
    hgemm.matmul(a, b, backend="mine", out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.gpu
def test_on_a_gpu_every_legal_product_is_computed() -> None:
    a, b, _ = integers(16, 16, 16)
    x, y = a.cuda(), b.cuda()
    pairs = [(x, y), (x.t(), y), (x, y.t()), (x[:, :9], y[:9]), (x[0], y), (x, y[:, 0]), (x.expand(2, 16, 16), y)]
    for left, right in pairs:
        expected = torch.matmul(left.cpu().double(), right.cpu().double()).half()
        assert torch.equal(hgemm.matmul(left, right).cpu(), expected)
