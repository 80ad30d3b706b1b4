"""What a backend has to get right: one case after another, each judged by arithmetic that is not the kernel's own.

A case multiplies one shape with one kind of data. Operands and ``out`` lie in arenas of NaN; ``out`` starts as NaN.
Then

- the product is compared bit for bit where integers make it exact, else with the fp64 bound;
- nothing outside of ``out`` may have changed, and no NaN be left in it;
- what the backend's properties declare is tried: a second run, a row without the others;
- a product that the backend refuses must raise UnsupportedProblem and leave ``out`` as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hgemm.arena import Arena, arena, bits
from hgemm.backends import Backend
from hgemm.config import Config
from hgemm.dispatch import matmul
from hgemm.problem import Problem, UnsupportedProblem
from hgemm.reference import EXACT_LIMIT, error_over_bound, exact_integers

DATA = ("integers", "signs", "one-hot", "normal", "positive")

# The tile that shapes are built around for a backend whose configurations do not say one.
_USUAL_TILE = Config(128, 128, 32, 2, 64, 32)


@dataclass(frozen=True)
class Case:
    """One product to try; ``name`` is what ``python -m hgemm.check --case`` takes."""

    M: int
    N: int
    K: int
    data: str
    strided: bool = True  # rows lie apart in memory; False: without gaps

    @property
    def name(self) -> str:
        return f"{self.M}x{self.N}x{self.K}:{self.data}" + ("" if self.strided else ":contiguous")

    @classmethod
    def parse(cls, name: str) -> Case:
        """Raises ValueError if ``name`` is not MxNxK:data or MxNxK:data:contiguous."""
        shape, _, rest = name.partition(":")
        data, _, layout = rest.partition(":")
        sizes = shape.split("x")
        if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
            raise ValueError(f"{name!r} is no case: {shape!r} should read MxNxK, three sizes of at least 1")
        if data not in DATA:
            raise ValueError(f"{name!r} is no case: {data!r} should be one of {', '.join(DATA)}")
        if layout not in ("", "contiguous"):
            raise ValueError(f"{name!r} is no case: {layout!r} should be left out or read 'contiguous'")
        M, N, K = map(int, sizes)
        return cls(M, N, K, data, not layout)


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


def cases(config: str | None, device_type: str, quick: bool) -> list[Case]:
    """Shapes around the tile of ``config``: one row, ragged edges, K below and around a tile and the ring of stages.

    Few and small if ``quick``; with many tiles only on a GPU, because elsewhere kernels are interpreted.
    """
    try:
        tile = Config.parse(config) if config else _USUAL_TILE
    except ValueError:  # a registered backend names its configurations as it likes
        tile = _USUAL_TILE
    M, N, K, ring = tile.tile_m, tile.tile_n, tile.tile_k, tile.tile_k * tile.stages
    less = max(8, N - 8)
    if quick:
        return [
            Case(1, 8, 8, "normal"),
            Case(5, 13, 17, "integers"),
            Case(7, less, K + 8, "one-hot"),
            Case(M - 1, N, K, "signs", strided=False),
            Case(M + 1, N + 8, ring + 8, "integers"),
            Case(M + 1, N + 8, ring + 8, "normal"),
        ]
    shapes = [
        (1, 8, 8),
        (3, 1, 1),
        (5, 13, 17),
        (1, N, K + 8),
        (7, less, max(8, K - 8)),
        (M - 1, N, ring - 8),
        (M, less, ring),
        (M, N, K),
        (M + 1, N + 8, ring + 8),
        (2 * M + 1, 3 * N - 8, 2 * ring + 8),
    ]
    if device_type == "cuda":
        shapes += [(M - 1, N + 8, 4104), (17 * M + 3, 9 * N + 8, ring - 8), (2 * M + 7, 33 * N + 8, K)]
    listed = [Case(*shape, data) for shape in shapes for data in DATA]
    listed += [Case(*shape, "integers", strided=False) for shape in shapes[:9]]
    return sorted(listed, key=lambda case: case.M * case.N * case.K)


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
    """Computes one case, or makes sure that it is refused as it should be."""
    values_a, values_b, expected = _values(case, dtype, device)
    a = arena(case.M, case.K, dtype, device, case.strided, values_a)
    b = arena(case.K, case.N, dtype, device, case.strided, values_b)
    out = arena(case.M, case.N, dtype, device, case.strided)
    refused = record.refuses(Problem.from_tensors(a.view, b.view, out.view), config)
    try:
        matmul(a.view, b.view, backend=record.name, config=config, out=out.view)
    except UnsupportedProblem as error:
        faults = [f"raised {error}, though accepts() takes this product"] if refused is None else []
        if out.changed():
            faults.append("raised an error and wrote into out")
        return Outcome(0.0, refused or str(error), tuple(faults))
    except Exception as error:
        return Outcome(torch.inf, None, (f"raised {type(error).__name__}: {error}",))
    if refused is not None:
        return Outcome(0.0, refused, ("did not raise, though accepts() refuses this product",))
    worst = error_over_bound(values_a, values_b, out.view)
    faults = [*_memory_faults(a, b, out)]
    if worst > 1:
        faults.append(f"error is {worst:.3g} times its bound")
    if expected is not None and record.properties.exact_integers:
        faults += _exactness_faults(case, out.view, expected, values_b)
    faults += _property_faults(record, config, case, a, b, out)
    return Outcome(worst, None, tuple(faults))


def _values(case: Case, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """``a``, ``b`` and, where it is known bit for bit, their product."""
    M, N, K = case.M, case.N, case.K
    generator = torch.Generator(device).manual_seed(M * 1_000_003 + N * 1_009 + K)
    if case.data in ("integers", "signs"):
        return exact_integers(M, N, K, dtype, device, generator, largest=4 if case.data == "integers" else 1)
    if case.data == "one-hot":
        # Each element of b holds a code of its own place, never 0; row i of a picks row source[i] of b, the last row
        # the last one.
        source = torch.randint(K, (M,), device=device, generator=generator)
        source[-1] = K - 1
        rows = torch.arange(K, device=device).unsqueeze(1)
        codes = (37 * rows + 101 * torch.arange(N, device=device)) % (EXACT_LIMIT[dtype] - 5) + 1
        b = codes.to(dtype)
        a = torch.zeros(M, K, dtype=dtype, device=device).scatter_(1, source.unsqueeze(1), 1.0)
        return a, b, b[source]
    a, b = (torch.randn(shape, device=device, generator=generator).to(dtype) for shape in ((M, K), (K, N)))
    return (a.abs(), b.abs(), None) if case.data == "positive" else (a, b, None)


def _memory_faults(a: Arena, b: Arena, out: Arena) -> Iterator[str]:
    for name, operand in (("a", a), ("b", b)):
        if changed := operand.changed():
            yield f"changed {changed} elements of the input {name} or around it"
    if trespassed := out.trespassed():
        yield f"wrote {trespassed} elements outside of out"
    if poison := int(out.view.isnan().sum()):
        yield f"left or produced {poison} NaN in out"


def _exactness_faults(case: Case, out: Tensor, expected: Tensor, b: Tensor) -> Iterator[str]:
    wrong = (out != expected).nonzero()
    if not len(wrong):
        return
    row, column = map(int, wrong[0])
    (top, left), (bottom, right) = wrong.amin(0).tolist(), wrong.amax(0).tolist()
    found = float(out[row, column])
    text = (
        f"{len(wrong)} of {out.numel()} elements wrong, all in rows {top} to {bottom}, columns {left} to {right}; "
        f"out[{row}, {column}] is {found:g}, should be {float(expected[row, column]):g}"
    )
    if case.data == "one-hot" and len(sources := (b[:, column] == found).nonzero()):
        text += f", which is what b[{int(sources[0])}, {column}] holds"
    yield text


def _property_faults(record: Backend, config: str | None, case: Case, a: Arena, b: Arena, out: Arena) -> Iterator[str]:
    def again(rows: int) -> bool:
        """Whether the first ``rows`` rows, computed without the others, have the bits that they have in ``out``."""
        fresh = arena(rows, case.N, out.view.dtype, out.view.device, case.strided)
        matmul(a.view[:rows], b.view, backend=record.name, config=config, out=fresh.view)
        return torch.equal(bits(fresh.view), bits(out.view[:rows]))

    rows = (case.M + 1) // 2
    try:
        if record.properties.deterministic and not again(case.M):
            yield "declared deterministic, but a second run gave other bits"
        if record.properties.row_invariant and not again(rows):
            yield f"declared row-invariant, but the first {rows} rows alone gave other bits"
    except Exception as error:
        yield f"a further run raised {type(error).__name__}: {error}"
