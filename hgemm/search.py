"""``python -m hgemm.check --search SECONDS``: hypothesis looks for a product that a backend gets wrong, and makes it
small.

It draws sizes near the edges of the configuration's tile and ring, layouts, gaps, steps, offsets, batches and data, and
on CUDA the stream and the device; each is judged as a case of the conformance suite is. Needs the package hypothesis
(of the extra ``test``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hgemm.backends import Backend
from hgemm.cases import ROW_GAP, Case, tile_of
from hgemm.conformance import Failure, Outcome, Report, run_case
from hgemm.data import DATA
from hgemm.problem import LAYOUTS

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_EXAMPLES = 50  # between two looks at the clock that may end the search
_SHRINK_SECONDS = 30.0  # beyond the time asked for, to make what was found smaller


def missing() -> str | None:
    """Why nothing can be searched; None if hypothesis is there."""
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        return "--search needs hypothesis, which is not installed; pip install hypothesis, or 'hgemm[test]'"
    return None


def search(
    record: Backend,
    config: str | None,
    dtype: torch.dtype,
    device: str,
    seconds: float,
    before: Callable[[str], None] = lambda work: None,
) -> Report:
    """Tries cases for ``seconds`` and reports the smallest that fails, if one does."""
    from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

    end = time.monotonic() + seconds
    tried: dict[Case, Outcome] = {}
    failed: list[tuple[Case, Outcome]] = []

    def attempt(case: Case) -> None:
        if case not in tried:
            if time.monotonic() > (end + _SHRINK_SECONDS if failed else end):
                return
            before(f"{record.name} {config or ''} {case.name}")
            tried[case] = run_case(record, config, dtype, device, case)
        if tried[case].faults:
            failed.append((case, tried[case]))
            raise AssertionError(case.name)

    repeat = 0
    while not failed and time.monotonic() < end:
        run = settings(
            max_examples=_EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
        )(seed(repeat)(given(_cases(config, device))(attempt)))
        repeat += 1
        try:
            run()
        except Exception:
            if not failed:
                raise
    computed = [outcome for outcome in tried.values() if outcome.refused is None]
    refusals = [outcome.refused for outcome in tried.values() if outcome.refused is not None]
    smallest = min(failed, key=lambda found: found[0].work, default=None)
    return Report(
        record.name,
        config,
        dtype,
        len(computed),
        len(refusals),
        refusals[0] if refusals else None,
        max((outcome.error_over_bound for outcome in computed), default=0.0),
        (Failure(smallest[0], smallest[1].faults),) if smallest else (),
    )


def _cases(config: str | None, device: str) -> SearchStrategy[Case]:
    from hypothesis import strategies as st

    tile = tile_of(config)
    ring = tile.tile_k * tile.stages
    batch = st.sampled_from((0, 0, 0, 1, 2, 3))
    case = st.builds(
        Case,
        M=_near(1, 7, 8, 9, tile.tile_m),
        N=_near(1, 7, 8, 9, tile.tile_n),
        K=_near(1, 7, 8, 9, 17, tile.tile_k, ring, ring + tile.tile_k),
        data=st.sampled_from(DATA),
        layout=st.sampled_from(LAYOUTS),
        out=st.sampled_from("nt"),
        gap=st.sampled_from((ROW_GAP, 0, 1, 2, 4, 7)),
        step=st.sampled_from((1, 1, 1, 2)),
        offset=st.integers(0, 7),
        batch=batch,
        shared=st.booleans(),
        device=st.integers(0, torch.cuda.device_count() - 1) if device == "cuda" else st.just(0),
        side_stream=st.booleans() if device == "cuda" else st.just(False),
    )
    if device == "cpu":  # where kernels are interpreted
        case = case.filter(lambda found: found.M * found.N * found.K <= 2 * tile.tile_m * tile.tile_n * ring)
    return case.map(lambda found: found if found.batch else Case(**{**found.__dict__, "shared": False}))


def _near(*edges: int) -> SearchStrategy[int]:
    """At an edge or up to 8 from it, at least 1; the first edges are the simplest."""
    from hypothesis import strategies as st

    sizes = st.tuples(st.sampled_from(edges), st.sampled_from((0, -1, 1, -8, 8)))
    return sizes.map(lambda pair: max(1, pair[0] + pair[1]))
