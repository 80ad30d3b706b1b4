"""What ``matmul`` demands of its arguments, whichever backend computes: types, dtypes, devices, shapes, memory.

Each check raises one exception that says what was found and what to do instead. Nothing here reads or writes elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hgemm.backends import DEVICE_TYPES
from hgemm.problem import DTYPES, UnsupportedProblem


def check(a: Tensor, b: Tensor, out: Tensor | None) -> torch.Size:
    """The shape of the product. Raises TypeError, ValueError or UnsupportedProblem if there can be none.

    Reads no address, so fake tensors can be checked.
    """
    named = [("a", a), ("b", b)] if out is None else [("a", a), ("b", b), ("out", out)]
    for name, tensor in named:
        _check_kind(name, tensor)
    if a.dtype != b.dtype:
        raise TypeError(f"a and b must have one dtype, found {a.dtype} and {b.dtype}; convert one with .to(dtype)")
    if a.device != b.device:
        raise ValueError(f"a and b must be on one device, found {a.device} and {b.device}; move one with .to(device)")
    if out is not None and out.dtype != a.dtype:
        raise TypeError(f"out must have the dtype of a and b, {a.dtype}, found {out.dtype}")
    if out is not None and out.device != a.device:
        raise ValueError(f"out must be on the device of a and b, {a.device}, found {out.device}")
    if a.device.type not in (*DEVICE_TYPES, "meta"):
        raise ValueError(f"tensors must be on a CUDA device or on the CPU, found {a.device}")
    if out is not None and torch.is_grad_enabled():
        for name, tensor in named:
            check_gradient(name, tensor)
    shape = product_shape(a.shape, b.shape)
    if out is not None:
        torch._check_value(
            out.shape == shape,
            lambda: f"out must have the shape of the product, {tuple(shape)}, found {tuple(out.shape)}",
        )
    return shape


def check_storage(a: Tensor, b: Tensor, out: Tensor | None) -> None:
    """Raises ValueError for elements without memory. As operands the zeros that automatic differentiation makes without
    memory are legal: torch knows their values."""
    for name, tensor in (("a", a), ("b", b), ("out", out)):
        if tensor is None or tensor.data_ptr() or not tensor.numel():
            continue
        if tensor is out or not tensor._is_zerotensor():
            raise ValueError(
                f"{name} has no memory for its {tensor.numel():,} elements (a storage resized to 0, or lazy zeros); "
                "pass a tensor that has"
            )


def lazy(a: Tensor, b: Tensor, out: Tensor | None) -> str | None:
    """The name of a tensor whose memory does not hold its elements: it holds their negatives, as for the imaginary part
    of a conjugate, or there is none, as for the zeros that automatic differentiation makes."""
    for name, tensor in (("a", a), ("b", b), ("out", out)):
        if tensor is not None and (tensor.is_neg() or not tensor.data_ptr()):
            return name
    return None


def lazy_rule(name: str) -> str:
    """What every kernel demands of a tensor that `lazy` names, and the way out."""
    way_out = "pass other memory" if name == "out" else f"pass {name}.resolve_neg().clone()"
    return f"{name} must hold its own values, found a lazily negated view, or zeros without memory; {way_out}"


def check_memory(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Raises ValueError if ``out`` may not be written, or writing an element of it would change an input or another
    element of ``out``."""
    if locked(out):
        raise ValueError(
            "out was made in inference mode, and torch has such tensors written there alone; call under "
            "torch.inference_mode(), or pass out.clone()"
        )
    if name := shared_memory(a, b, out):
        raise ValueError(f"out shares memory with {name}, which is read while out is written; pass other memory")
    if overlaps_itself(out):
        raise ValueError(
            f"two elements of out are the same memory: strides {out.stride()} for shape {tuple(out.shape)}; pass "
            "memory with a place for each element"
        )


def locked(out: Tensor) -> bool:
    """Whether ``out`` is an inference tensor outside of inference mode: autograd is told of no write to it."""
    return out.is_inference() and not torch.is_inference_mode_enabled()


def shared_memory(a: Tensor, b: Tensor, out: Tensor) -> str | None:
    """The name of the input that has an element in the memory of ``out``, or None."""
    extent = _extent(out)
    return "a" if _overlap(a, _extent(a), out, extent) else "b" if _overlap(b, _extent(b), out, extent) else None


def check_gradient(name: str, tensor: Tensor) -> None:
    """Raises UnsupportedProblem if a gradient would be lost in ``out``. For use in grad mode."""
    if tensor.requires_grad:
        raise UnsupportedProblem(
            f"{name} requires grad, and a product written into out has no derivative; leave out out, call under "
            f"torch.no_grad(), or pass {name}.detach()"
        )


