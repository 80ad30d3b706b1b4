"""The README's figures are those of a committed results file, and its pictures exist."""

from __future__ import annotations

import re
from pathlib import Path

from hgemm.bench.metrics import CEILING, find_row, relative, speed, timed_rows
from hgemm.bench.results import read
from hgemm.bench.schema import CaseResult

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "plots" / "results" / "h200-study.json"
SHOWN = re.search(r"<!-- results:begin -->(.*)<!-- results:end -->", README, re.DOTALL)


def table(case: CaseResult) -> str:
    """The rows of one case as the README prints them, fastest first."""
    ceiling, torch_row = find_row(case, CEILING, "roof"), find_row(case, "torch")
    lines = [
        "| backend | configuration | TFLOPS | of the mma.sync ceiling | of torch |",
        "| --- | --- | --: | --: | --: |",
    ]
    for row in sorted(timed_rows(case), key=lambda row: -speed(row).median):
        share, ratio = relative(row, ceiling), relative(row, torch_row)
        assert share is not None and ratio is not None
        config = f"`{row.config}`" if row.config else ""
        lines.append(
            f"| `{row.backend}` | {config} | {speed(row).median:.0f} | {share.median:.1%} | {ratio.median:.2f} |"
        )
    return "\n".join(lines)


def test_the_table_is_that_of_the_committed_run() -> None:
    case = next(
        case for case in read(RESULTS).cases if (case.M, case.N, case.K, case.dtype) == (4096, 4096, 4096, "bf16")
    )
    assert SHOWN is not None
    assert table(case) in SHOWN[1], f"the table of {RESULTS.name} reads:\n{table(case)}"


def test_every_picture_and_link_exists() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert any(target.endswith(".svg") for target in targets)
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target
