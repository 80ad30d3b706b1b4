"""Everything that a GPU has to show before figures are committed, stage by stage, into one folder:

    python tests/on_gpu.py OUT                    all stages, about 50 minutes on an H200
    python tests/on_gpu.py OUT build tests check  some of them, in this order
    python tests/on_gpu.py --list

A stage has a limit, and one that fails does not keep the others from running: its log says why. Nothing is overwritten:
a stage whose result is there already is left out. Those that time nothing (tests, check) may run on a second GPU
meanwhile, started apart with CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Stage:
    name: str
    arguments: str
    """Python's, in one line."""
    seconds: int
    """Its limit."""
    result: str | None = None
    """A file that it leaves, by ``--out`` or by printing it."""

    def command(self, out: Path) -> list[str]:
        written = ["--out", str(out / (self.result or ""))] if "hgemm.bench" in self.arguments else []
        return [sys.executable, *shlex.split(self.arguments), *written]


def _bench(name: str, seconds: int, options: str) -> Stage:
    return Stage(name, f"-m hgemm.bench {options} --quiet", seconds, f"{name}.json")


_SQUARES = "--suite squares --rounds 15 --backends '*:default' --dtypes"
_LLM = "--suite llm --rounds 5 --backends '*:default' --dtypes"
_TECHNIQUES = (  # what the README compares
    "triton:default triton_mma_sync triton_gluon:256x128x64_s4_w64x64 triton_gluon:128x256x64_s2_w64x64 cuda_cp_async "
    "cuda_tma:default cuda_tma:128x128x32_s3_w64x32 cuda_tma:128x128x64_s3_w64x32 cuda_tma:128x128x64_s6_w64x32 "
    "cuda_tma:128x256x64_s2_w64x64 cuda_tma:128x256x64_s2_w64x64_tail cuda_tma:256x128x64_s4_w64x64 "
    "cuda_tma:256x128x64_s4_w64x64_rotate "
    "'cuda_tma:256x128x64_s?_w64x64_rotate_persistent*' 'cuda_tma:256x128x64_s?_w64x64_producer_persistent*' "
    "'cuda_tma:192x256x64_s4*'"
)

# Every configuration in one dtype and few rounds: what the cost model is fitted to and the defaults are taken from.
_EACH = "--dtypes bf16 --rounds 5 --burst-ms 6 --idle-ms 8 --backends torch"
_BOTH = "--dtypes bf16,fp16 --rounds 5 --backends torch"
_MMA = "triton_mma_sync triton_gluon 'cuda_tma:128x*'"


def _cubes(*sizes: int) -> str:
    return " ".join(f"{n},{n},{n}" for n in sizes)


def _sizes(least: int, largest: int = 8192) -> str:
    sizes = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
    return "--layouts nn,nt --mnk " + _cubes(*(n for n in sizes if least <= n <= largest))


def _projections(*rows: int) -> str:
    """The products of the ``llm`` suite."""
    weights = [
        "6144,4096",
        "4096,4096",
        "28672,4096",
        "4096,14336",
        "10240,8192",
        "8192,8192",
        "57344,8192",
        "8192,28672",
    ]
    return "--layouts nt --mnk " + " ".join(f"{M},{weight}" for M in rows for weight in weights)


