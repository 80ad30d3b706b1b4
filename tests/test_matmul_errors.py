"""Bad input to hgemm.matmul: one exception that names rule, value and way out; nothing runs, `out` keeps its bits."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import hgemm
from hgemm.config import Config
from hgemm.problem import row_major_rule


def half(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float16)


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int16).clone()


@pytest.fixture(autouse=True)
def spy() -> list[str]:
    """Registers ``spy``, which takes everything, and ``rows``, which takes row-major matrices; returns who ran."""
    ran: list[str] = []
    hgemm.register_backend("spy", lambda a, b, out, config: ran.append("spy"), configs=("small", "large"))
    hgemm.register_backend(
        "rows", lambda a, b, out, config: ran.append("rows"), accepts=lambda problem, config: row_major_rule(problem)
    )
    return ran


def refused(
    spy: list[str], error: type[Exception], fragments: tuple[str, ...], a: Any, b: Any, out: Any = None, **options: Any
) -> str:
    """Calls, and returns the message after looking for all fragments in it, in order."""
    before = bits(out) if isinstance(out, Tensor) and out.is_cpu and out.dtype.itemsize == 2 else None
    with pytest.raises(error) as caught:
        hgemm.matmul(a, b, out=out, **{"backend": "spy", **options})
    assert type(caught.value) is error
    message = str(caught.value)
    position = 0
    for fragment in fragments:
        assert fragment in message[position:], f"{fragment!r} is not in (the rest of) {message!r}"
        position = message.index(fragment, position)
    if before is not None:
        assert torch.equal(bits(out), before)
    assert not spy, "nothing may run"
    return message


A, B = half(8, 16), half(16, 24)


@pytest.mark.parametrize(
    ("a", "b", "fragments"),
    [
        (A.numpy(), B, ("a must be a torch.Tensor", "numpy.ndarray")),
        (A, [[1.0]], ("b must be a torch.Tensor", "list")),
        (A, None, ("b must be a torch.Tensor", "NoneType")),
        (A.float(), B.float(), ("a must be float16 or bfloat16", "torch.float32", ".to(torch.float16)")),
        (A, B.double(), ("b must be float16 or bfloat16", "torch.float64")),
        (A.int(), B, ("a must be float16 or bfloat16", "torch.int32")),
        (A.to(torch.float8_e4m3fn), B, ("a must be float16 or bfloat16", "torch.float8_e4m3fn")),
        (A, B.bfloat16(), ("a and b must have one dtype", "torch.float16 and torch.bfloat16", ".to(dtype)")),
        (A.to_sparse(), B, ("a is sparse", "torch.sparse_coo", "to_dense()")),
        (A.to(torch.complex64), B, ("a is complex", "torch.complex64")),
    ],
)
def test_what_is_no_half_precision_matrix_is_a_type_error(
    a: Any, b: Any, fragments: tuple[str, ...], spy: list[str]
) -> None:
    for backend in ("spy", "torch", "auto"):
        refused(spy, TypeError, fragments, a, b, torch.full((8, 24), torch.nan).half(), backend=backend)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, about every one of these kinds
def test_kinds_of_tensor_are_refused_by_name(spy: list[str]) -> None:
    quantised = torch._empty_affine_quantized([8, 16], scale=1.0, zero_point=0, dtype=torch.qint8)
    refused(spy, TypeError, ("a is quantised", "qint8", "dequantize()"), quantised, B)
    refused(spy, TypeError, ("b is sparse", "torch.sparse_csr", "to_dense()"), A, B.to_sparse_csr())
    refused(spy, TypeError, ("a is a nested tensor", "one by one"), torch.nested.nested_tensor([A, A]), B)
    jagged = torch.nested.nested_tensor([A, A], layout=torch.jagged)
    refused(spy, TypeError, ("a is a nested tensor", "one by one"), jagged, B)


def test_devices_must_agree(spy: list[str]) -> None:
    fragments = ("a and b must be on one device", "cpu and meta", ".to(device)")
    refused(spy, ValueError, fragments, A, B.to("meta"))
    refused(spy, ValueError, ("out must be on the device of a and b, cpu", "found meta"), A, B, half(8, 24).to("meta"))


@pytest.mark.parametrize(
    ("a", "b", "fragments"),
    [
        (half(8, 16), half(24, 16), ("the columns of a must be as many as the rows of b", "(8, 16) and (24, 16)")),
        (half(16), half(8, 16), ("the columns of a", "(16,) and (8, 16)")),
        (half(8, 0), half(1, 8), ("the columns of a", "(8, 0) and (1, 8)")),
        (half(), half(8, 8), ("at least one dimension", "() and (8, 8)")),
        (half(2, 8, 16), half(3, 16, 8), ("batch dimensions must broadcast", "(2, 8, 16) and (3, 16, 8)")),
    ],
)
def test_shapes_must_fit(a: Tensor, b: Tensor, fragments: tuple[str, ...], spy: list[str]) -> None:
    for backend in ("spy", "torch", "auto"):
        refused(spy, ValueError, fragments, a, b, backend=backend)


@pytest.mark.parametrize(
    ("out", "error", "fragments"),
    [
        (numpy.ones((8, 24), numpy.float16), TypeError, ("out must be a torch.Tensor", "numpy.ndarray")),
        (half(8, 24).float(), TypeError, ("out must be float16 or bfloat16", "torch.float32")),
        (
            half(8, 24).bfloat16(),
            TypeError,
            ("out must have the dtype of a and b, torch.float16", "found torch.bfloat16"),
        ),
        (half(24, 8), ValueError, ("out must have the shape of the product, (8, 24)", "found (24, 8)")),
        (half(1, 8, 24), ValueError, ("out must have the shape of the product, (8, 24)", "found (1, 8, 24)")),
        (half(0), ValueError, ("out must have the shape of the product, (8, 24)", "found (0,)")),
        (half(8, 24).requires_grad_(), hgemm.UnsupportedProblem, ("out requires grad", "no_grad()", "detach()")),
    ],
)
def test_out_must_fit(out: Any, error: type[Exception], fragments: tuple[str, ...], spy: list[str]) -> None:
    for backend in ("spy", "torch", "auto"):
        refused(spy, error, fragments, A, B, out, backend=backend)


def test_out_may_not_overlap_an_input(spy: list[str]) -> None:
    square = half(16, 16)
    refused(spy, ValueError, ("out shares memory with a",), square, half(16, 16), square)
    refused(spy, ValueError, ("out shares memory with b",), half(16, 16), square, square)
    wide = half(16, 40)
    refused(spy, ValueError, ("out shares memory with a",), wide[:, :16], half(16, 16), wide[:, 15:31])
    refused(spy, ValueError, ("out shares memory with a",), wide[:, :16], half(16, 16), wide[:, 15:31], backend="auto")


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((8, 24), (0, 1)), ((8, 24), (23, 1)), ((8, 24), (1, 0)), ((8, 24), (4, 1)), ((8, 24), (3, 2))],
)
def test_out_may_not_overlap_itself(shape: tuple[int, ...], stride: tuple[int, ...], spy: list[str]) -> None:
    memory = torch.full((8 * 24,), torch.nan).half()
    fragments = ("two elements of out are the same memory", f"strides {stride} for shape {shape}")
    for backend in ("spy", "torch", "auto"):
        for _ in range(2):
            refused(spy, ValueError, fragments, A, B, memory.as_strided(shape, stride), backend=backend)
    assert memory.isnan().all()


def test_interleaved_memory_is_no_overlap(spy: list[str]) -> None:
    wide = half(16, 40)
    hgemm.matmul(wide[:, :16], half(16, 16), out=wide[:, 16:32], backend="spy")
    assert spy == ["spy"]


def test_nothing_overlaps_an_empty_input(spy: list[str]) -> None:
    out = half(8, 8)
    assert hgemm.matmul(out[:, 4:4], half(0, 8), out=out, backend="spy").eq(0).all()
    assert not spy


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_overlap_is_found_whatever_the_default_device(device: str, spy: list[str]) -> None:
    wide, square = half(3, 8, 24), half(3, 8, 8)
    free = half(400).as_strided((3, 8, 8), (100, 1, 9))
    crossing = half(400).as_strided((3, 8, 8), (50, 1, 3))
    with torch.device(device):
        refused(spy, ValueError, ("out shares memory with a",), wide[..., :8], square, wide[..., 7:15])
        refused(spy, ValueError, ("two elements of out",), wide[..., :8], square, crossing)
        hgemm.matmul(wide[..., :8], square, out=wide[..., 8:16], backend="spy")
        hgemm.matmul(wide[..., :8], square, out=free, backend="spy")
    assert spy


def test_names_must_be_known(spy: list[str]) -> None:
    refused(
        spy, ValueError, ("unknown backend 'tritn'", "did you mean 'triton'?", "torch", "spy"), A, B, backend="tritn"
    )
    refused(spy, TypeError, ("backend must be a name", "None"), A, B, backend=None)
    refused(spy, TypeError, ("backend must be a name", "[]"), A, B, backend=[])
    refused(
        spy,
        ValueError,
        ("backend 'spy' has no configuration 'smal'", "did you mean 'small'?", "small, large", "_s<stages>_"),
        A,
        B,
        config="smal",
    )
    config = "128x128x64_s9_w64x32"
    listed = (config, "did you mean '128x128x64_s", "128x128x32_s3_w64x32", "<tile M>x<tile N>x<tile K>_s<stages>")
    refused(spy, ValueError, listed, A, B, backend="cuda_tma", config=config)
    refused(
        spy,
        ValueError,
        ("'torch' has no configurations", "'small'", "leave config out"),
        A,
        B,
        backend="torch",
        config="small",
    )
    refused(spy, TypeError, ("config must be a name", "['small']"), A, B, config=["small"])
    whole = Config(128, 128, 64, 3, 64, 32)
    refused(spy, TypeError, ("config must be a name", ".name"), A, B, backend="cuda_tma", config=whole)


def test_auto_chooses_its_own_configuration(spy: list[str]) -> None:
    fragments = ("chooses the configuration itself", "name a backend", "'small'", "belongs to spy")
    refused(spy, ValueError, fragments, A, B, backend="auto", config="small")
    refused(spy, ValueError, ("name a backend",), A, B, backend="auto", config="nobody's")


def test_a_rule_of_the_backend_is_named_with_the_value_found(spy: list[str]) -> None:
    out = torch.full((8, 24), torch.nan).half()
    fragments = ("backend 'rows' cannot", "b must be row-major", "strides (1, 16) for shape (16, 24)")
    message = refused(spy, hgemm.UnsupportedProblem, fragments, A, half(24, 16).t(), out, backend="rows")
    assert {"torch", "spy"} <= set(message.rpartition(": ")[2].split(", "))
    out = torch.full((24, 8), torch.nan).half().t()
    with pytest.raises(
        hgemm.UnsupportedProblem, match=r"out must be row-major .* strides \(1, 8\) for shape \(8, 24\)"
    ):
        hgemm.matmul(A, B, out=out, backend="rows")
    assert out.isnan().all()
    fragments = ("backend 'rows' cannot", "(2,)")
    refused(spy, hgemm.UnsupportedProblem, fragments, half(2, 8, 16), half(2, 16, 24), backend="rows")


@pytest.mark.parametrize("backend", ["spy", "rows", "triton"])
@pytest.mark.parametrize("lazy", [torch._neg_view(A), torch._efficientzerotensor((8, 16), dtype=torch.float16)])
def test_tensors_that_do_not_hold_their_elements_are_refused_by_all_but_torch(
    lazy: Tensor, backend: str, spy: list[str]
) -> None:
    fragments = ("a must hold its own values", "lazily negated", "a.resolve_neg()")
    hgemm.matmul(A, B, backend="spy")
    spy.clear()
    message = refused(spy, hgemm.UnsupportedProblem, fragments, lazy, B, backend=backend)
    assert message.endswith("Backends that would take it as it is: torch")
    for name in ("torch", "auto"):
        assert torch.equal(hgemm.matmul(lazy, B, backend=name), torch.matmul(lazy, B))


@pytest.mark.parametrize("which", ["a", "b", "out"])
@pytest.mark.parametrize("backend", ["spy", "auto", "torch"])
def test_elements_without_memory_are_refused(which: str, backend: str, spy: list[str]) -> None:
    def tensors() -> dict[str, Tensor]:
        return {"a": half(8, 16), "b": half(16, 24), "out": half(8, 24)}

    kept = tensors()
    hgemm.matmul(kept["a"], kept["b"], out=kept["out"], backend=backend)
    spy.clear()
    arguments = tensors()
    arguments[which].untyped_storage().resize_(0)
    for call in (lambda: hgemm.matmul(**arguments, backend=backend), lambda: hgemm.explain(**arguments)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"^{which} has no memory for its [0-9]+ elements"):
            call()
    assert not spy


def test_lazy_zeros_cannot_be_written(spy: list[str]) -> None:
    out = torch._efficientzerotensor((8, 24), dtype=torch.float16)
    for backend in ("spy", "auto"):
        with pytest.raises(ValueError, match=r"^out has no memory for its 192 elements"):
            hgemm.matmul(A, B, out=out, backend=backend)
    assert not spy


def test_takers_are_worked_out_from_the_registry(spy: list[str]) -> None:
    message = refused(spy, hgemm.UnsupportedProblem, ("b must be row-major",), A, half(24, 16).t(), backend="rows")
    takers = message.rpartition(": ")[2].split(", ")
    assert {"torch", "spy"} <= set(takers)
    assert not {"rows", "cublas"} & set(takers)


def test_a_backend_that_cannot_run_here_says_why(spy: list[str]) -> None:
    reason = hgemm.backends()["cublas"].unavailable("cpu")
    assert reason
    for a, b in ((A, B), (half(0, 16), B), (half(8, 0), half(0, 24))):
        message = refused(spy, hgemm.UnsupportedProblem, ("'cublas' cannot", reason), a, b, backend="cublas")
        assert "torch" in message.rpartition(": ")[2]


@pytest.mark.parametrize("which", [0, 1])
def test_no_gradient_is_lost_in_out(which: int, spy: list[str]) -> None:
    operands = [A.clone(), B.clone()]
    operands[which].requires_grad_()
    fragments = (f"{'ab'[which]} requires grad", "leave out out", "torch.no_grad()", f"{'ab'[which]}.detach()")
    out = torch.full((8, 24), torch.nan).half()
    for backend in ("spy", "torch", "auto"):
        refused(spy, hgemm.UnsupportedProblem, fragments, *operands, out, backend=backend)
    with torch.no_grad():
        hgemm.matmul(*operands, backend="spy", out=out)
    hgemm.matmul(*(operand.detach() for operand in operands), backend="spy", out=out)
    assert spy == ["spy", "spy"]


def test_unsupported_is_a_value_error() -> None:
    assert issubclass(hgemm.UnsupportedProblem, ValueError)


@pytest.mark.gpu
def test_mixed_devices_on_a_gpu(spy: list[str]) -> None:
    refused(spy, ValueError, ("a and b must be on one device", "cpu and cuda:0"), A, B.cuda())


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda_tma", "triton"])
def test_kernels_refuse_before_launch_on_a_gpu(backend: str) -> None:
    a, b = half(8, 17).cuda()[:, 1:], half(16, 24).cuda()
    out = torch.full((8, 24), torch.nan, device="cuda").half()
    with pytest.raises(hgemm.UnsupportedProblem, match="a must lie on a 16-byte boundary"):
        hgemm.matmul(a, b, out=out, backend=backend)
    assert out.isnan().all()
