"""How much of the device's limit each kernel reaches: bars in % of the register-only mma.sync rate of the same run."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hgemm.bench.metrics import CEILING, find_row, label, relative, speed, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row
from hgemm.bench.statistics import Summary
from hgemm.plot import style
from hgemm.plot.source import USUAL, NothingToDraw, Options, case_name, one_case, timed_cases, wgmma_remark

BAR_INCHES = 0.27
FIGURES_SIZE = 8.5
GAP_POINTS = 5.0
"""Between a bar, or the line at 100%, and the figures behind it."""


def draw(results: Results, dtype: str, options: Options = USUAL) -> Figure:
    """The bars of one case of a dtype: ``options.mnk``, or as ``one_case`` chooses.

    Raises NothingToDraw if no case of that dtype has both a ceiling and contestants whose device time was measured.
    """
    case = one_case(_cases(results, dtype), options.mnk)
    ceiling = find_row(case, CEILING, "roof")
    rows = timed_rows(case)
    looks = style.looks(rows)
    shares = {label(row): share for row in rows if (share := relative(row, ceiling))}
    rows.sort(key=lambda row: shares[label(row)].median)

    remark = _remark(results)
    bottom, top = style.footer_inches(results, remark) + 0.35, 0.74
    height = bottom + top + BAR_INCHES * (len(rows) + 0.6)
    names = [_name(row) for row in rows]
    left = max(style.text_points(name, 8.5) for name in names) / 72 + 0.25
    with style.context():
        figure = style.new_figure(height)
        width = style.WIDTH_INCHES - left - 0.2
        axes = style.add_axes(figure, left, bottom, width, height - bottom - top)
        end = _end(rows, shares, 72 * width)
        for place, row in enumerate(rows):
            _bar(axes, place, row, shares[label(row)], looks[label(row)], end / (72 * width))
        _axes(axes, names, end)
        assert ceiling is not None
        gpu = results.env.gpu.removeprefix("NVIDIA ")
        style.title(
            figure,
            f"Share of the mma.sync ceiling, {gpu}, {case_name(case)}, {dtype}",
            f"100% is {speed(ceiling).median:.4g} TFLOPS: mma.sync on registers alone, timed in the same rounds",
        )
        style.footer(figure, results, remark)
    return figure


def _cases(results: Results, dtype: str) -> list[CaseResult]:
    cases = [case for case in timed_cases(results, dtype) if _has_shares(case)]
    if not cases:
        raise NothingToDraw(f"no case in {dtype} was timed together with the {CEILING} ceiling")
    return cases


def _has_shares(case: CaseResult) -> bool:
    """A share of the device's limit needs the device's time: the host's, of mode e2e, has none."""
    ceiling = find_row(case, CEILING, "roof")
    return any(row.timing and row.timing.mode != "e2e" and relative(row, ceiling) for row in timed_rows(case))


def _name(row: Row) -> str:
    return f"{row.backend}  {row.config}" if row.config else row.backend


def _bar(axes: Axes, place: int, row: Row, share: Summary, look: style.Look, percent_a_point: float) -> None:
    percent = 100 * share.median
    figures, behind = _figures(row, share), 100 * max(share.median, share.p95)
    if behind < 100 < behind + (style.text_points(figures, FIGURES_SIZE) + GAP_POINTS) * percent_a_point:
        behind = 100.0  # the line at 100% runs through no figures
    axes.barh(place, percent, height=0.62, color=look.colour, alpha=0.88, linewidth=0)
    axes.plot([100 * share.p5, 100 * share.p95], [place, place], color=style.INK, linewidth=1.1, zorder=3)
    axes.annotate(
        figures,
        (behind, place),
        xytext=(GAP_POINTS, 0),
        textcoords="offset points",
        va="center",
        fontsize=FIGURES_SIZE,
        zorder=4,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )


def _figures(row: Row, share: Summary) -> str:
    return f"{100 * share.median:.1f}%  {speed(row).median:.3g} TFLOPS"


def _end(rows: list[Row], shares: dict[str, Summary], points: float) -> float:
    """Where the axis ends, in %, so that the figures behind every bar, or behind 100%, fit in its ``points``."""
    ends = [105.0]
    for row in rows:
        share = shares[label(row)]
        text = style.text_points(_figures(row, share), FIGURES_SIZE) + 12
        ends.append(100 * max(share.median, share.p95, 1.0) / (1 - text / points))
    return max(ends)


def _axes(axes: Axes, names: list[str], end: float) -> None:
    axes.axvline(100, color=style.INK, linewidth=1.4, zorder=2)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    axes.set_ylim(-0.6, len(names) - 0.2)
    axes.set_xlim(0, end)
    axes.set_xticks(range(0, int(end) + 1, 20 if end < 180 else 50))  # texts that do not touch, 100% among them
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")


def _remark(results: Results) -> str:
    text = "Ratios paired by round; the thin line spans the 5th to the 95th percentile."
    return " ".join([text, *wgmma_remark(results)])
