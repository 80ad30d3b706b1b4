"""A user's own kernel: the complete example of cuda_kernels/README.md, whose planted race must be found."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import hgemm
from hgemm.cuda_kernels.user_kernel import load
from hgemm.emulation import EmulatorError

README = Path(__file__).resolve().parents[1] / "cuda_kernels" / "README.md"
SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1", "random,seed=2")


@pytest.fixture
def example():
    return re.search(r"```cuda\n(.*?)```", README.read_text(), flags=re.S)[1]


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(-4, 5, shape, generator=generator).half() for shape in ((72, 136), (136, 80))]


def write(folder, text):
    path = folder / "mine.cu"
    path.write_text(text)
    return path


def repaired(example):
    fixed = example.replace("// ptx::barrier_sync();", "ptx::barrier_sync();  //")
    assert fixed != example
    return fixed


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_planted_race_is_found_at_its_line(tmp_path, example, operands, schedule):
    path = write(tmp_path, example)
    _, report = load(path).emulate(*operands, schedule=schedule)
    assert report.kinds == ("race",)
    copies = [event for event in report.events if event.operation == "cp_async"]
    assert copies
    for event in copies:
        assert event.file == str(path) and "cp_async" in example.splitlines()[event.line - 1]
        assert "released too early" in event.sentence


def test_the_readme_shows_the_report(tmp_path, example):
    shown = re.search(r"```\n(schedule lazy: .*?)```", README.read_text(), flags=re.S)[1]
    a, b = torch.ones(72, 136).half(), torch.ones(136, 80).half()
    _, report = load(write(tmp_path, example)).emulate(a, b, schedule="lazy")
    texts = [" ".join(text.split()) for text in (shown, str(report))]
    if shutil.which("addr2line") is None:
        texts = [re.sub(r" \(from [^)]*\)", "", text) for text in texts]
    # Lines of our own headers move; those of the example are part of what is shown.
    shown, said = (re.sub(r"(layout|mainloop)\.cuh:\d+", r"\1.cuh", text) for text in texts)
    assert shown == said


@pytest.mark.skipif(shutil.which("addr2line") is None, reason="addr2line, of the binutils, is not installed")
def test_a_fault_inside_a_header_names_the_callers_line(tmp_path, example, operands):
    _, report = load(write(tmp_path, example)).emulate(*operands, schedule="lazy")
    loads = [event for event in report.events if event.operation.startswith("ldmatrix")]
    assert loads
    for event in loads:
        file, line = event.callers[-1].split(":")
        assert file == "mine.cu" and "warp_tile.load" in example.splitlines()[int(line) - 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_repaired_kernel_is_silent_and_right(tmp_path, example, operands, dtype):
    kernel = load(write(tmp_path, repaired(example)))
    a, b = (operand.to(dtype) for operand in operands)
    for schedule in SCHEDULES:
        product, report = kernel.emulate(a, b, schedule=schedule)
        assert report.clean, report
        assert torch.equal(product, (a.double() @ b.double()).to(dtype))
    assert torch.equal(kernel(a, b), product)


def test_calling_a_faulty_kernel_raises_the_report(tmp_path, example, operands):
    with pytest.raises(EmulatorError, match="released too early") as caught:
        load(write(tmp_path, example))(*operands)
    assert caught.value.report.kinds == ("race",)


def test_an_edited_file_is_compiled_anew(tmp_path, example, operands):
    kernel = load(write(tmp_path, example))
    assert not kernel.emulate(*operands)[1].clean
    write(tmp_path, repaired(example))
    assert kernel.emulate(*operands)[1].clean


def test_headers_beside_the_file_are_found_and_followed(tmp_path, example, operands):
    barrier = "#define AFTER_THE_TILE {}\n"
    (tmp_path / "mine.h").write_text(barrier.format("ptx::barrier_sync()"))
    text = '#include "mine.h"\n' + example.replace("// ptx::barrier_sync();", "AFTER_THE_TILE;  //")
    kernel = load(write(tmp_path, text))
    assert kernel.emulate(*operands)[1].clean
    (tmp_path / "mine.h").write_text(barrier.format(""))
    assert not load(tmp_path / "mine.cu").emulate(*operands)[1].clean


def test_it_is_a_backend_like_others(tmp_path, example, operands):
    a, b = operands
    kernel = load(write(tmp_path, repaired(example)))
    hgemm.register_backend("mine", kernel.run)
    assert torch.equal(hgemm.matmul(a, b, backend="mine"), (a.double() @ b.double()).half())


def test_what_the_kernel_refuses_is_an_unsupported_problem(tmp_path, example):
    kernel = load(write(tmp_path, example))
    with pytest.raises(hgemm.UnsupportedProblem, match="multiples of 8"):
        kernel.emulate(torch.ones(8, 9).half(), torch.ones(9, 8).half())
    with pytest.raises(hgemm.UnsupportedProblem, match="row-major"):
        kernel.emulate(torch.ones(8, 8).half().t()[:, ::2], torch.ones(4, 8).half())


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.cu"):
        load(tmp_path / "nowhere.cu")


def test_a_kernel_that_does_not_compile_shows_the_compilers_words(tmp_path, example, operands):
    from hgemm.cuda_kernels.toolchain import BuildError

    with pytest.raises(BuildError, match=r"mine\.cu:\d+.*warp_tile_"):
        load(write(tmp_path, example.replace("warp_tile.multiply", "warp_tile_.multiply"))).emulate(*operands)
