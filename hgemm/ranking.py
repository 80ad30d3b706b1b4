"""Makes the tables that ``backend="auto"`` follows on devices that were measured.

A table is made from one file of results by a rule, and by nothing else:

    python -m hgemm.ranking --json plots/results/h200-squares.json > hgemm/tables/h200-squares.json
    python -m hgemm.ranking --json plots/results/h200-llm.json > hgemm/tables/h200-llm.json

The rule. For each case, the contestants are ordered by the median of their times. Left out are backends that do not
promise one rounding of an fp32 sum (``Properties.exact_integers``: torch and cublas with the flags that torch starts
with), and cublaslt where it was tuned, because ``matmul`` never tunes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hgemm.backends import backends
from hgemm.program import Parser, end_with

SCHEMA = "hgemm-ranking"
_NAMED = ("M", "N", "K", "dtype", "layout")
RESULTS = str(Path(__file__).parent / "results" / "h200-squares.json")


def from_results(document: dict[str, Any], source: str) -> dict[str, Any]:
    """The table of a file of results, by the rule above. Raises ValueError if the run is not complete."""
    if not document["run"]["complete"]:
        raise ValueError(f"{source} is not a complete run, so no ranking is made of it")
    eligible = {record.name for record in backends() if record.properties.exact_integers}
    if document["run"]["options"]["tune_cublaslt"]:
        eligible -= {"cublaslt"}
    if (mode := document["run"]["options"]["mode"]) != "rotating":
        raise ValueError(f"a ranking is made of device times with rotating operands, found mode {mode!r}")
    return {
        "schema": SCHEMA,
        "device": document["env"]["gpu"],
        "source": source,
        "measured": document["run"]["utc"],
        "cases": [
            {**{name: case[name] for name in _NAMED}, "ranking": _ranking(case["rows"], eligible)}
            for case in document["cases"]
            if case.get("batch", 1) == 1
        ],
    }


def _ranking(rows: list[dict[str, Any]], eligible: set[str]) -> list[dict[str, Any]]:
    ranked = [
        {
            "backend": row["backend"],
            "config": row["config"],
            "us": round(statistics.median(row["timing"]["samples_us"]), 2),
        }
        for row in rows
        if row["role"] == "contestant" and row["status"] == "ok" and row["backend"] in eligible
    ]
    return sorted(ranked, key=lambda entry: entry["us"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 if no table can be made."""
    parser = Parser(
        prog="python -m hgemm.ranking", description="Orders what was measured, for backend='auto' to follow."
    )
    parser.add_argument(
        "results", nargs="?", default=RESULTS, help="a file of results of python -m hgemm.bench (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the table as hgemm/tables/*.json hold it")
    options = parser.parse_args(arguments)
    try:
        with open(options.results, encoding="utf-8") as file:
            table = from_results(json.load(file), options.results.rpartition("/")[2])
    except (ValueError, KeyError, OSError) as error:
        print(f"hgemm.ranking: {options.results} makes no table: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(table, indent=1))
        return 0
    for case in table["cases"]:
        print(f"{case['M']}x{case['N']}x{case['K']} {case['dtype']} on {table['device']}")
        for entry in case["ranking"]:
            print(f"  {entry['us']:10.2f} us  {entry['backend']} {entry['config'] or ''}".rstrip())
    return 0


if __name__ == "__main__":
    end_with(main)
