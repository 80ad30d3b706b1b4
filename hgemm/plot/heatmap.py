"""Speed over a baseline's, by contestant and product, or over M and N for one contestant; doubtful ones hatched."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from hgemm.bench.metrics import label, relative, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row
from hgemm.plot.cells import Cell, Sheet, Strip, draw_sheets
from hgemm.plot.grouping import Entrant, by_configuration, groups, is_meant, median_tflops, row_name
from hgemm.plot.source import USUAL, NothingToDraw, Options, timed_cases, variant


def draw(results: Results, dtype: str, options: Options = USUAL) -> Figure:
    """Ratios to ``options.baseline``, paired by round; with ``options.contestant`` its own over M and N, one map a K.

    A backend's name means the fastest of its configurations in each case. Raises NothingToDraw if the baseline or the
    contestant was not timed in that dtype, if nobody else was, or if a contestant asked for was at no K timed at two
    or more M and two or more N.
    """
    every = timed_cases(results, dtype)
    cases = [case for case in every if _fastest(case, options.baseline, None)]
    if not cases:
        raise NothingToDraw(_nobody(every, dtype, options.baseline))
    if options.contestant is None:
        sheets = [_matrix(cases, dtype, options.baseline)]
        what = "every contestant and product"
    else:
        sheets = _maps(cases, dtype, options.baseline, options.contestant)
        what = f"{options.contestant.replace(':', '  ')} over M and N"
    heading = f"Speed over {options.baseline}, {results.env.gpu.removeprefix('NVIDIA ')}, {dtype}"
    remark = (
        "Medians of ratios paired by round, above 1 is faster. Hatched: the 95% bootstrap interval contains 1, or "
        "there was a single round."
    )
    if any(cell.word for sheet in sheets for strip in sheet.strips for column in strip.columns for cell in column):
        remark += " A word says why there is no time."
    return draw_sheets(sheets, results, heading, what, remark)


def _matrix(cases: Sequence[CaseResult], dtype: str, baseline: str) -> Sheet:
    """Contestants down, products across."""
    bases = {id(_fastest(case, baseline, allocates)) for case in cases for allocates in (False, True)}
    entrants = [e for e in by_configuration(cases) if any(id(row) not in bases for row in e.rows.values())]
    if not entrants:
        raise NothingToDraw(f"nobody but {baseline} was timed in {dtype}")
    place_of = {id(case): place for place, case in enumerate(cases)}
    strips = [
        Strip(
            group.title,
            ", ".join(part for part in ("over M" if group.axis == "M" else "", group.subtitle) if part),
            tuple(map(group.tick, group.cases)),
            tuple(
                tuple(_cell(entrant, place_of[id(case)], case, baseline) for entrant in entrants)
                for case in group.cases
            ),
        )
        for group in groups(cases)
    ]
    return Sheet(tuple(entrant.name for entrant in entrants), tuple(strips))


def _cell(entrant: Entrant, place: int, case: CaseResult, baseline: str) -> Cell:
    if place in entrant.rows:
        row = entrant.rows[place]
        return Cell(relative(row, _fastest(case, baseline, row.allocates)))
    names = {row_name(row) for row in entrant.rows.values()}
    untimed = (row for row in case.rows if row.role == "contestant" and row.timing is None and row_name(row) in names)
    return Cell(word=next((row.status for row in untimed), ""))


def _maps(cases: Sequence[CaseResult], dtype: str, baseline: str, contestant: str) -> list[Sheet]:
    """M down, N across, a map for each K."""
    timed = [case for case in cases if _fastest(case, contestant, None)]
    if not timed:
        raise NothingToDraw(_nobody(cases, dtype, contestant))
    by_depth: dict[tuple[int, str], dict[tuple[int, int], CaseResult]] = {}
    for case in timed:
        by_depth.setdefault((case.K, variant(case)), {})[case.M, case.N] = case
    sheets = []
    for (K, others), members in sorted(by_depth.items()):
        rows, columns = sorted({M for M, _ in members}), sorted({N for _, N in members})
        if len(rows) < 2 or len(columns) < 2:
            continue
        cells = tuple(tuple(_map_cell(members.get((M, N)), baseline, contestant) for M in rows) for N in columns)
        strip = Strip(f"K {K}{others}", "over N", tuple(map(str, columns)), cells)
        sheets.append(Sheet(tuple(f"M {M}" for M in rows), (strip,)))
    if not sheets:
        raise NothingToDraw(
            f"a map over M and N needs two or more of both at one K, and {contestant} has no such K in {dtype}; "
            "without a contestant the heatmap shows every contestant and product"
        )
    return sheets


def _map_cell(case: CaseResult | None, baseline: str, contestant: str) -> Cell:
    row = _fastest(case, contestant, None) if case else None
    return Cell(relative(row, _fastest(case, baseline, row.allocates))) if case and row else Cell()


def _fastest(case: CaseResult, name: str, allocates: bool | None) -> Row | None:
    """The fastest timed row that a name means, among those that allocate or not, or all; None if there is none."""
    rows = [row for row in timed_rows(case) if is_meant(row, name) and allocates in (None, row.allocates)]
    return max(rows, key=median_tflops, default=None)


def _nobody(cases: Sequence[CaseResult], dtype: str, name: str) -> str:
    there = dict.fromkeys(label(row) for case in cases for row in timed_rows(case))
    return f"{name} was not timed in {dtype}; there are {', '.join(there)}"
