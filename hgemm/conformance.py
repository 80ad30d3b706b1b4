"""What a backend has to get right: one case after another, each judged by arithmetic that is not the kernel's own.

Operands and ``out`` lie in arenas of NaN; ``out`` starts as NaN. Then

- the product is compared bit for bit where its data make it exact, else with the fp64 bound; where nothing cancels it
  is also held to a few units in the last place, and their mean to nearly none;
- nothing outside of ``out`` may have changed, and no NaN be left in it;
- what the backend's properties declare is tried: a second run, rows without the others, rows in another order, other
  memory, factors that are powers of two;
- a product that the backend refuses must raise UnsupportedProblem and leave ``out`` as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from hgemm.arena import Arena, arena, bits
from hgemm.backends import Backend
from hgemm.cases import Case, cases
from hgemm.data import DATA, NOT_FINITE, values
from hgemm.dispatch import matmul
from hgemm.launches import problem_of
from hgemm.problem import UnsupportedProblem
from hgemm.reference import error_over_bound, mean_ulps, product_fp64, worst_ulps

__all__ = ["DATA", "Case", "Failure", "Outcome", "Report", "cases", "check_backend", "run_case"]

# Where nothing cancels, in units in the last place: one rounding is at most 0.5 off, and 0 in the mean.
MOST_ULPS = 2.0
MOST_MEAN_ULPS = 0.1
_ULPS_FROM = 1000  # elements, from which on a mean says something

# On a CPU Triton's interpreter multiplies tiles by the host's BLAS, which may sum a row by its place in the tile.
_INTERPRETED = ("triton_pointer", "triton", "triton_mma_sync")


@dataclass(frozen=True)
class Outcome:
    """``refused`` is the rule broken, None if the product was computed; ``faults`` is empty if all is well."""

    error_over_bound: float
    refused: str | None
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    case: Case
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All cases of one backend, configuration and dtype. ``cases`` counts those computed, ``refused`` the others."""

    backend: str
    config: str | None
    dtype: torch.dtype
    cases: int
    refused: int
    refusal: str | None  # the first rule broken
    worst: float  # error over bound
    failures: tuple[Failure, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


def check_backend(
    record: Backend,
    device: str,
    *,
    configs: Iterable[str | None] | None = None,
    dtypes: Iterable[torch.dtype] = (torch.float16, torch.bfloat16),
    quick: bool = False,
    only: Case | None = None,
    before: Callable[[str], None] = lambda work: None,
) -> Iterator[Report]:
    """Tries every configuration and dtype on ``device`` and yields a report for each, as it is done.

    ``only`` replaces the usual cases. ``before`` is called with a description before each case.
    """
    for config in record.configs or (None,) if configs is None else configs:
        for dtype in dtypes:
            listed = [only] if only else cases(config, torch.device(device).type, quick)
            worst, computed, refusal = 0.0, 0, None
            failures = []
            for case in listed:
                before(f"{record.name} {config or ''} {case.name}")
                outcome = run_case(record, config, dtype, device, case)
                worst = max(worst, outcome.error_over_bound)
                computed += outcome.refused is None
                refusal = refusal or outcome.refused
                if outcome.faults:
                    failures.append(Failure(case, outcome.faults))
            refused = len(listed) - computed
            yield Report(record.name, config, dtype, computed, refused, refusal, worst, tuple(failures))


def run_case(record: Backend, config: str | None, dtype: torch.dtype, device: str, case: Case) -> Outcome:
    """Computes one case, or makes sure that it is refused as it should be. ``device`` is "cuda" or "cpu"."""
    if device == "cpu":
        return _judged(record, config, dtype, device, case)
    side = torch.cuda.stream(torch.cuda.Stream(case.device)) if case.side_stream else nullcontext()
    current = torch.cuda.current_device()
    with side, torch.cuda.device(current):
        return _judged(record, config, dtype, f"cuda:{case.device}", case)


def _judged(record: Backend, config: str | None, dtype: torch.dtype, device: str, case: Case) -> Outcome:
    values_a, values_b, expected = _values(case, dtype, device)
    in_a, in_b, in_out = case.placements
    a = arena(case.shape(case.M, case.K), dtype, device, in_a, values_a)
    b = arena(case.shape(case.K, case.N), dtype, device, in_b, values_b)
    out = arena(case.shape(case.M, case.N), dtype, device, in_out)
    try:
        refused = record.refuses(problem_of(a.view, b.view, out.view), config)
    except Exception as error:
        return Outcome(torch.inf, None, (f"accepts() raised {type(error).__name__}: {error}",))
    try:
        matmul(a.view, b.view, backend=record.name, config=config, out=out.view)
    except UnsupportedProblem as error:
        faults = [f"raised {error}, though accepts() takes this product"] if refused is None else []
        if out.changed():
            faults.append("raised an error and wrote into out")
        return Outcome(0.0, refused or str(error), tuple(faults))
    except (Exception, SystemExit) as error:
        return Outcome(torch.inf, None, (f"raised {type(error).__name__}: {error}",))
    if refused is not None:
        return Outcome(0.0, refused, ("did not raise, though accepts() refuses this product",))
    matrices = list(zip(_each(a.view), _each(b.view), _each(out.view), strict=True))
    rounded = not record.properties.exact_integers
    worst = max(error_over_bound(*matrix, partial_sums_rounded=rounded) for matrix in matrices)
    faults = [*_memory_faults(a, b, out, case.data not in NOT_FINITE)]
    if worst > 1:
        faults.append(f"error is {worst:.3g} times its bound")
    if record.properties.exact_integers:
        if expected is not None:
            faults += _exactness_faults(case, out.view, expected, values_b)
        if case.data == "positive":
            faults += _tightness_faults(matrices)
    faults += _property_faults(record, config, case, a, b, out)
    return Outcome(worst, None, tuple(faults))


def _values(case: Case, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """``a``, ``b`` and, where it is known bit for bit, their product; other values for each matrix of a batch."""
    found = [values(case.data, case.M, case.N, case.K, dtype, device, seed) for seed in range(max(1, case.batch))]
    if not case.batch:
        return found[0]
    a = torch.stack([found[0 if case.shared else i][0] for i in range(case.batch)])
    b = torch.stack([matrices[1] for matrices in found])
    return a, b, None if found[0][2] is None else product_fp64(a, b).to(dtype)


def _each(x: Tensor) -> Iterable[Tensor]:
    """The matrices of a batch, or the one."""
    return x.unbind() if x.dim() > 2 else (x,)


def _memory_faults(a: Arena, b: Arena, out: Arena, finite: bool) -> Iterator[str]:
    for name, operand in (("a", a), ("b", b)):
        if changed := operand.changed():
            yield f"changed {changed} elements of the input {name} or around it"
    if trespassed := out.trespassed():
        yield f"wrote {trespassed} elements outside of out"
    if finite and (poison := int(out.view.isnan().sum())):
        yield f"left or produced {poison} NaN in out"


def _tightness_faults(matrices: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Iterator[str]:
    for a, b, c in matrices:
        if (worst := worst_ulps(a, b, c)) > MOST_ULPS:
            yield f"off by {worst:.3g} units in the last place, more than {MOST_ULPS:g}, where nothing cancels"
        elif c.numel() >= _ULPS_FROM and abs(mean := mean_ulps(a, b, c)) > MOST_MEAN_ULPS:
            yield f"off by {mean:+.3g} units in the last place in the mean: one rounding to nearest has no bias"
        else:
            continue
        return


def _exactness_faults(case: Case, out: Tensor, expected: Tensor, b: Tensor) -> Iterator[str]:
    differ = out != expected
    if case.data == "zeros" and out.dtype == torch.float16:
        # The sign of a product that rounds to zero is its own; that of a sum of zeros may be either.
        differ[..., ::2, :] |= (bits(out) != bits(expected))[..., ::2, :]
    wrong = differ.nonzero()
    if not len(wrong):
        return
    *batch, _, column = map(int, wrong[0])
    lowest, highest = wrong.amin(0).tolist()[-2:], wrong.amax(0).tolist()[-2:]
    place = ", ".join(map(str, wrong[0].tolist()))
    found, right = float(out[tuple(wrong[0])]), float(expected[tuple(wrong[0])])
    text = (
        f"{len(wrong)} of {out.numel()} elements wrong, all in rows {lowest[0]} to {highest[0]}, "
        f"columns {lowest[1]} to {highest[1]}; out[{place}] is {found:g}, should be {right:g}"
    )
    matrix = b[batch[0]] if batch else b
    if case.data == "one-hot" and len(sources := (matrix[:, column] == found).nonzero()):
        text += f", which is what b[{', '.join(map(str, [*batch, int(sources[0])]))}, {column}] holds"
    yield text


def _property_faults(record: Backend, config: str | None, case: Case, a: Arena, b: Arena, out: Arena) -> Iterator[str]:
    properties, rows = record.properties_of(config), (case.M + 1) // 2
    try:
        if properties.deterministic and not _same(record, config, case, a.view, b.view, out.view):
            yield "declared deterministic, but a second run gave other bits"
        if not properties.row_invariant:
            return
        if not _same(record, config, case, a.view[..., :rows, :], b.view, out.view[..., :rows, :]):
            yield f"declared row-invariant, but the first {rows} rows alone gave other bits"
        if case.data == "normal":
            yield from _relation_faults(record, config, case, a.view, b.view, out.view)
    except (Exception, SystemExit) as error:
        yield f"a further run raised {type(error).__name__}: {error}"


def _relation_faults(
    record: Backend, config: str | None, case: Case, a: Tensor, b: Tensor, out: Tensor
) -> Iterator[str]:
    """Products that have the same bits if each row is summed in one order, whatever stands around it. Those that the
    backend refuses are left out: what they are made of may lie in another way in memory."""

    def differs(left: Tensor, right: Tensor, expected: Tensor) -> bool:
        try:
            return not _same(record, config, case, left, right, expected)
        except UnsupportedProblem:
            return False

    if a.is_cuda or record.name not in _INTERPRETED:
        if differs(a[..., -1:, :], b, out[..., -1:, :]):
            yield "declared row-invariant, but the last row alone gave other bits"
        turned = a.roll(case.M // 3 + 1, -2)
        if differs(_like(turned, case.layout[0]), b, out.roll(case.M // 3 + 1, -2)):
            yield "declared row-invariant, but the rows in another order gave other bits"
    if differs(_like(a, case.layout[0]), _like(b, case.layout[1]), out):
        yield "equal operands elsewhere in memory gave other bits"
    normal = (out.abs() > torch.finfo(out.dtype).tiny) & (out.abs() < torch.finfo(out.dtype).max / 4)
    scaled = torch.where(normal, 2 * out, torch.nan)
    if differs(2 * _like(a, case.layout[0]), b, scaled):
        yield "twice an operand did not give twice the product, bit for bit"


def _same(record: Backend, config: str | None, case: Case, a: Tensor, b: Tensor, expected: Tensor) -> bool:
    """Whether the product has the bits of ``expected``, wherever that is a number."""
    fresh = arena(tuple(expected.shape), expected.dtype, expected.device, case.placements[2])
    matmul(a, b, backend=record.name, config=config, out=fresh.view)
    # One NaN is as good as another; in a product without any, NaN stands for what is not compared.
    free = expected.isnan() & (fresh.view.isnan() | (case.data not in NOT_FINITE))
    return bool((free | (bits(fresh.view) == bits(expected))).all())


def _like(x: Tensor, letter: str) -> Tensor:
    """The same elements without gaps, stored as the layout's letter says."""
    return x.mT.contiguous().mT if letter == "t" else x.contiguous()
