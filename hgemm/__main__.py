"""python -m hgemm: the tools there are."""

import sys

from hgemm.program import end_with

TOOLS = {
    "study": "the whole: check, measure, draw; without a GPU what can run there",
    "env": "what this machine can run and, for each thing it cannot, the reason",
    "check": "right or wrong: every backend, over ragged shapes, in arenas of NaN",
    "bench": "how fast: contestants interleaved in one run, with the ceilings of the device",
    "tune": 'which configuration is fastest here, tried once and kept for backend="auto"',
    "plot": "the charts of a results file",
    "profile": "what a kernel is made of, from compiled code, and does, from Nsight Compute",
    "report": "one HTML page of results files: the answer, charts, tables, and the data themselves",
}


def main() -> int:
    if names := sys.argv[1:]:
        hint = "a tool is a module of its own, as in python -m hgemm.study"
        print(f"hgemm: no tool {names[0]!r}; {hint}", file=sys.stderr)
        return 2
    for tool, purpose in TOOLS.items():
        print(f"python -m hgemm.{tool:8} {purpose}")
    return 0


if __name__ == "__main__":
    end_with(main)