STAGES = (
    Stage(
        "build",
        "-c 'from hgemm.cuda_kernels import build, configs; build.build_units(configs.units())'",
        300,
    ),
    Stage("tests", "-m pytest -q -m gpu -p no:cacheprovider tests", 1500),
    Stage("check", "-m hgemm.check --device cuda --search 60 --json", 900, "check.json"),
    _bench(
        "e2e",
        120,
        "--mode e2e --idle-ms 0 --rounds 15 --mnk 256,256,256 512,512,512 1024,1024,1024 16,4096,4096 "
        "--backends torch 'cuda_*:default' triton_pointer:default triton:default",
    ),
    _bench("kernels", 500, f"{_sizes(1024)} {_BOTH} {_MMA} 'cuda_tma:192x*' 'cuda_tma:256x*' cuda_cp_async"),
    _bench("kernels-small", 100, f"{_sizes(256, 768)} {_EACH} cuda_tma"),
    _bench("kernels-128", 120, f"{_projections(128)} {_EACH} {_MMA} 'cuda_tma:192x256x64*' 'cuda_tma:256x*tail'"),
    _bench(
        "kernels-few", 150, f"{_projections(1, 16, 32)} {_EACH} 'cuda_tma:16x*' 'cuda_tma:32x*' cuda_cp_async:default"
    ),
    _bench("kernels-many", 200, f"{_projections(1024, 8192)} {_EACH} {_MMA} 'cuda_tma:192x256x64*' 'cuda_tma:256x*'"),
    _bench("triton-squares", 300, f"{_sizes(256)} {_EACH} triton"),
    _bench("triton-128", 100, f"{_projections(128)} {_EACH} 'triton:*specialized*' 'triton:*split*' 'triton:64x*'"),
    _bench(
        "triton-llm", 300, f"{_projections(128, 1024, 8192)} {_EACH} 'triton:64x*' 'triton:1*x128*' 'triton:*x256*'"
    ),
    _bench(
        "triton-few", 200, f"{_projections(1, 16)} {_EACH} 'triton:16x*' 'triton:32x*' 'triton:64x*' triton_pointer"
    ),
    _bench("squares", 200, f"{_SQUARES} bf16"),
    _bench("squares-fp16", 200, f"{_SQUARES} fp16"),
    _bench("techniques", 200, f"--layouts nn,nt --mnk {_cubes(2048, 4096, 8192)} {_BOTH} {_TECHNIQUES}"),
    _bench("squares-again", 200, f"{_SQUARES} bf16"),
    _bench("squares-fp16-again", 200, f"{_SQUARES} fp16"),
    _bench("llm", 300, f"{_LLM} bf16"),
    _bench("llm-fp16", 300, f"{_LLM} fp16"),
    _bench("batched", 120, "--suite batched --backends '*:default'"),
    _bench("ladder", 120, "--ladder --rounds 11"),
    _bench("ladder-sustained", 240, "--ladder --sustained --burst-ms 100 --rounds 3"),
    Stage("profile", "-m hgemm.profile --arch 90a --counters required --json", 300, "profile.json"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every stage that ran ended well, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="folder for results and logs; made if it is not there")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="those to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the stages, their limits and commands")
    options = parser.parse_args(arguments)
    if options.list:
        for stage in STAGES:
            print(f"{stage.name:17} {stage.seconds:5} s  python {shlex.join(stage.command(Path('OUT'))[1:])}")
        return 0
    if options.out is None:
        parser.error("name a folder for results and logs")
    stages = {stage.name: stage for stage in STAGES}
    if unknown := [name for name in options.stages if name not in stages]:
        parser.error(f"unknown stage {unknown[0]!r}; there are {', '.join(stages)}")
    options.out.mkdir(parents=True, exist_ok=True)
    failed = [name for name in options.stages or stages if not run(stages[name], options.out.resolve())]
    print(f"failed: {', '.join(failed)}" if failed else "all well", flush=True)
    return 1 if failed else 0


def run(stage: Stage, out: Path) -> bool:
    """Whether the stage ended well, or its result was there."""
    if stage.result and (out / stage.result).exists():
        print(f"{stage.name}: {stage.result} is there", flush=True)
        return True
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    began = time.monotonic()
    log = out / f"{stage.name}.log"
    with log.open("w") as output, (out / f"{stage.name}.err").open("w") as errors:
        try:
            status: int | str = subprocess.run(
                stage.command(out), cwd=ROOT, env=environment, stdout=output, stderr=errors, timeout=stage.seconds
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"more than {stage.seconds} s"
    if stage.result and "--json" in stage.arguments and status == 0:
        log.rename(out / stage.result)
    print(f"{stage.name}: {'well' if status == 0 else status} after {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


if __name__ == "__main__":
    sys.exit(main())
