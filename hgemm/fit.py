"""``python -m hgemm.fit``: fits the cost model to half of what was measured and judges its choices on the other half.

    python -m hgemm.fit [FILES...]             fits, writes hgemm/cost.json, and judges
    python -m hgemm.fit --check [FILES...]     judges the committed fit alone
    python -m hgemm.fit --predict              what others published for sm_120, beside what the fit predicts

A case is judged by its regret: how much longer than the quickest of all that were timed there the one takes that the
model would have chosen of them. Of squares and of other shapes every second is fitted and the others are judged, so
that the model has seen none of the shapes that it is judged by.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hgemm import cost, published
from hgemm.bench.results import ResultsError
from hgemm.cost import Fit, Known, Size, Traits
from hgemm.devices import Rates
from hgemm.program import Parser, end_with
from hgemm.timings import Case, Timing, load, split

SCHEMA = "hgemm-cost"
PATH = Path(__file__).parent / "cost.json"

MEDIAN_REGRET, TAIL_REGRET = 0.01, 0.07  # the most that the judged half may show, at the median and at 95%

# One shape does not tell which of the numbers is to blame; what has fewer is taken to be like what has more.
FEWEST_SHAPES = 2

# Each doubling of a number away from its family's costs as much as an error of 2% in one measurement.
PRIOR = 0.02**2 / math.log(2) ** 2
# A case that takes so much longer or less, in logarithms, does so for a reason that the model does not know.
OUTLIER = 0.08
STEPS = (1.6, 1.25, 1.1, 1.04, 1.015)  # of the search, factors
LOWEST = Traits(pace=0.5, wait=1.0, tile=10.0, reach=0.05, launch=0.5, columns=0.7)
HIGHEST = Traits(pace=20.0, wait=20_000.0, tile=100_000.0, reach=1.0, launch=50.0, columns=1.5)


@dataclass(frozen=True)
class Regret:
    """Of the cases in which several of a family were timed, as fractions."""

    cases: int
    median: float
    tail: float
    worst: float
    worst_case: str

    @property
    def passes(self) -> bool:
        return self.median <= MEDIAN_REGRET and self.tail <= TAIL_REGRET


def fit(cases: Iterable[Case], device: Rates) -> Fit:
    """Traits of every kernel that was timed for ``FEWEST_SHAPES``: first one set for all of a family that multiply
    alike, then one for each kernel, drawn to its family's the more the fewer timings there are."""
    families: dict[tuple[str, str], list[Timing]] = {}
    for timing in (timing for case in cases for timing in _weighted(case.timings)):
        kernel = timing.kernel
        alike = kernel.backend, cost.instruction(kernel.backend, kernel.config, device.capability)
        families.setdefault(alike, []).append(timing)
    traits = {}
    for members in families.values():
        shared = _search(members, device, Traits())
        for kernel in dict.fromkeys(timing.kernel for timing in members):
            own = [timing for timing in members if timing.kernel == kernel]
            if len({_shape(timing.size) for timing in own}) >= FEWEST_SHAPES:
                traits[kernel.name] = _search(own, device, shared)
    return Fit(device.title, device.capability, traits)


def _weighted(timings: Sequence[Timing]) -> list[Timing]:
    """How slow exactly a kernel is that takes several times as long as its family's quickest matters to no choice."""
    best: dict[str, float] = {}
    for timing in timings:
        best[timing.kernel.backend] = min(timing.us, best.get(timing.kernel.backend, math.inf))
    return [replace(timing, weight=(best[timing.kernel.backend] / timing.us) ** 2) for timing in timings]


def _search(timings: Sequence[Timing], device: Rates, prior: Traits) -> Traits:
    """The traits with the least squared error of the logarithm of time, and distance from the prior's: one after the
    other is changed as long as that helps, in ever smaller steps."""

    def loss(traits: Traits) -> float:
        errors = (
            t.weight * _error(math.log(cost.predict(t.kernel, t.size, device, Known(traits)).seconds * 1e6 / t.us))
            for t in timings
        )
        moved = (math.log(one / other) ** 2 for one, other in zip(_values(traits), _values(prior), strict=True))
        return sum(errors) + PRIOR * sum(moved)

    best, least = prior, loss(prior)
    for factor in STEPS:
        improved = True
        while improved:
            improved = False
            for field in fields(Traits):
                name = field.name
                for change in (factor, 1 / factor):
                    value = getattr(best, name) * change
                    if not getattr(LOWEST, name) <= value <= getattr(HIGHEST, name):
                        continue
                    candidate = replace(best, **{name: value})
                    if (found := loss(candidate)) < least - 1e-9:
                        best, least, improved = candidate, found, True
    return best


def _error(log: float) -> float:
    """The square of a small error; of one beyond ``OUTLIER`` only as much more as it is larger."""
    size = abs(log)
    return size * size if size <= OUTLIER else OUTLIER * (2 * size - OUTLIER)


