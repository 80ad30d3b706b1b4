"""``matmul``: checks the arguments, decides once for each kind of product who computes it, and calls that backend.

A call costs a few microseconds of Python before the backend runs. All that the checks and the decision depend on,
apart from gradients and overlapping memory, is read off the tensors into one key; a key seen before goes straight to
its plan.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from hgemm import arguments
from hgemm.backends import TORCH, Backend, backends, find, get
from hgemm.problem import VECTOR_BYTES, Problem, UnsupportedProblem
from hgemm.select import choose

# Types whose memory holds their elements. Other subclasses of Tensor (fake, functional, distributed) go by the ops.
_PLAIN = frozenset((Tensor, Parameter))


class _Plan(NamedTuple):
    record: Backend
    config: str | None
    shape: torch.Size


_plans: dict[tuple[object, ...], _Plan] = {}
_PLANS_KEPT = 4096  # a few hundred bytes each


def matmul(
    a: Tensor, b: Tensor, *, backend: str = "auto", config: str | None = None, out: Tensor | None = None
) -> Tensor:
    """The product of ``a`` and ``b``: summed in fp32, rounded once to their dtype, to nearest even.

    ``a[M, K]`` and ``b[K, N]`` are fp16 or bf16, of one dtype and on one device, a CUDA device or the CPU. ``backend``
    names one of ``hgemm.backends()``; "auto" takes any product that torch.matmul takes in these dtypes, and so does
    "torch". The others take two row-major matrices: last stride 1, row stride at least the number of columns.
    ``config`` pins one of the named backend's configurations. ``out[M, N]`` receives the product and is returned; left
    out, a new tensor is.

    Raises TypeError (not a dense fp16 or bf16 tensor, dtypes that differ), ValueError (shapes or devices that do not
    fit, an unknown backend or configuration, ``out`` overlapping an input) or UnsupportedProblem (a legal product that
    this backend cannot compute, with the rule and the backends that would take it; a tensor that requires grad, in
    grad mode). After an error in the arguments ``out`` is as it was.
    """
    if (
        type(a) in _PLAIN
        and type(b) in _PLAIN
        and (out is None or type(out) in _PLAIN)
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
    ):
        return multiply(a, b, backend, config, out)
    return _through_ops(a, b, backend, config, out)


def multiply(a: Tensor, b: Tensor, backend: str, config: str | None, out: Tensor | None) -> Tensor:
    """``matmul`` of tensors that hold memory; what ``torch.ops.hgemm`` runs on the CPU and on CUDA devices."""
    key = _key(a, b, backend, config, out)
    plan = _plans.get(key) if key else None
    if plan is None or _lost_gradient(a, b, out) or (out is not None and arguments.shared_memory(a, b, out)):
        return _multiply_unseen(a, b, backend, config, out, key)
    return _run(plan, a, b, out)


def _key(a: Tensor, b: Tensor, backend: str, config: str | None, out: Tensor | None) -> tuple[object, ...] | None:
    """What the checks and the plan depend on. None if it cannot be read: then the checks say what is wrong."""
    if config is not None and not isinstance(config, str):
        return None
    try:
        return (
            backend,
            find(backend),
            config,
            a.shape,
            a.stride(),
            a.dtype,
            a.device,
            a.data_ptr() % VECTOR_BYTES,
            b.shape,
            b.stride(),
            b.dtype,
            b.device,
            b.data_ptr() % VECTOR_BYTES,
            out is not None and (out.shape, out.stride(), out.dtype, out.device, out.data_ptr() % VECTOR_BYTES),
        )
    except (AttributeError, TypeError, RuntimeError):
        return None


def _lost_gradient(a: Tensor, b: Tensor, out: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    return a.requires_grad or b.requires_grad or (out is not None and out.requires_grad)


def _run(plan: _Plan, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
    record, config, shape = plan
    target = torch.empty(shape, dtype=a.dtype, device=a.device) if out is None else out
    try:
        record.run(a, b, target, config)
    except RuntimeError as error:
        if a.dim() == b.dim() == 2:
            problem = Problem.from_tensors(a, b, target)
            if rule := record.refuses(problem, config):
                raise _unsupported(record, rule, _takers(problem)) from error
        raise
    if out is not None:
        torch.autograd.graph.increment_version(out)  # so that autograd notices a saved tensor being overwritten
    return target


def _multiply_unseen(
    a: Tensor, b: Tensor, backend: str, config: str | None, out: Tensor | None, key: tuple[object, ...] | None
) -> Tensor:
    shape = arguments.check(a, b, out)
    record = _named(backend, config)
    if a.device.type == "meta":
        return _through_ops(a, b, backend, config, out)
    if out is not None and (name := arguments.shared_memory(a, b, out)):
        raise ValueError(f"out shares memory with {name}, which is read while out is written; pass other memory")
    if shape.numel() == 0 or a.shape[-1] == 0:
        if record is not None and (rule := record.refuses_device(a.device.type)):
            raise _unsupported(record, rule, (TORCH,))
        return torch.zeros(shape, dtype=a.dtype, device=a.device) if out is None else out.zero_()
    if 1 in (a.dim(), b.dim()) and (record is None or record.name == TORCH):
        product = torch.empty(shape, dtype=a.dtype, device=a.device) if out is None else out
        _multiply_vectors(a, b, product)
        return product
    plain_a, plain_b = _plain_strides(a), _plain_strides(b)
    plain_out = None if out is None else _plain_strides(out)
    plan = _decide(plain_a, plain_b, plain_out, record, config, shape)
    if key is not None and plain_a is a and plain_b is b and plain_out is out:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        _plans[key] = plan
    product = _run(plan, plain_a, plain_b, plain_out)
    return product if out is None else out


def _multiply_vectors(a: Tensor, b: Tensor, out: Tensor) -> None:
    """With each vector seen as a matrix: torch.matmul would resize ``out`` to do so, and warn."""
    if b.dim() == 1:
        b, out = b.unsqueeze(1), out.unsqueeze(-1)
    if a.dim() == 1:
        a, out = a.unsqueeze(0), out.unsqueeze(-2)
    multiply(a, b, TORCH, None, out)


def _named(backend: str, config: str | None) -> Backend | None:
    """The backend that was asked for, its configuration checked; None for "auto"."""
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a name, found {backend!r}")
    if config is not None and not isinstance(config, str):
        raise TypeError(f"config must be a name, found {config!r}; a Config has .name")
    if backend != "auto":
        record = get(backend)
        record.check_config(config)
        return record
    if config is not None:
        owners = [record.name for record in backends() if config in record.configs]
        hint = f"; {config!r} belongs to {', '.join(owners)}" if owners else ""
        raise ValueError(f'backend="auto" chooses the configuration itself: name a backend to pin {config!r}{hint}')
    return None


def _decide(
    a: Tensor, b: Tensor, out: Tensor | None, record: Backend | None, config: str | None, shape: torch.Size
) -> _Plan:
    only_torch = _rule_of_torch_alone(a, b, out)
    if only_torch is not None:
        if record is not None and record.name != TORCH:
            raise _unsupported(record, only_torch, (TORCH,))
        return _Plan(get(TORCH), None, shape)
    problem = Problem.from_tensors(a, b, out)
    if record is None:
        choice = choose(problem)
        return _Plan(get(choice.backend), choice.config, shape)
    if rule := record.refuses(problem, config):
        raise _unsupported(record, rule, _takers(problem))
    return _Plan(record, record.choose(problem) if config is None else config, shape)


def _rule_of_torch_alone(a: Tensor, b: Tensor, out: Tensor | None) -> str | None:
    """The rule, if only torch.matmul can read these tensors."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != 2:
            return f"{name} must be a matrix (2 dimensions), found shape {tuple(tensor.shape)}; pass single matrices"
        if tensor.is_neg():
            return f"{name} must hold its own values, found a lazily negated view; pass {name}.resolve_neg()"
    if out is not None and out.is_neg():
        return "out must hold its own values, found a lazily negated view; pass other memory"
    return None


def _plain_strides(matrix: Tensor) -> Tensor:
    """``matrix``, seen with the strides of a contiguous one along dimensions of size 1, where any stride is legal."""
    if matrix.dim() != 2:
        return matrix
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    plain = (columns if rows == 1 else row_stride, 1 if columns == 1 else column_stride)
    return matrix if plain == (row_stride, column_stride) else matrix.as_strided((rows, columns), plain)


def _takers(problem: Problem) -> tuple[str, ...]:
    return tuple(record.name for record in backends() if record.refuses(problem) is None)


def _unsupported(record: Backend, rule: str, takers: tuple[str, ...]) -> UnsupportedProblem:
    return UnsupportedProblem(
        f"backend {record.name!r} cannot compute this product: {rule}. Backends that would take it as it is: "
        f"{', '.join(takers)}"
    )


def _through_ops(a: Tensor, b: Tensor, backend: str, config: str | None, out: Tensor | None) -> Tensor:
    if not torch.compiler.is_compiling():  # where the fake kernels check, which may compare symbolic sizes
        arguments.check(a, b, out)
    if out is None:
        return torch.ops.hgemm.mm(a, b, backend, config)
    torch.ops.hgemm.mm_out(a, b, out, backend, config)
    return out
