"""Makes the tables that ``backend="auto"`` and the defaults of each backend follow on devices that were measured.

A table is made from files of results by a rule, and by nothing else:

    python -m hgemm.ranking --json plots/results/h200-squares.json > hgemm/tables/h200-squares.json
    python -m hgemm.ranking --json plots/results/h200-llm.json > hgemm/tables/h200-llm.json
    cd plots/results && python -m hgemm.ranking --configurations --json \\
        h200-{llm,llm-fp16,squares,squares-fp16,techniques}.json \\
        configurations/*.json \\
        > ../../hgemm/tables/h200-configurations.json

The rule. For each case, the contestants are ordered by the median of their times. Left out are backends that do not
promise one rounding of an fp32 sum (``Properties.exact_integers``: torch and cublas with the flags that torch starts
with), and cublaslt where it was tuned, because ``matmul`` never tunes. A case that lacks a backend of which the file
has others ranks nobody: whoever is absent need not be slower. With --configurations, of each backend of which several
configurations were timed in a case, the quickest is kept. Of several runs the last counts, as shares of torch's time;
what earlier ones alone timed is brought to its scale by what both did, but never made quicker. Where a case was
measured in both types bf16 counts before fp16, in which torch is not equally fast, however late that was.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hgemm.backends import TORCH, backends
from hgemm.program import Parser, end_with

SCHEMA = "hgemm-ranking"
CONFIGURATIONS_SCHEMA = "hgemm-configurations"
FEWEST_ROUNDS = 2
_NAMED = ("M", "N", "K", "dtype", "layout")
RESULTS = str(Path(__file__).parent / "results" / "h200-squares.json")


def from_results(document: dict[str, Any], source: str) -> dict[str, Any]:
    """The table of a file of results, by the rule above. Raises ValueError if no case of it was measured to its end by
    all its backends."""
    eligible = {record.name for record in backends() if record.properties.exact_integers}
    if document["run"]["options"]["tune_cublaslt"]:
        eligible -= {"cublaslt"}
    _bursts_alone(document, source)
    cases = [case for case in document["cases"] if case.get("batch", 1) == 1 and _whole(case["rows"])]
    # Who lacks a case, though the file has others of it, is not known to be slower there: such a case ranks nobody.
    entries = [_ranking(_whole(case["rows"]), eligible) for case in cases]
    everybody = {entry["backend"] for ranking in entries for entry in ranking}
    ranked = [
        (case, ranking)
        for case, ranking in zip(cases, entries, strict=True)
        if {entry["backend"] for entry in ranking} == everybody
    ]
    if not ranked:
        raise ValueError(
            f"no case of {source} was measured to its end by all its backends, so no ranking is made of it"
        )
    return {
        "schema": SCHEMA,
        "device": document["env"]["gpu"],
        "source": source,
        "measured": document["run"]["utc"],
        "cases": [{**{name: case[name] for name in _NAMED}, "ranking": ranking} for case, ranking in ranked],
    }


def configurations(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The table of the quickest configurations by files of results, named, of one device. Raises ValueError for several
    devices, and for times that are not of the device with rotating operands."""
    devices = {document["env"]["gpu"] for document in documents.values()}
    if len(devices) != 1:
        raise ValueError(f"a table is of one device, found {', '.join(sorted(devices))}")
    found: dict[tuple[Any, ...], dict[str, dict[str, float]]] = {}
    cases: list[dict[str, Any]] = []
    for source, document in sorted(documents.items(), key=lambda item: str(item[1]["run"]["utc"]), reverse=True):
        _bursts_alone(document, source)
        cases += (case for case in document["cases"] if case.get("batch", 1) == 1)
    for case in sorted(cases, key=lambda case: str(case["dtype"])):  # bf16, then fp16; of each the last run first
        whole = _whole(case["rows"])
        timed: dict[str, dict[str, float]] = {}
        for entry in _ranking(whole, {row["backend"] for row in whole}):
            timed.setdefault(entry["backend"], {})[entry["config"] or ""] = entry["us"]
        control = timed.pop(TORCH, {"": 0.0})[""]
        known = found.setdefault((case["M"], case["N"], case["K"], case["layout"]), {})
        for backend, times in timed.items() if control else ():
            if "" not in times:
                _add(known.setdefault(backend, {}), {config: us / control for config, us in times.items()})
    return {
        "schema": CONFIGURATIONS_SCHEMA,
        "device": devices.pop(),
        "sources": [{"file": name, "measured": document["run"]["utc"]} for name, document in documents.items()],
        "cases": [
            {"M": M, "N": N, "K": K, "layout": layout, "quickest": quickest}
            for (M, N, K, layout), known in sorted(found.items())
            if (quickest := [_quickest(name, timed) for name, timed in sorted(known.items()) if len(timed) > 1])
        ],
    }


def _whole(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that were timed, more than once each; none of a case that a run which was cut short left with fewer."""
    timed = [row for row in rows if row["timing"]]
    return timed if all(len(row["timing"]["samples_us"]) >= FEWEST_ROUNDS for row in timed) else []


def _bursts_alone(document: dict[str, Any], source: str) -> None:
    """Raises ValueError for times of the host, of one operand, or of sustained running."""
    options = document["run"]["options"]
    if (mode := options["mode"]) != "rotating":
        raise ValueError(f"{source}: a ranking is made of device times with rotating operands, found mode {mode!r}")
    if options.get("sustained"):
        raise ValueError(f"{source}: a ranking is made of bursts, found sustained running")


def _add(known: dict[str, float], earlier: dict[str, float]) -> None:
    """Adds what an earlier run alone timed, on the scale of the later ones: shares of torch's time differ by a few
    percent between two boards, and what both runs timed says by how much. What they share may also be quicker because
    it was changed, and is why it was timed again: the others were not."""
    both = [known[config] / earlier[config] for config in known.keys() & earlier.keys()]
    scale = max(1.0, statistics.median(both)) if both else 1.0
    for config in earlier.keys() - known.keys():
        known[config] = earlier[config] * scale


def _quickest(backend: str, of_torch: dict[str, float]) -> dict[str, Any]:
    config = min(of_torch, key=lambda name: (of_torch[name], name))
    return {"backend": backend, "config": config, "of_torch": round(of_torch[config], 4)}


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
        "results", nargs="*", default=[RESULTS], help="results of python -m hgemm.bench (default: the squares')"
    )
    parser.add_argument(
        "--configurations", action="store_true", help="of each backend the quickest configuration, by several files"
    )
    parser.add_argument("--json", action="store_true", help="print the table as hgemm/tables/*.json hold it")
    options = parser.parse_args(arguments)
    try:
        documents = {path.rpartition("/")[2]: json.loads(Path(path).read_text("utf-8")) for path in options.results}
        if len(documents) < len(options.results):
            raise ValueError("two of the files have the same name")
        if options.configurations:
            table = configurations(documents)
        elif len(documents) > 1:
            raise ValueError("a ranking of backends is made of one file; --configurations takes several")
        else:
            ((source, document),) = documents.items()
            table = from_results(document, source)
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"hgemm.ranking: {', '.join(options.results)} makes no table: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(table, indent=1))
        return 0
    for case in table["cases"]:
        print(f"{case['M']}x{case['N']}x{case['K']} {case.get('dtype', case['layout'])} on {table['device']}")
        for entry in case.get("ranking") or case["quickest"]:
            time = f"{entry['us']:10.2f} us" if "us" in entry else f"{entry['of_torch']:10.3f} of torch's time"
            print(f"  {time}  {entry['backend']} {entry['config'] or ''}".rstrip())
    return 0


if __name__ == "__main__":
    end_with(main)