def _values(traits: Traits) -> tuple[float, ...]:
    return tuple(asdict(traits).values())


def judge(cases: Iterable[Case], device: Rates, found: Fit) -> dict[str, Regret]:
    """Regret by family, and "auto" for the choice among all of them. Where only one was timed nothing can be chosen.
    Kernels that were not fitted are left out: a file that times defaults alone has them where they were once chosen."""
    regrets: dict[str, list[tuple[float, str]]] = {}
    for case in cases:
        known = [timing for timing in case.timings if timing.kernel.name in found.traits]
        groups: dict[str, list[Timing]] = {"auto": known}
        for timing in known:
            groups.setdefault(timing.kernel.backend, []).append(timing)
        for name, timings in groups.items():
            if len(timings) < 2:
                continue
            times = {timing.kernel: timing.us for timing in timings}
            chosen = cost.rank(times, case.size, device, found)[0].kernel
            batch = f"{case.size.batch}x" if case.size.batch > 1 else ""
            where = f"{batch}{case.size.M}x{case.size.N}x{case.size.K} {case.dtype}: {chosen.name}"
            regrets.setdefault(name, []).append((times[chosen] / min(times.values()) - 1, where))
    return {name: _summary(found) for name, found in sorted(regrets.items())}


def _summary(regrets: list[tuple[float, str]]) -> Regret:
    ordered = sorted(regrets)
    values = [regret for regret, _ in ordered]
    tail = values[math.ceil(0.95 * len(values)) - 1]
    return Regret(len(values), statistics.median(values), tail, *ordered[-1])


def document(found: Fit, sources: Sequence[dict[str, str]]) -> dict[str, Any]:
    """What cost.json holds: the fit, and the measurements that half of it was made of."""
    dated = {"schema": SCHEMA, "fitted": max(source["measured"] for source in sources)[:10], "sources": list(sources)}
    return dated | cost.to_document(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if the judged half regrets too much, or 2 if the files cannot be used."""
    parser = Parser(prog="python -m hgemm.fit", description="Fits the cost model, and judges what it would choose.")
    parser.add_argument("files", nargs="*", type=Path, help="results of python -m hgemm.bench (default: the package's)")
    parser.add_argument("--check", action="store_true", help="judge the committed fit, write nothing")
    parser.add_argument("--predict", action="store_true", help="print published figures of sm_120 and predictions")
    parser.add_argument("--json", action="store_true", help="print the regrets, or predictions, as JSON")
    options = parser.parse_args(arguments)
    if options.predict:
        _print_predictions(options.json)
        return 0
    try:
        cases, device, sources = load(options.files)
    except ResultsError as error:
        print(f"hgemm.fit: {error}", file=sys.stderr)
        return 2
    fitted, judged = split(cases)
    if options.check:
        found = cost.committed()
    else:
        text = document(fit(fitted, device), sources)
        PATH.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
        found = cost.from_document(text)
    regrets = judge(judged, device, found)
    if options.json:
        print(json.dumps({name: asdict(regret) for name, regret in regrets.items()}, indent=1))
    else:
        _print_regrets(regrets, device, len(judged))
    return 0 if all(regret.passes for regret in regrets.values()) else 1


def _print_regrets(regrets: Mapping[str, Regret], device: Rates, cases: int) -> None:
    print(f"{device.title}, {cases} cases that the fit has not seen; regret of the choice among what was timed:")
    for name, regret in regrets.items():
        verdict = "" if regret.passes else f"  beyond {MEDIAN_REGRET:.0%} and {TAIL_REGRET:.0%}"
        print(
            f"  {name:16} {regret.cases:3} cases: median {regret.median:6.2%}, 95% {regret.tail:6.2%}, "
            f"worst {regret.worst:6.2%} at {regret.worst_case}{verdict}"
        )


def _print_predictions(as_json: bool) -> None:
    found = [
        {
            "card": figure.card,
            "remark": figure.remark,
            "size": asdict(figure.size),
            "published": figure.tflops,
            "kernel": prediction.kernel.name,
            "predicted": round(tflops, 1),
            "reason": str(prediction),
        }
        for figure, prediction, tflops in published.predictions()
    ]
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for one, figure in zip(found, published.FIGURES, strict=True):
        where = f"{one['card']}, {one['remark']}, {figure.size.M}^3 {figure.size.layout}: {figure.what}"
        print(f"{where}: published {one['published']:.1f}, predicted {one['predicted']:.1f} TFLOPS")
        print(f"    {one['kernel']}: {one['reason']}")


def _shape(size: Size) -> tuple[int, int, int, int]:
    return size.batch, size.N, size.K, size.M


if __name__ == "__main__":
    end_with(main)
