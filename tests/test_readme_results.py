"""The README's figures are those of committed results files, and its pictures exist."""

from __future__ import annotations

import re

import pytest
from readme_tables import README, ROOT, place, tables

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