def product_shape(a: torch.Size, b: torch.Size) -> torch.Size:
    """The shape of ``torch.matmul`` of tensors of shapes ``a`` and ``b``. Raises ValueError, naming both, if none."""
    if not a or not b:
        raise ValueError(f"a and b must have at least one dimension, found shapes {tuple(a)} and {tuple(b)}")
    rows, K = a[-2:-1], a[-1]
    columns, terms = b[-1:] if len(b) > 1 else b[:0], b[-2:][0]
    torch._check_value(
        terms == K,
        lambda: f"the columns of a must be as many as the rows of b, found shapes {tuple(a)} and {tuple(b)}",
    )
    try:
        batch = torch.broadcast_shapes(a[:-2], b[:-2])
    except RuntimeError:
        raise ValueError(f"the batch dimensions must broadcast, found shapes {tuple(a)} and {tuple(b)}") from None
    return torch.Size((*batch, *rows, *columns))


def overlap(x: Tensor, y: Tensor) -> bool:
    """Whether some element of ``x`` and some element of ``y`` are the same memory. Exact for any strides."""
    return _overlap(x, _extent(x), y, _extent(y))


def _overlap(x: Tensor, extent_x: tuple[int, int], y: Tensor, extent_y: tuple[int, int]) -> bool:
    (start_x, end_x), (start_y, end_y) = extent_x, extent_y
    if end_x <= start_y or end_y <= start_x:
        return False
    if x.is_contiguous() and y.is_contiguous():
        return True
    size = x.element_size()
    if _apart_on_a_grid(x, y, (start_y - start_x) // size):
        return False
    # Interleaved in another way: mark the elements of one, look for marks with the other.
    start = min(start_x, start_y)
    marks = torch.zeros((max(end_x, end_y) - start) // size, dtype=torch.bool, device="cpu")
    marks.as_strided(x.shape, x.stride(), (start_x - start) // size).fill_(True)
    return bool(marks.as_strided(y.shape, y.stride(), (start_y - start) // size).any())


def overlaps_itself(x: Tensor) -> bool:
    """Whether two elements of ``x`` are the same memory. Exact for any strides."""
    if x.numel() < 2 or x.is_contiguous():
        return False
    dimensions = sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1)
    span = 0  # from the first element to the last, over the dimensions so far
    for stride, size in dimensions:
        if stride == 0:
            return True
        if stride <= span:
            break
        span += (size - 1) * stride
    else:
        return False
    span = sum((size - 1) * stride for stride, size in dimensions)
    marks = torch.zeros(span + 1, dtype=torch.bool, device="cpu")
    marks.as_strided(x.shape, x.stride()).fill_(True)
    return int(marks.sum()) < x.numel()


def _apart_on_a_grid(x: Tensor, y: Tensor, distance: int) -> bool:
    """Whether two tensors are seen at once to lie in different places of one array: other columns of the same rows,
    other heads of the same tokens. ``distance``: from the first element of ``x`` to that of ``y``, in elements.

    An element lies at a sum of indices times strides. Where all that the shorter strides add up to stays below the next
    longer one, that sum is written in one way, as a number is in digits: elements meet only if all their indices do.
    """
    if distance < 0:
        return _apart_on_a_grid(y, x, -distance)
    sizes_x, sizes_y = _sizes_by_stride(x), _sizes_by_stride(y)
    if sizes_x is None or sizes_y is None:
        return False
    strides = sorted({*sizes_x, *sizes_y}, reverse=True)
    firsts = []  # the indices in x's terms of the first element of y
    for stride in strides:
        first, distance = divmod(distance, stride)
        firsts.append(first)
    apart = farthest = distance
    for stride, first in zip(reversed(strides), reversed(firsts), strict=True):
        if farthest >= stride:
            return False
        size_x, size_y = sizes_x.get(stride, 1), sizes_y.get(stride, 1)
        apart = apart or first >= size_x
        farthest += (max(size_x, first + size_y) - 1) * stride
    return bool(apart)


def _sizes_by_stride(x: Tensor) -> dict[int, int] | None:
    """Those of the dimensions along which elements differ; None if two of these have one stride."""
    steps = [(stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if stride and size > 1]
    sizes = dict(steps)
    return sizes if len(sizes) == len(steps) else None


def nbytes(x: Tensor) -> int:
    """From the first element to the end of the last one, in bytes; 0 if there are no elements."""
    if x.is_contiguous():
        return x.numel() * x.element_size()
    last = 0
    for size, stride in zip(x.shape, x.stride(), strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    return (last + 1) * x.element_size()


def _extent(x: Tensor) -> tuple[int, int]:
    """Addresses of the first element and of the end of the last one; equal if there are no elements."""
    return x.data_ptr(), x.data_ptr() + nbytes(x)


def _check_kind(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}".removeprefix("builtins.")
        raise TypeError(f"{name} must be a torch.Tensor, found {kind}")
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor; hgemm multiplies dense matrices: pass its parts one by one")
    if tensor.is_quantized:
        raise TypeError(f"{name} is quantised ({tensor.dtype}); pass {name}.dequantize().to(torch.float16)")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is sparse or opaque ({tensor.layout}); hgemm multiplies dense matrices: to_dense()")
    if tensor.dtype.is_complex:
        raise TypeError(f"{name} is complex ({tensor.dtype}); multiply real and imaginary parts one by one")
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} must be float16 or bfloat16, found {tensor.dtype}; convert it with .to(torch.float16)")
