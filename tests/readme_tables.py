"""The tables of the README, made of committed results files and nothing else:

python tests/readme_tables.py        rewrites them in README.md
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

from hgemm import published
from hgemm.bench import ladder
from hgemm.bench.metrics import CEILING, clock_mhz, find_row, label, microseconds, relative, speed, timed_rows
from hgemm.bench.results import read
from hgemm.bench.schema import CaseResult, Results, Row

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "plots" / "results"
TABLE_CASE = (4096, "bf16")
SIZES = (2048, 4096, 8192)
NOT_MEASURED = "*Not measured yet.*"

# What one idea is worth: the speed of the first over that of the second, in one run. A name without a configuration
# stands for the fastest of that backend.
QUESTIONS = (
    ("the 64-byte swizzle", "cuda_cp_async:128x128x32_s3_w64x32", "cuda_cp_async:128x128x32_s3_w64x32_noswizzle"),
    ("three stages instead of two", "cuda_cp_async:128x128x32_s3_w64x32", "cuda_cp_async:128x128x32_s2_w64x32"),
    ("TMA instead of cp.async", "cuda_tma:128x128x32_s3_w64x32", "cuda_cp_async:128x128x32_s3_w64x32"),
    (
        "tiles of K = 64 instead of 32, two blocks either way",
        "cuda_tma:128x128x64_s3_w64x32",
        "cuda_tma:128x128x32_s3_w64x32",
    ),
    (
        "two blocks with K = 32 instead of one with K = 64",
        "cuda_tma:128x128x32_s3_w64x32",
        "cuda_tma:128x128x64_s6_w64x32",
    ),
    (
        "warp tiles of 64x64 instead of 64x32",
        "cuda_tma:128x256x64_s2_w64x64",
        "cuda_tma:128x128x64_s3_w64x32",
    ),
    (
        "warps that take turns at copying instead of a block barrier",
        "cuda_tma:256x128x64_s4_w64x64_rotate",
        "cuda_tma:256x128x64_s4_w64x64",
    ),
    (
        "a warpgroup that copies, C stored by TMA, instead of both by the multiplying warps",
        "cuda_tma:256x128x64_s3_w64x64_producer_persistent_store-tma",
        "cuda_tma:256x128x64_s4_w64x64_rotate_persistent",
    ),
    (
        "tiles of A sent to two blocks at once",
        "cuda_tma:256x128x64_s3_w64x64_producer_persistent_multicast_store-tma",
        "cuda_tma:256x128x64_s3_w64x64_producer_persistent_store-tma",
    ),
    (
        "and the last wave shared out among all blocks",
        "cuda_tma:256x128x64_s3_w64x64_producer_persistent_multicast_store-tma_tail",
        "cuda_tma:256x128x64_s3_w64x64_producer_persistent_multicast_store-tma",
    ),
    ("CUDA instead of Triton, mma.sync in both", "cuda_tma", "triton_mma_sync"),
    ("wgmma instead of mma.sync, both from Triton", "triton", "triton_mma_sync"),
    ("Triton instead of cuBLAS", "triton", "torch"),
)


# Of what was counted, the kernels in which a step shows.
COUNTED = (
    "torch",
    "cuda_cp_async:128x128x32_s3_w64x32_noswizzle",
    "cuda_cp_async:128x128x32_s3_w64x32",
    "cuda_tma:128x128x32_s3_w64x32",
    "cuda_tma:128x256x64_s2_w64x64",
    "cuda_tma:256x128x64_s4_w64x64_rotate_persistent",
    "cuda_tma:256x128x64_s3_w64x64_producer_persistent_store-tma",
    "triton:128x256x64_s4_w64x64_specialized",
)


def cases_of(results: Results, size: int, dtype: str) -> list[CaseResult]:
    wanted = (size, size, size, dtype, 1, "nn")
    return [case for case in results.cases if (case.M, case.N, case.K, case.dtype, case.batch, case.layout) == wanted]


def case_of(results: Results, size: int, dtype: str) -> CaseResult:
    (case,) = cases_of(results, size, dtype)
    return case


def contestants(case: CaseResult) -> str:
    """The rows of one case, fastest first."""
    ceiling, torch_row = find_row(case, CEILING, "roof"), find_row(case, "torch")
    lines = [
        "| backend | configuration | TFLOPS | of the ceiling | clock, MHz | of the ceiling per clock | of torch |",
        "| --- | --- | --: | --: | --: | --: | --: |",
    ]
    for row in sorted(timed_rows(case), key=lambda row: -speed(row).median):
        share, ratio = relative(row, ceiling), relative(row, torch_row)
        assert share is not None and ratio is not None
        assert row.timing is not None and ceiling is not None and ceiling.timing is not None
        clock, ceiling_clock = clock_mhz([row.timing]), clock_mhz([ceiling.timing])
        assert clock is not None and ceiling_clock is not None
        cells = [
            f"`{row.backend}`",
            f"`{row.config}`" if row.config else "",
            f"{speed(row).median:.0f}",
            f"{share.median:.1%}",
            f"{clock:.0f}",
            f"{share.median * ceiling_clock / clock:.1%}",
            f"{ratio.median:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def questions(*runs: Results) -> str:
    """What one idea is worth, by size: from the first of the runs that has both rows, none if no run has."""
    lines = heading("what it is worth", [f"{size}³" for size in SIZES])
    for words, better, worse in QUESTIONS:
        ratios = []
        for size in SIZES:
            cases = [case for run in runs for case in cases_of(run, size, TABLE_CASE[1])]
            pairs = [(named(case, better), named(case, worse)) for case in cases]
            ratio = next((relative(first, second) for first, second in pairs if first and second), None)
            assert ratio or size not in ladder.SIZES, (better, worse)
            ratios.append(f"{ratio.median:.2f}" if ratio else "")
        lines.append(f"| {words} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def heading(first: str, others: list[str]) -> list[str]:
    return [f"| {first} | {' | '.join(others)} |", "| --- |" + " --: |" * len(others)]


def named(case: CaseResult, name: str) -> Row | None:
    rows = [row for row in timed_rows(case) if name in (label(row), row.backend)]
    return max(rows, key=lambda row: speed(row).median, default=None)


def projections(found: list[CaseResult], counted: bool = False) -> str:
    """By backend and M, the geometric mean over products of speed relative to torch, bf16. ``counted``: the headings
    say over how many."""
    cases = [case for case in found if case.dtype == TABLE_CASE[1]]
    rows_of_c = sorted({case.M for case in cases})
    names = dict.fromkeys(row.backend for case in cases for row in timed_rows(case) if row.backend != "torch")
    products = {M: sum(case.M == M for case in cases) for M in rows_of_c}
    lines = heading("of torch", [f"M = {M:,}" + f", {products[M]} products" * counted for M in rows_of_c])
    for name in names:
        cells = []
        for M in rows_of_c:
            ratios = [
                relative(row, find_row(case, "torch"))
                for case in cases
                if case.M == M and (row := named(case, name)) is not None
            ]
            known = [ratio.median for ratio in ratios if ratio is not None]
            cells.append(f"{statistics.geometric_mean(known):.2f}" if known else "")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def ladder_table(name: str = "ladder/h200-ladder.json") -> str:
    """What each technique adds, from the runs of the ladder and, where it was read, the tensor pipe's counter."""
    path = RESULTS / name
    if not path.exists():
        return NOT_MEASURED
    sustained, profile = RESULTS / "ladder" / "h200-ladder-sustained.json", RESULTS / "ladder" / "h200-profile.json"
    found = ladder.steps(
        read(path),
        TABLE_CASE[1],
        read(sustained) if sustained.exists() else None,
        json.loads(profile.read_text()) if profile.exists() else None,
    )
    sizes = [f"{size}³ {words}" for size in ladder.SIZES for words in ("TFLOPS", "of the ceiling", "sustained")]
    head = ["technique", "configuration", "registers", "shared, KiB", "tensor pipe", *sizes]
    lines = [f"| {' | '.join(head)} |", "| --- | --- |" + " --: |" * (len(head) - 2)]
    for step in found:
        config = step.rung.contestant.partition(":")[2]
        cells = [step.rung.technique, f"`{config}`", str(step.registers or "")]
        cells.append(f"{step.shared_bytes / 1024:.0f}" if step.shared_bytes else "")
        cells.append(f"{step.tensor_pipe:.0f}%" if step.tensor_pipe is not None else "")
        for size in ladder.SIZES:
            burst, held = step.burst.get(size), step.sustained.get(size)
            cells += [f"{burst.tflops:.0f}", f"{burst.share.median:.1%}"] if burst else ["", ""]
            cells.append(f"{held.tflops:.0f}" if held else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def counters_table() -> str:
    """What Nsight Compute counted of one product of each kernel."""
    path = RESULTS / "ladder" / "h200-profile.json"
    if not path.exists():
        return NOT_MEASURED
    lines = [
        "| kernel | tensor pipe | shared pipe | ldmatrix wavefronts, of needed | L2, of compulsory | waits most |",
        "| --- | --: | --: | --: | --: | --- |",
    ]
    profile = json.loads(path.read_text())
    for entry in profile["contestants"]:
        counted = entry["counted"]
        name = f"{entry['backend']}{':' + entry['config'] if entry['config'] else ''}"
        if counted is None or name not in COUNTED:
            continue
        values = counted["values"]
        ratio = next((kind["ratio"] for kind in counted["shared"] if kind["kind"] == "ldmatrix"), None)
        l2 = values.get("L2")
        stall = counted["stalls"][0] if counted["stalls"] else None
        cells = [
            f"`{name}`",
            percent(values.get("tensor pipe")),
            percent(values.get("shared pipe")),
            f"{ratio:.2f}" if ratio else "",
            f"{l2 / profile['case']['compulsory_bytes']:.1f}" if l2 else "",
            f"{stall['reason']}, {stall['share']:.0%}" if stall else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def squares_table() -> str:
    """Of each square from 2048 up torch's rate, `triton` beside it in both types, and `cuda_tma`."""
    bf16, fp16 = read(RESULTS / "h200-squares.json"), read(RESULTS / "h200-squares-fp16.json")
    titles = ["`torch`, TFLOPS", "`triton`, of torch", "and in fp16", "its configuration", "`cuda_tma`, of torch"]
    lines = heading("bf16", titles)
    for case in bf16.cases:
        if case.M < SIZES[0]:
            continue
        torch, triton = named(case, "torch"), named(case, "triton")
        assert torch is not None and triton is not None
        cells = [f"{case.M}³", f"{speed(torch).median:.0f}", _of_torch(case, "triton")]
        cells += [_of_torch(case_of(fp16, case.M, "fp16"), "triton"), f"`{triton.config}`", _of_torch(case, "cuda_tma")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_torch(case: CaseResult, backend: str) -> str:
    row = named(case, backend)
    ratio = row and relative(row, named(case, "torch"))
    return f"{ratio.median:.3f}" if ratio else ""


def host_table(name: str = "h200-e2e.json") -> str:
    """Host time of a call: torch's, and everybody else's over that of torch called in the same way."""
    path = RESULTS / name
    if not path.exists():
        return NOT_MEASURED
    cases = read(path).cases
    names = dict.fromkeys(row.backend for case in cases for row in timed_rows(case) if row.backend != "torch")
    lines = heading("product", ["called", "`torch`, µs", *(f"`{name}`" for name in names)])
    for case in cases:
        for allocates in (False, True):
            yardstick = find_row(case, "torch", allocates=allocates)
            assert yardstick is not None
            cells = [f"{case.M} x {case.N} x {case.K}", "without `out`" if allocates else "with `out`"]
            cells.append(f"{microseconds(yardstick).median:.1f}")
            for backend in names:
                row = find_row(case, backend, allocates=allocates)
                ratio = relative(yardstick, row)  # of speeds, so that of times upside down
                cells.append("" if ratio is None else f"{ratio.median:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def predictions_table() -> str:
    """What others published for sm_120, and what the cost model predicts for our kernel of that kind."""
    lines = [
        "| card, dtype, size | what | published | predicted | for | waves, full |",
        "| --- | --- | --: | --: | --- | --: |",
    ]
    for figure, prediction, tflops in published.predictions():
        size = f"{figure.size.M}³" + (", B column-major" if figure.size.layout == "nt" else "")
        cells = [
            f"{figure.card}, {figure.remark}, {size}",
            figure.what,
            f"{figure.tflops:g}",
            f"{tflops:.1f}",
            f"`{prediction.kernel.name}`",
            f"{prediction.waves:.2f}, {prediction.fill:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"


def checked() -> str:
    """What hgemm.check reported."""
    report = json.loads((RESULTS / "h200-check.json").read_text())
    tried = sum(result["cases"] for result in report["results"])
    failed = sum(len(result["failures"]) for result in report["results"])
    runs = len({(result["backend"], result["config"], result["dtype"]) for result in report["results"]})
    gpu = report["gpu"].removeprefix("NVIDIA ")
    return f"{tried:,} products by {runs} pairs of configuration and dtype on an {gpu}, {failed} wrong."


def tables() -> dict[str, str]:
    """The text of each table by the name of its place in the README."""
    techniques = read(RESULTS / "h200-techniques.json")
    return {
        "contestants": contestants(case_of(techniques, *TABLE_CASE)),
        "squares": squares_table(),
        "questions": questions(techniques, read(RESULTS / "ladder" / "h200-ladder.json")),
        "ladder": ladder_table(),
        "counters": counters_table(),
        "projections": projections(
            [
                *(case for case in read(RESULTS / "h200-llm.json").cases if case.M != 128),
                *read(RESULTS / "configurations" / "h200-llm-128.json").cases,
            ],
            counted=True,
        ),
        "batched": projections(read(RESULTS / "h200-batched.json").cases),
        "host": host_table(),
        "predictions": predictions_table(),
        "check": checked(),
    }


def place(name: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- {name}:begin -->\n)(.*?)(\n<!-- {name}:end -->)", re.DOTALL)


def main() -> None:
    text = README.read_text()
    for name, table in tables().items():
        text, count = place(name).subn(lambda match, table=table: match[1] + table + match[3], text)
        assert count == 1, name
    README.write_text(text)


if __name__ == "__main__":
    main()
