"""python -m hgemm: the tools there are."""

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


def main() -> None:
    for tool, purpose in TOOLS.items():
        print(f"python -m hgemm.{tool:8} {purpose}")


if __name__ == "__main__":
    main()
