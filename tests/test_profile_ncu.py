"""Running ncu and reading what it prints: tables, units, thousands, what is missing, refusals and their ways out."""

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest
from ncu_output import LIBRARY, PERMISSION, UNKNOWN, raw_page

from hgemm.bench.suites import Case, Shape
from hgemm.profile import ncu
from hgemm.profile.launch import Launch
from hgemm.profile.ncu import NoCounters, Value

KERNEL = "void hgemm::tma_gemm<bf16, Config_0>(TensorMap, TensorMap, int, Output, bool, bool)"
LAUNCH = Launch("cuda_tma", "128x128x64_s3_w64x32", Case(Shape(256, 512, 128), "fp16", "nt"), 0)
TABLE = raw_page(
    [
        (
            KERNEL,
            {
                "gpu__time_duration.sum": ("ns", "363,456"),
                "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "71.98"),
                "lts__t_bytes.sum": ("byte", "1,234,567,890"),
                "dram__bytes_read.sum": ("byte", "(!) n/a"),
                "dram__bytes_write.sum": ("byte", "n/a"),
                "smsp__inst_executed_op_ldsm.sum": ("inst", "0"),
                "lts__t_sector_hit_rate.pct": ("%", "nan"),
                "device__attribute_display_name": ("", "NVIDIA H200"),
                "sm__cycles_elapsed.avg.per_second": ("hz", "1.755e+09"),
            },
        ),
        ("splitKreduce_kernel", {"gpu__time_duration.sum": ("ns", "2,048")}),
    ]
)


def test_the_raw_page_is_read_with_its_units() -> None:
    first, second = ncu.parse(TABLE)
    assert first.name == KERNEL  # commas and all
    assert first.values == {
        "gpu__time_duration.sum": Value(363_456.0, "ns"),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": Value(71.98, "%"),
        "lts__t_bytes.sum": Value(1_234_567_890.0, "byte"),
        "smsp__inst_executed_op_ldsm.sum": Value(0.0, "inst"),
        "sm__cycles_elapsed.avg.per_second": Value(1.755e9, "hz"),
    }
    assert second.values == {"gpu__time_duration.sum": Value(2048.0, "ns")}


@pytest.mark.parametrize("output", ["", PERMISSION, '"ID","Kernel Name"\n', 'no table, "ID" or not\n'])
def test_no_table_is_no_kernel(output: str) -> None:
    assert ncu.parse(output) == []


def test_a_line_that_was_cut_off_is_no_kernel() -> None:
    cut = TABLE[: TABLE.index("71.98")]
    assert ncu.parse(cut) == []


def test_what_ncu_says_between_the_lines_of_the_table_is_not_read_as_one_of_them() -> None:
    lines = TABLE.splitlines()
    lines.insert(5, '==WARNING== not collected: a.sum,"b.sum')  # a quotation mark that would swallow what follows
    assert [kernel.name for kernel in ncu.parse("\n".join(lines))] == [KERNEL, "splitKreduce_kernel"]


def test_clocks_are_left_alone_and_only_the_call_is_profiled() -> None:
    words = ncu.command(Path("/opt/ncu"), ["a.sum", "b.pct"], Path("/tmp/spec"), Path("/tmp/answer"))
    for option, value in (
        ("--clock-control", "none"),
        ("--profile-from-start", "off"),
        ("--replay-mode", "kernel"),
        ("--cache-control", "all"),
        ("--page", "raw"),
        ("--print-units", "base"),
        ("--metrics", "a.sum,b.pct"),
    ):
        assert words[words.index(option) + 1] == value
    assert "--csv" in words
    assert words[words.index(sys.executable) :] == [
        *(sys.executable, "-m", "hgemm.profile.launch", "/tmp/spec", "/tmp/answer")
    ]


def test_a_launch_survives_the_way_to_the_other_process() -> None:
    assert Launch.loads(LAUNCH.dumps()) == LAUNCH


def test_ncu_is_found_on_the_path_then_under_cuda_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("path", "home/bin"):
        program(tmp_path / folder / "ncu", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert ncu.find() == tmp_path / "path" / "ncu"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ncu.find() == tmp_path / "home" / "bin" / "ncu"


def test_no_ncu_has_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "_candidates", lambda: iter([Path("/nowhere/ncu")]))
    with pytest.raises(NoCounters, match=r"no ncu: .*comes with the CUDA toolkit") as refusal:
        ncu.find()
    assert refusal.value.cause == "machine"


