"""``matmul``: checks the arguments, decides once for each kind of product who computes it, and calls that backend.

A call costs a few microseconds of Python before the backend runs. All that the checks and the decision depend on,
apart from gradients and memory shared between tensors, is read off the tensors into one key; a key seen before goes
straight to its plan. Each attribute of a tensor is read once, and addresses alone are passed on to a backend that needs
no more. Where torch can tell in one call that tensors are like those of a call before, not even the key is made.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from hgemm import arguments, autocast, gradients
from hgemm.backends import TORCH, Backend, Launch, LaunchAt, backends, get, registered
from hgemm.guards import Guard, guard
from hgemm.launches import by_offsets, by_views, describe, problem_of
from hgemm.problem import VECTOR_BYTES, Problem, UnsupportedProblem
from hgemm.select import Choice, choose

# Types whose memory holds their elements. Other subclasses of Tensor (fake, functional, distributed) go by the ops.
_PLAIN = frozenset((Tensor, Parameter))

# What `matmul` asks in every call, without the looks into modules.
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforming = torch._C._are_functorch_transforms_active
_autocasting = torch._C._is_any_autocast_enabled
_tracing = torch._C._get_tracing_state  # None outside of torch.jit.trace, in which sizes are tensors
_grad_enabled = torch.is_grad_enabled
_increment_version = torch._C._increment_version  # torch.autograd.graph's, which also takes single tensors


class _Plan(NamedTuple):
    record: Backend
    config: str | None
    launch: Launch
    launch_at: LaunchAt | None  # the same by address
    shape: torch.Size
    stride: tuple[int, ...]  # without gaps
    nbytes: tuple[int, int, int]  # of a, b and out, from the first element to the end of the last


class _Seen(NamedTuple):
    plan: _Plan
    like: Guard  # whether tensors are like those that the plan was made for
    alignments: tuple[int, ...]  # theirs, as in the key of the plan


_plans: dict[tuple[object, ...], _Plan] = {}
_seen: dict[tuple[object, ...], _Seen | None] = {}  # the first plan of a kind of call; None where nothing can be asked
_PLANS_KEPT = 4096  # a few hundred bytes each


def matmul(
    a: Tensor, b: Tensor, *, backend: str = "auto", config: str | None = None, out: Tensor | None = None
) -> Tensor:
    """The product of ``a`` and ``b`` as torch.matmul defines it: summed in fp32, rounded once to their dtype, to
    nearest even.

    ``a[..., M, K]`` and ``b[..., K, N]`` are fp16 or bf16, of one dtype and on one device, a CUDA device or the CPU.
    Either may be a vector ``[K]``, and batch dimensions broadcast. Strides are free: a transposed, expanded or sliced
    view is multiplied where it lies, never copied. ``backend`` names one of ``hgemm.backends()``, which computes or
    refuses; "auto" takes every product. ``config`` pins one of the named backend's configurations. ``out`` has the
    shape of the product, any strides, and nothing to be read; it receives the product and is returned.

    Gradients of both operands are products by the same backend. Under autocast the operands are cast as those of
    torch.matmul are, which leaves calls with ``out`` alone.

    Raises TypeError (not a dense fp16 or bf16 tensor, dtypes that differ), ValueError (shapes or devices that do not
    fit, an unknown backend or configuration, ``out`` overlapping an input or itself) or UnsupportedProblem (a legal
    product that this backend cannot compute, with the rule and the backends that would take it; ``out`` where a
    tensor requires grad, in grad mode). After an error in the arguments ``out`` is as it was.
    """
    if (
        type(a) in _PLAIN
        and type(b) in _PLAIN
        and (out is None or type(out) in _PLAIN)
        and not _is_compiling()
        and not _dispatch_modes()
        and not _transforming()
        and forward_ad._current_level < 0  # gradients.in_forward_mode(), without the call
    ):
        call: tuple[object, ...] | None
        try:
            # No unpacking, which would make a list first.
            call = (
                backend,
                registered(backend),
                config,
                out is None,
                _grad_enabled(),
                a.shape,
                a.stride(),
                a.dtype,
                b.shape,
                b.stride(),
            )
            seen = _seen.get(call)
        except (TypeError, RuntimeError):
            call = seen = None  # it cannot be read: the checks say what is wrong
        if seen is not None and (product := _again(seen, a, b, out)) is not None:
            return product
        differentiable = a.requires_grad or b.requires_grad or (out is not None and out.requires_grad)
        if (out is not None or not _autocasting()) and _tracing() is None and not (differentiable and _grad_enabled()):
            return multiply(a, b, backend, config, out, call)
    return _through_ops(a, b, backend, config, out)


def explain(a: Tensor, b: Tensor, out: Tensor | None = None) -> Choice:
    """What ``matmul(a, b, out=out)`` would compute with: the backend, its configuration, and the reason. Computes
    nothing. Raises what ``matmul`` raises for these arguments, and ValueError for tensors without memory."""
    if out is None:
        a, b = autocast.cast(a), autocast.cast(b)
    shape = arguments.check(a, b, out)
    if a.device.type == "meta":
        raise ValueError("tensors on the meta device have no memory, which the choice depends on")
    arguments.check_storage(a, b, out)
    if out is not None:
        arguments.check_memory(a, b, out)
    if shape.numel() == 0 or a.shape[-1] == 0:
        return Choice(TORCH, None, "nothing to multiply: an empty product, or zeros where K = 0")
    if name := arguments.lazy(a, b, out):
        return Choice(TORCH, None, f"{name} is lazily negated, or zeros without memory; no kernel knows of either")
    _, problem = describe(a, b, out, shape)
    return choose(problem)


def _again(seen: _Seen, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor | None:
    """The product, if the call is like one before; None if it is another, or has to be looked at closely."""
    if not (seen.like(a, b) if out is None else seen.like(a, b, out)):
        return None
    at_a, at_b, at_out = a.data_ptr(), b.data_ptr(), 0
    if (at_a or -1) % VECTOR_BYTES != seen.alignments[0] or (at_b or -1) % VECTOR_BYTES != seen.alignments[1]:
        return None
    if out is not None:
        at_out = out.data_ptr()
        if (at_out or -1) % VECTOR_BYTES != seen.alignments[2] or _may_share(seen.plan, at_a, at_b, at_out):
            return None
    return _run(seen.plan, a, b, out, at_a, at_b, at_out)


def _remember(call: tuple[object, ...], plan: _Plan, tensors: tuple[Tensor, ...]) -> None:
    if len(_seen) >= _PLANS_KEPT:
        _seen.clear()
    like = guard(*tensors)
    alignments = tuple((tensor.data_ptr() or -1) % VECTOR_BYTES for tensor in tensors)
    _seen[call] = _Seen(plan, like, alignments) if like else None


def multiply(
    a: Tensor,
    b: Tensor,
    backend: str,
    config: str | None,
    out: Tensor | None,
    call: tuple[object, ...] | None = None,
) -> Tensor:
    """``matmul`` of tensors that hold memory; what ``torch.ops.hgemm`` runs on the CPU and on CUDA devices. ``call``:
    under what to remember it."""
    key = plan = None
    at_out = 0
    try:
        at_a, at_b = a.data_ptr(), b.data_ptr()
        of_out = None
        if out is not None:
            at_out = out.data_ptr()
            of_out = (out.shape, out.stride(), out.dtype, out.get_device(), (at_out or -1) % VECTOR_BYTES, out.is_neg())
        if config is None or isinstance(config, str):
            # All that the checks and the plan depend on. The number of a device is read faster than the device; that of
            # the CPU is -1, and a process has one kind of accelerator. Without memory, as on the meta device, a tensor
            # has an odd address, as none with memory has.
            key = (
                backend,
                registered(backend),
                config,
                a.shape,
                a.stride(),
                a.dtype,
                a.get_device(),
                (at_a or -1) % VECTOR_BYTES,
                a.is_neg(),
                b.shape,
                b.stride(),
                b.dtype,
                b.get_device(),
                (at_b or -1) % VECTOR_BYTES,
                b.is_neg(),
                of_out,
            )
            plan = _plans.get(key)
    except (AttributeError, TypeError, RuntimeError):
        key = None  # it cannot be read: the checks say what is wrong
    if plan is None:
        return _multiply_unseen(a, b, backend, config, out, key)
    if out is not None and (
        arguments.locked(out) or (_may_share(plan, at_a, at_b, at_out) and arguments.shared_memory(a, b, out))
    ):
        return _multiply_unseen(a, b, backend, config, out, key)
    if call is not None and call not in _seen and a is not b:
        _remember(call, plan, (a, b) if out is None else (a, b, out))
    return _run(plan, a, b, out, at_a, at_b, at_out)


def _may_share(plan: _Plan, at_a: int, at_b: int, at_out: int) -> bool:
    """Whether ``out`` begins before an input ends and ends after it begins."""
    size_a, size_b, size_out = plan.nbytes
    end = at_out + size_out
    return (at_out < at_a + size_a and at_a < end) or (at_out < at_b + size_b and at_b < end)


def _run(plan: _Plan, a: Tensor, b: Tensor, out: Tensor | None, at_a: int, at_b: int, at_out: int) -> Tensor:
    """Computes by ``plan``, whose key was read off these tensors; the addresses are theirs, ``at_out`` only of an
    ``out``."""
    if out is None:
        target = a.new_empty_strided(plan.shape, plan.stride)  # torch.empty parses more arguments
        at_out = target.data_ptr()
    else:
        target = out
    try:
        if plan.launch_at is None:
            plan.launch(a, b, target)
        else:
            plan.launch_at(at_a, at_b, at_out)
    except RuntimeError as error:
        problem = problem_of(a, b, target)
        if rule := plan.record.refuses(problem, plan.config):
            raise _unsupported(plan.record, rule, _takers(problem)) from error
        raise
    if out is not None:
        _increment_version((out,))  # so that autograd notices a saved tensor being overwritten
    return target


def _multiply_unseen(
    a: Tensor, b: Tensor, backend: str, config: str | None, out: Tensor | None, key: tuple[object, ...] | None
) -> Tensor:
    shape = arguments.check(a, b, out)
    record = _named(backend, config)
    if a.device.type == "meta":
        return _through_ops(a, b, backend, config, out)
    arguments.check_storage(a, b, out)
    if out is not None:
        arguments.check_memory(a, b, out)
    if shape.numel() == 0 or a.shape[-1] == 0:
        if record is not None and (rule := record.refuses_device(a.device.type)):
            raise _unsupported(record, rule, (TORCH,))
        return torch.zeros(shape, dtype=a.dtype, device=a.device) if out is None else out.zero_()
    if name := arguments.lazy(a, b, out):
        return _multiply_lazy(a, b, record, out, name)
    folding, problem = describe(a, b, out, shape)
    if record is None:
        choice = choose(problem)
        record, config = get(choice.backend), choice.config
    elif rule := record.refuses(problem, config):
        raise _unsupported(record, rule, _takers(problem))
    elif config is None:
        config = record.choose(problem)
    nbytes = arguments.nbytes(a), arguments.nbytes(b), 0 if out is None else arguments.nbytes(out)
    launch, launch_at = record.launcher(problem, config), record.launcher_at(problem, config)
    if folding is not None:
        launch, launch_at = by_views(launch, folding), launch_at and by_offsets(launch_at, folding)
    stride = torch.empty(shape, device="meta").stride()
    plan = _Plan(record, config, launch, launch_at, shape, stride, nbytes)
    if key is not None:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        _plans[key] = plan
    return _run(plan, a, b, out, a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr())


def _multiply_lazy(a: Tensor, b: Tensor, record: Backend | None, out: Tensor | None, name: str) -> Tensor:
    """Torch knows of such tensors, and makes a copy where it needs one. No kernel does."""
    if record is not None and record.name != TORCH:
        raise _unsupported(record, arguments.lazy_rule(name), (TORCH,))
    product = torch.matmul(a, b)
    return product if out is None else out.copy_(product)


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


def _takers(problem: Problem) -> tuple[str, ...]:
    return tuple(record.name for record in backends() if _takes(record, problem))


def _takes(record: Backend, problem: Problem) -> bool:
    """A rule of a user's own that fails is no offer, nor a reason to lose what another backend has to say."""
    try:
        return record.refuses(problem) is None
    except Exception:
        return False


def _unsupported(record: Backend, rule: str, takers: tuple[str, ...]) -> UnsupportedProblem:
    return UnsupportedProblem(
        f"backend {record.name!r} cannot compute this product: {rule}. Backends that would take it as it is: "
        f"{', '.join(takers)}"
    )


def _through_ops(a: Tensor, b: Tensor, backend: str, config: str | None, out: Tensor | None) -> Tensor:
    if not torch.compiler.is_compiling() and _tracing() is None:  # else the ops' own kernels check
        if out is None:
            a, b = autocast.cast(a), autocast.cast(b)
        arguments.check(a, b, out)
    if out is None:
        return gradients.product(a, b, backend, config)
    torch.ops.hgemm.mm_out(a, b, out, backend, config)
    return out
