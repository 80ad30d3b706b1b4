"""Makes the tables that ``backend="auto"`` follows on devices that were measured.

A table is made from one file of results by a rule, and by nothing else:

    python -m hgemm.ranking plots/results/h200-study.json > hgemm/tables/h200.json

The rule. For each case, the contestants are ordered by the median of their times. Left out are backends that do not
promise one rounding of an fp32 sum (``Properties.exact_integers``: torch and cublas with the flags that torch starts
with), and cublaslt where it was tuned, because ``matmul`` never tunes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from hgemm.backends import backends

SCHEMA = "hgemm-ranking"


def from_results(document: dict[str, Any], source: str) -> dict[str, Any]:
    """The table of a file of results, by the rule above. Raises ValueError if the run is not complete."""
    if not document["run"]["complete"]:
        raise ValueError(f"{source} is not a complete run, so no ranking is made of it")
    eligible = {record.name for record in backends() if record.properties.exact_integers}
    if document["run"]["options"]["tune_cublaslt"]:
        eligible -= {"cublaslt"}
    return {
        "schema": SCHEMA,
        "device": document["env"]["gpu"],
        "source": source,
        "measured": document["run"]["utc"],
        "cases": [
            {**{name: case[name] for name in ("M", "N", "K", "dtype")}, "ranking": _ranking(case["rows"], eligible)}
            for case in document["cases"]
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
    """Prints the table of the file of results that is named. The exit status: 0, or 2 if there is none."""
    paths = sys.argv[1:] if arguments is None else list(arguments)
    try:
        (path,) = paths
        with open(path, encoding="utf-8") as file:
            print(json.dumps(from_results(json.load(file), path.rpartition("/")[2]), indent=1))
    except (ValueError, KeyError, OSError) as error:
        print(f"usage: python -m hgemm.ranking RESULTS.json > TABLE.json ({error})", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
