"""The README's figures are those of committed results files, and its pictures exist."""

from __future__ import annotations

import re

import pytest
from readme_tables import README, RESULTS, ROOT, place, tables

from hgemm.bench.comparison_pairing import compare
from hgemm.bench.results import read

TEXT = README.read_text()
TABLES = tables()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_that_of_the_committed_run(name: str) -> None:
    (found,) = place(name).findall(TEXT)
    assert found[1] == TABLES[name], "python tests/readme_tables.py rewrites it"


def test_every_table_has_its_place() -> None:
    assert re.findall(r"<!-- (\w+):begin -->", TEXT) == list(TABLES)


def test_every_picture_and_link_exists() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert any(target.endswith(".svg") for target in targets)
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_squares_compare_with_their_repetition_as_the_words_say() -> None:
    words = " ".join((ROOT / "plots" / "README.md").read_text().split())
    verdicts = []
    for name in ("h200-squares-earlier", "h200-squares-fp16-earlier"):
        first, second = (read(RESULTS / "configurations" / f"{name}{end}.json") for end in ("", "-again"))
        assert first.run.sources == second.run.sources
        verdicts += [change.verdict for change in compare(first, second, margin=0.01).changes]
    same, ambiguous = verdicts.count("same"), verdicts.count("ambiguous")
    assert same >= 0.95 * len(verdicts)
    assert same + ambiguous == len(verdicts)
    assert f"calls {same} of the {len(verdicts)} rows the same with a margin of 1%, and {_number(ambiguous)}" in words


def _number(count: int) -> str:
    return {0: "none", 1: "one", 2: "two"}.get(count, str(count)) + " ambiguous"
