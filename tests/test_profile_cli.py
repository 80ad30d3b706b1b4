"""python -m hgemm.profile from end to end without a GPU: its forms, its exit status, and each reason it gives."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from ncu_output import SWIZZLED, raw_page

import hgemm
from hgemm import measured
from hgemm.config import Config
from hgemm.cost import Size
from hgemm.profile import __main__ as profile
from hgemm.profile import ncu
from hgemm.profile.launch import Launch
from hgemm.profile.ncu import KernelCounters, NoCounters
from hgemm.profile.static import Gpu, NoFacts

pytestmark = pytest.mark.usefixtures("own_cache")

TRITON = "triton:128x128x32_s4_w64x32"
QUICK = ("--mnk", "4096,4096,4096", "--arch", "120f", "--backend", TRITON, "torch")

Collect = Callable[[Launch], list[KernelCounters]]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Collect], None]:
    """As if there were a device and an ncu, whose answers are made up."""

    def pretend(collect: Collect) -> None:
        def answer(program: Path, metrics: Sequence[str], launch: Launch) -> list[KernelCounters]:
            return collect(launch)

        monkeypatch.setattr(profile, "_device", lambda: 0)
        monkeypatch.setattr(profile, "_present", lambda: [Gpu("H200", "90a", 132)])
        monkeypatch.setattr(ncu, "find", lambda: Path("/opt/ncu"))
        monkeypatch.setattr(ncu, "version", lambda program: "2025.3.1.0")
        monkeypatch.setattr(ncu, "collect", answer)

    return pretend


def swizzled(launch: Launch) -> list[KernelCounters]:
    return ncu.parse(raw_page([("matmul", SWIZZLED)]))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = profile.main(arguments)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise NoCounters(profile.NO_GPU, "machine")

    monkeypatch.setattr(profile, "_device", missing)
    monkeypatch.setattr(profile, "_present", list)


@pytest.mark.usefixtures("no_device")
def test_json_without_a_gpu_holds_the_static_half_and_says_why_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *QUICK, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["schema"], found["schema_version"]) == ("hgemm-profile", 1)
    assert found["case"]["compulsory_bytes"] == 3 * 2 * 4096 * 4096
    assert found["counters"] == {"ncu": None, "gpu": None, "note": profile.NO_GPU}
    torch_row, triton = found["contestants"]
    assert (torch_row["backend"], torch_row["facts"]) == ("torch", [])
    assert "closed library" in torch_row["no_facts"]["RTX 5090"]
    (facts,) = triton["facts"]
    assert (facts["blocks"], facts["limited_by"], facts["tiles"], facts["at_once"]) == (
        *(2, "registers, shared memory"),
        *(1024, 340),
    )
    assert facts["code"]["loop"]["counts"]["HMMA"] == 32
    assert facts["code"]["ptx"]["mma.sync"] == 32
    assert facts["sentence"].startswith("room for 2 on a multiprocessor")
    assert {"registers", "waves", "HMMA/LDSM", "tensor pipe"} <= set(found["meanings"])


@pytest.mark.usefixtures("no_device")
def test_where_nothing_is_known_no_number_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--backend", "torch", "--mnk", "8x64,64,64")
    assert status == 0
    assert out.startswith("8 x 64 x 64 x 64 bf16 nn\n")
    for board in ("H200 (sm_90a", "RTX 5090 (sm_120f"):
        assert f"Resources on {board}" in out
    assert "What the numbers mean" not in out


def test_a_product_beyond_every_device_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(capsys, "--backend", TRITON, "--mnk", "99999999999,99999999999,99999999999")
    assert end.value.code == 2
    assert "no device holds a product of 2e+33 operations" in capsys.readouterr().err


@pytest.mark.usefixtures("no_device")
def test_the_tables_explain_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *QUICK)
    assert status == 0
    assert "Resources on RTX 5090 (sm_120f, 170 multiprocessors)" in out
    for heading in ("registers", "waves", "HMMA/LDSM", "limited by", "room"):
        assert f"\n  {heading}: " in out
    assert "torch: no static facts: a closed library" in out
    assert f"No counters: {profile.NO_GPU}" in out


@pytest.mark.usefixtures("no_device")
def test_required_counters_that_cannot_be_had_are_an_error_and_off_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = run(capsys, *QUICK, "--counters", "required")
    assert status == 2
    assert "Resources on" in out  # the static half is there all the same
    assert f"--counters required: {profile.NO_GPU}" in err
    status, out, err = run(capsys, *QUICK, "--counters", "off")
    assert (status, err) == (0, "")
    assert "No counters" not in out


@pytest.mark.parametrize(("wanted", "expected"), [("auto", 0), ("required", 2)])
def test_a_driver_that_refuses_is_asked_once(
    counting: Callable[[Collect], None], capsys: pytest.CaptureFixture[str], wanted: str, expected: int
) -> None:
    asked: list[str] = []

    def refuse(launch: Launch) -> list[KernelCounters]:
        asked.append(launch.backend)
        raise NoCounters(ncu.PERMISSION, "machine")

    counting(refuse)
    status, out, _ = run(capsys, *QUICK, "--counters", wanted)
    assert (status, asked) == (expected, ["torch"])
    assert "NVreg_RestrictProfilingToAdminUsers=0" in out


def test_counters_stand_in_tables_and_in_json(
    counting: Callable[[Collect], None], capsys: pytest.CaptureFixture[str]
) -> None:
    counting(swizzled)
    status, out, _ = run(capsys, *QUICK, "--counters", "required")
    assert status == 0
    assert "What one call did on H200 (ncu 2025.3.1.0)" in out
    assert "72.0%" in out  # the tensor pipe
    assert "ldmatrix took 4.00 wavefronts each where 4 are needed: no bank conflicts" in out
    assert "math_pipe_throttle 50%" in out
    assert "math_pipe_throttle: ready, and the tensor cores are busy" in out
    assert "100.7 MB" in out and "67.1 MB" in out  # compulsory, and read from DRAM
    found = json.loads(run(capsys, *QUICK, "--json")[1])
    assert found["counters"] == {"ncu": "2025.3.1.0", "gpu": "H200", "note": None}
    counted = found["contestants"][1]["counted"]
    assert (counted["kernel"], counted["values"]["tensor pipe"]) == ("matmul", 71.98)
    ldmatrix = {"kind": "ldmatrix", "wavefronts": 4000.0, "least": 4000.0, "conflicts": 0.0, "ratio": 1.0}
    assert counted["shared"][0] == ldmatrix
    assert counted["stalls"][0]["reason"] == "math_pipe_throttle"


@pytest.mark.parametrize(
    ("cause", "expected"), [("wrong", 1), ("refused", 0), ("contestant", 2)], ids=["wrong", "refused", "failed"]
)
def test_what_one_contestant_lacks_does_not_stop_the_others(
    counting: Callable[[Collect], None], capsys: pytest.CaptureFixture[str], cause: ncu.Cause, expected: int
) -> None:
    def collect(launch: Launch) -> list[KernelCounters]:
        if launch.backend == "torch":
            raise NoCounters("its own reason", cause)
        return swizzled(launch)

    counting(collect)
    status, out, err = run(capsys, *QUICK, "--counters", "required")
    assert status == expected
    assert "torch: its own reason" in out
    assert "72.0%" in out
    assert ("torch: its own reason" in err) == (expected == 2)


def test_the_call_is_the_case_that_was_asked_for(
    counting: Callable[[Collect], None], capsys: pytest.CaptureFixture[str]
) -> None:
    launches: list[Launch] = []

    def collect(launch: Launch) -> list[KernelCounters]:
        launches.append(launch)
        return swizzled(launch)

    counting(collect)
    run(capsys, "--mnk", "256,512,128", "--dtype", "fp16", "--layout", "nt", "--arch", "90a", "--backend", TRITON)
    (launch,) = launches
    assert (launch.backend, launch.config) == ("triton", "128x128x32_s4_w64x32")
    case = launch.case
    assert (case.shape.M, case.shape.N, case.shape.K, case.dtype, case.layout) == (256, 512, 128, "fp16", "nt")


def test_what_a_file_registers_is_profiled_too(
    counting: Callable[[Collect], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    launches: list[Launch] = []

    def collect(launch: Launch) -> list[KernelCounters]:
        launches.append(launch)
        return swizzled(launch)

    counting(collect)
    file = tmp_path / "mine.py"
    file.write_text("import hgemm\nhgemm.register_backend('mine', lambda a, b, out, config: None, configs=['small'])\n")
    status, out, _ = run(capsys, "--arch", "90a", "--backend", "torch", "--contestant", str(file))
    assert status == 0
    assert [(launch.backend, launch.config, launch.files) for launch in launches] == [
        ("torch", None, (str(file),)),
        ("mine", "small", (str(file),)),
    ]
    assert "mine small: no static facts: how mine is compiled is not known here" in out


@pytest.mark.usefixtures("no_device")
def test_markdown_has_a_row_for_each_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *QUICK, "--markdown")
    assert status == 0
    assert "| triton | 128x128x32_s4_w64x32 | 119 | 0 | 49,176 | 256 | 2 | 16 | 33.3% | 2/2/6/24 |" in out
    headings = [line for line in out.splitlines() if line.startswith("| backend |")]
    marks = [line for line in out.splitlines() if line.startswith("| --- |")]
    assert [line.count("|") for line in headings] == [line.count("|") for line in marks]
    assert len(headings) >= 3


@pytest.mark.usefixtures("no_device")
def test_tiles_are_dealt_to_the_board_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--backend", "torch", "--counters", "off", "--json", "--gpu", "rtx 5060")
    gpus = json.loads(run(capsys, *arguments)[1])["gpus"]
    assert [(gpu["title"], gpu["multiprocessors"]) for gpu in gpus] == [("H200", 132), ("RTX 5060", 30)]
    only = json.loads(run(capsys, *arguments, "--arch", "120f")[1])["gpus"]
    assert [gpu["title"] for gpu in only] == ["RTX 5060"]


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "cuda_tm"), "no backend matches 'cuda_tm'"),
        (("--mnk", "1,2"), "a shape is three positive integers"),
        (("--gpu", "RTX 9090"), "'RTX 9090' is not in the table of devices; there are H200"),
        (("--arch", "90a,75"), "--arch '75': the table of devices has no board of it"),
        (("--dtype", "fp32"), "invalid choice"),
        (("--contestant", "/nowhere/mine.py"), "--contestant /nowhere/mine.py: No such file"),
    ],
)
def test_words_that_mean_nothing_are_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        profile.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_there_is_no_default_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        profile.main(("--backend", "triton:default"))
    said = capsys.readouterr().err
    assert "triton:default: without a CUDA device there is no default to choose; name a board with --gpu, or a" in said
    for config in hgemm.backends()["triton"].configs:
        assert config in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
@pytest.mark.usefixtures("no_device")
def test_the_default_is_chosen_for_the_board_that_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*arguments: object) -> None:
        raise NoFacts("not what is tried here")

    monkeypatch.setattr(profile, "facts", compiled)
    patterns = ("--backend", "cuda_tma:default", "triton:default", "cublas:default", "--json", "--counters", "off")

    def chosen(*boards: str) -> dict[str, list[str | None]]:
        named = [word for board in boards for word in ("--gpu", board)]
        found: dict[str, list[str | None]] = {}
        for row in json.loads(run(capsys, *patterns, *named)[1])["contestants"]:
            found.setdefault(row["backend"], []).append(row["config"])
        return found

    h200, rtx = chosen("H200"), chosen("RTX 5060")
    assert h200["cublas"] == rtx["cublas"] == [None]
    for name in ("cuda_tma", "triton"):
        (large,), (small,) = h200[name], rtx[name]
        assert large and small
        # A block of an RTX 5060 may have 101,376 bytes of shared memory, one of an H200 twice as many.
        # Triton's mma.sync has a step's operands in registers: S stages are S - 1 buffers there.
        buffers = Config.parse(small).stages - (name == "triton")
        assert operand_bytes(small, buffers) <= 101_376
        assert 101_376 < operand_bytes(large, Config.parse(large).stages) <= 232_448
        assert set(chosen("H200", "RTX 5060")[name]) == {large, small}
        # As matmul does: by what was measured, where the very product was.
        size = Size(4096, 4096, 4096)
        assert large == measured.configuration("NVIDIA H200", name, size)


def operand_bytes(name: str, buffers: int) -> int:
    """Of the buffers of A and B, two bytes an element."""
    config = Config.parse(name)
    return buffers * (config.tile_m + config.tile_n) * config.tile_k * 2