def program(path: Path, body: str) -> Path:
    """A stand-in for ncu: a Python program in which ``metrics`` and ``answer`` are what it was asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys, time\n"
        "if '--metrics' in sys.argv:\n"
        "    metrics = sys.argv[sys.argv.index('--metrics') + 1].split(',')\n"
        "    answer, spec = pathlib.Path(sys.argv[-1]), json.loads(pathlib.Path(sys.argv[-2]).read_text())\n"
        f"{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def answers(status: str, reason: str, output: str) -> str:
    return (
        f"answer.write_text(json.dumps({{'status': {status!r}, 'reason': {reason!r}}}))\nsys.stdout.write({output!r})"
    )


def test_the_counters_of_a_call(tmp_path: Path) -> None:
    found = ncu.collect(program(tmp_path / "ncu", answers("ok", "", TABLE)), ["lts__t_bytes.sum"], LAUNCH)
    assert [kernel.name for kernel in found] == [KERNEL, "splitKreduce_kernel"]


def test_all_that_ncu_prints_is_shown_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wanted in ("0", "1"):
        monkeypatch.setenv("HGEMM_VERBOSE", wanted)
        ncu.collect(program(tmp_path / "ncu", answers("ok", "", TABLE)), ["lts__t_bytes.sum"], LAUNCH)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert ("31 passes" in printed.err and "--clock-control none" in printed.err) == (wanted == "1")


def test_the_process_finds_this_package_and_is_told_what_to_call(tmp_path: Path) -> None:
    said = tmp_path / "said"
    body = f"pathlib.Path({str(said)!r}).write_text(json.dumps([spec, os.environ['PYTHONPATH']]))\n"
    ncu.collect(program(tmp_path / "ncu", body + answers("ok", "", TABLE)), ["lts__t_bytes.sum"], LAUNCH)
    spec, path = json.loads(said.read_text())
    assert (spec["backend"], spec["case"]["shape"]["N"]) == ("cuda_tma", 512)
    assert (Path(path.split(os.pathsep)[0]) / "hgemm" / "profile").is_dir()


@pytest.mark.parametrize(
    ("status", "reason", "output", "message", "cause"),
    [
        ("ok", "", PERMISSION, "NVreg_RestrictProfilingToAdminUsers=0", "machine"),
        ("failed", "RuntimeError: CUDA error", PERMISSION, "--cap-add=SYS_ADMIN", "machine"),
        ("ok", "", LIBRARY, "NVIDIA_DRIVER_CAPABILITIES", "machine"),
        ("refused", "N must be a multiple of 8", "", "does not take this product: N must be", "refused"),
        ("wrong", "its error is 7 times the bound", TABLE, "wrong and was not profiled: its error", "wrong"),
        ("failed", "BuildError: no nvcc", "==ERROR== some\n", "the call failed: BuildError: no nvcc", "contestant"),
        ("ok", "", "==ERROR== The application returned an error code (11).\n", "returned an error code", "contestant"),
        ("ok", "", "==WARNING== No kernels were profiled.\n", "no counters: .*No kernels were", "contestant"),
        ("ok", "", "", "it printed nothing", "contestant"),
    ],
)
def test_each_way_to_fail_has_its_reason(
    tmp_path: Path, status: str, reason: str, output: str, message: str, cause: str
) -> None:
    with pytest.raises(NoCounters, match=message) as failure:
        ncu.collect(program(tmp_path / "ncu", answers(status, reason, output)), ["lts__t_bytes.sum"], LAUNCH)
    assert failure.value.cause == cause


def test_a_table_is_used_whatever_ncu_warns_of(tmp_path: Path) -> None:
    output = "==WARNING== Some permission or other\n" + TABLE
    assert ncu.collect(program(tmp_path / "ncu", answers("ok", "", output)), ["lts__t_bytes.sum"], LAUNCH)


def test_metrics_that_this_ncu_does_not_know_are_left_out(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    body = (
        f"with open({str(asked)!r}, 'a') as file: file.write(' '.join(metrics) + '\\n')\n"
        "answer.write_text(json.dumps({'status': 'ok', 'reason': ''}))\n"
        f"sys.stdout.write({UNKNOWN!r} if 'dram__bytes_read.sum' in metrics else {TABLE!r})"
    )
    names = ["lts__t_bytes.sum", "lts__t_bytes_other.sum", "dram__bytes_read.sum", "gpu__time_duration.sum"]
    assert ncu.collect(program(tmp_path / "ncu", body), names, LAUNCH)
    assert asked.read_text().split("\n")[:2] == [" ".join(names), "lts__t_bytes_other.sum gpu__time_duration.sum"]


def _ended(state: Path) -> bool:
    """Whether the process of /proc/PID/stat is gone, or waits for its parent to take note."""
    try:
        return state.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_hang_ends_with_all_that_ncu_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    body = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    with pytest.raises(NoCounters, match="did not end within 2 s"):
        ncu.collect(program(tmp_path / "ncu", body), ["lts__t_bytes.sum"], LAUNCH, limit=2)
    assert time.monotonic() - start < 30
    state = Path("/proc") / pid.read_text() / "stat"
    while not _ended(state):  # it was killed, and may take its time to die on a busy machine
        assert time.monotonic() - start < 30
        time.sleep(0.05)


def test_after_an_orderly_end_nothing_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "killpg", lambda group, signal: pytest.fail("the group may be another's by now"))
    assert ncu.collect(program(tmp_path / "ncu", answers("ok", "", TABLE)), ["lts__t_bytes.sum"], LAUNCH)


def test_a_program_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoCounters, match="ncu does not run") as failure:
        ncu.collect(tmp_path / "absent", ["lts__t_bytes.sum"], LAUNCH)
    assert failure.value.cause == "machine"


def test_the_version_is_what_it_states(tmp_path: Path) -> None:
    words = "NVIDIA (R) Nsight Compute Command Line Profiler\\nCopyright (c)\\nVersion 2025.3.1.0 (build 36398880)"
    assert ncu.version(program(tmp_path / "ncu", f"print('{words}')")) == "2025.3.1.0"
    assert ncu.version(program(tmp_path / "other", "print('hello')")) == ""
