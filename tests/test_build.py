"""Building: once for each source, flags and toolchain, whoever asks and however a build before it ended."""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import hgemm
from hgemm.cuda_kernels import build, cache, compilation, toolchain
from hgemm.cuda_kernels.build import BuildError
from hgemm.cuda_kernels.configs import FAMILIES, Unit

# A compiler whose runs are counted: it logs its arguments, takes its time, refuses text with "#error", and copies the
# source to the product.
COMPILER = """#!{python}
import json, os, re, sys, time
if sys.argv[1:] == ["--version"]:
    print("Cuda compilation tools, release 13.0, V" + os.environ.get("FAKE_VERSION", "13.0.88"))
    sys.exit()
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps([time.time(), sys.argv]) + "\\n")
time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
source = next(word for word in sys.argv if word.endswith(".cu"))
text = open(source).read()
if "#error" in text:
    print(f"{{source}}(1): error: #error directive: {{text.split('#error')[1].strip()}}", file=sys.stderr)
    sys.exit(2)
open(sys.argv[sys.argv.index("-o") + 1], "w").write(text)
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps([time.time(), "done"]) + "\\n")
"""


@dataclass(frozen=True)
class FakeUnit:
    name: str
    text: str
    family: str = "cp_async"

    def source(self):
        return self.text


class Compiler:
    """The log of the fake compiler."""

    def __init__(self, log: Path):
        self.log = log

    def _entries(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def commands(self):
        return [what for _, what in self._entries() if what != "done"]

    def most_at_a_time(self):
        running = most = 0
        for _, what in sorted(self._entries(), key=lambda entry: entry[0]):
            running += -1 if what == "done" else 1
            most = max(most, running)
        return most


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(folder))
    monkeypatch.setenv("HGEMM_CUDA_ARCHS", "90a")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return folder


@pytest.fixture
def compiler(tmp_path, cache_folder, monkeypatch):
    program = tmp_path / "toolkit" / "bin" / "nvcc"
    program.parent.mkdir(parents=True)
    program.write_text(COMPILER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return Compiler(tmp_path / "log")


def leftovers(folder: Path):
    return [path.name for path in folder.iterdir() if path.name.startswith(cache.STAGING_PREFIX)]


def test_a_text_is_compiled_when_first_asked_for_and_never_again(compiler, cache_folder):
    path = build.build_library("first", "text")
    assert path.read_text() == "text"
    assert path.is_relative_to(cache_folder)
    assert build.build_library("first", "text") == path
    assert len(compiler.commands()) == 1
    assert leftovers(cache_folder) == []


def test_the_command_names_architecture_headers_and_host_compiler(compiler, monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    build.build_library("command", "text")
    (words,) = compiler.commands()
    command = " ".join(words)
    assert "-gencode arch=compute_90a,code=sm_90a" in command
    assert "-std=c++20" in words
    assert f"-I{compilation.FOLDER}" in words
    assert "-ccbin g++" in command
    assert "-cudart static" in command
    assert "-lcuda" not in words


@pytest.mark.parametrize("change", ["text", "header", "architectures", "nvcc", "host compiler"])
def test_whatever_decides_the_result_asks_for_a_new_one(compiler, tmp_path, monkeypatch, change):
    headers = tmp_path / "headers"
    (headers / "deep").mkdir(parents=True)
    (headers / "outer.cuh").write_text('#include "deep/inner.cuh"\n')
    (headers / "deep" / "inner.cuh").write_text("// one\n")
    monkeypatch.setattr(compilation, "FOLDER", headers)
    text = '#include "outer.cuh"\n'
    before = build.build_library("changing", text)
    if change == "text":
        text += "// more\n"
    elif change == "header":
        (headers / "deep" / "inner.cuh").write_text("// two\n")
    elif change == "architectures":
        monkeypatch.setenv("HGEMM_CUDA_ARCHS", "90a;120f")
    elif change == "nvcc":
        monkeypatch.setenv("FAKE_VERSION", "13.0.99")
        toolchain._ask_version.cache_clear()
    else:
        other = tmp_path / "c++"
        other.write_text("#!/bin/sh\necho 'g++ 99.1.0'\n")
        other.chmod(0o755)
        monkeypatch.setenv("CXX", str(other))
    after = build.build_library("changing", text)
    toolchain._ask_version.cache_clear()
    assert after != before
    assert len(compiler.commands()) == 2


def test_where_the_sources_lie_does_not_matter(compiler, tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.cuh").write_text("// the same\n")
        monkeypatch.setattr(compilation, "FOLDER", tmp_path / name)
        build.build_library("moved", '#include "a.cuh"\n')
    assert len(compiler.commands()) == 1


def ask(text: str) -> str:
    return str(build.build_library("raced", text))


def test_of_several_processes_one_builds_and_the_others_wait(compiler, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "0.5")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        paths = pool.map(ask, ["the same"] * 4, chunksize=1)
    assert len(set(paths)) == 1
    assert Path(paths[0]).read_text() == "the same"
    assert len(compiler.commands()) == 1


def ask_slowly(text: str) -> None:
    os.setsid()
    os.environ["FAKE_SECONDS"] = "3"
    ask(text)


def test_a_killed_build_does_not_block_the_next(compiler, cache_folder):
    victim = multiprocessing.get_context("fork").Process(target=ask_slowly, args=("unfinished",), daemon=True)
    victim.start()
    deadline = time.monotonic() + 20
    while not compiler.commands():
        assert time.monotonic() < deadline, "the build did not start"
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert leftovers(cache_folder) != []
    begin = time.monotonic()
    assert Path(ask("unfinished")).read_text() == "unfinished"
    assert time.monotonic() - begin < 2.5  # it did not wait for the compiler that was left behind
    assert leftovers(cache_folder) == []


def test_waiting_is_reported_and_ends_with_the_holder_even_if_a_fork_has_the_lock_open(cache_folder):
    states = []
    cache_folder.mkdir()
    with cache.lock(cache_folder, "entry", lambda: None):
        child = multiprocessing.get_context("fork").Process(target=hold_lock, args=(cache_folder,), daemon=True)
        child.start()
        child.join(1)
        assert child.exitcode is None
    child.join(10)
    assert child.exitcode == 0
    with cache.lock(cache_folder, "entry", lambda: states.append("waited")):
        pass
    assert states == []


def hold_lock(folder: Path) -> None:
    waited = []
    with cache.lock(folder, "entry", lambda: waited.append(True)):
        sys.exit(0 if waited else 1)


def test_a_failed_build_shows_the_compilers_own_lines_and_leaves_nothing(compiler, cache_folder):
    with pytest.raises(
        BuildError, match=r"compiling refused failed \(13\.0\.88.*\n.*error: #error directive: not today"
    ) as info:
        build.build_library("refused", "#error not today")
    assert "#error directive: not today" in info.value.output
    assert leftovers(cache_folder) == []
    with pytest.raises(BuildError):
        build.build_library("refused", "#error not today")
    assert len(compiler.commands()) == 2  # a failure is not remembered: the cause may lie outside


def test_one_failure_does_not_lose_the_others(compiler, monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "1")
    units = [FakeUnit("good", "good"), FakeUnit("bad", "#error bad"), FakeUnit("fine", "fine")]
    with pytest.raises(BuildError) as info:
        build.build_units(units, ["90a"])
    assert "compiling bad failed" in str(info.value)
    assert "good" not in str(info.value)
    count = len(compiler.commands())
    good, fine = build.build_units([units[0], units[2]], ["90a"])
    assert (good.read_text(), fine.read_text()) == ("good", "fine")
    assert len(compiler.commands()) == count


def test_a_long_log_is_cut_down_to_its_errors():
    log = "\n".join([f"a.cu({line}): warning: unused" for line in range(100)] + ["a.cu(7): error: what is this"])
    assert compilation.error_lines(log) == "  a.cu(7): error: what is this"


@pytest.mark.parametrize("jobs", [1, 2])
def test_max_jobs_bounds_the_compilers_at_work(compiler, monkeypatch, jobs):
    monkeypatch.setenv("MAX_JOBS", str(jobs))
    monkeypatch.setenv("FAKE_SECONDS", "0.4")
    build.build_units([FakeUnit(f"unit{index}", f"text {index}") for index in range(3)], ["90a"])
    assert compiler.most_at_a_time() == jobs


def test_progress_counts_what_is_compiled(compiler):
    seen = []
    units = [FakeUnit(f"unit{index}", f"text {index}") for index in range(2)]
    build.build_units(units, ["90a"], progress=lambda *state: seen.append(state))
    assert seen[0] == (0, 2, "compiling")
    assert seen[-1] == (2, 2, "compiling")
    seen.clear()
    build.build_units(units, ["90a"], progress=lambda *state: seen.append(state))
    assert seen == []


def test_verbose_shows_the_command(compiler, monkeypatch, capfd):
    monkeypatch.setenv("HGEMM_VERBOSE", "1")
    build.build_library("shown", "text")
    assert "compute_90a" in capfd.readouterr().err


def test_a_cache_that_cannot_be_written_is_replaced_and_named(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match=r"cannot write the kernel cache .*file/cache .*HGEMM_CACHE_DIR"):
        path = build.build_library("elsewhere", "text")
    assert path.is_relative_to(cache.temporary_folder())
    assert build.build_library("elsewhere", "text") == path
    assert len(compiler.commands()) == 1


def test_a_temporary_folder_that_others_can_write_is_not_trusted(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    cache.temporary_folder().mkdir()
    cache.temporary_folder().chmod(0o777)
    with pytest.raises(BuildError, match=r"file/cache .*others can write it.*set HGEMM_CACHE_DIR"):
        build.build_library("untrusted", "text")
    assert compiler.commands() == []


def test_a_finished_build_is_found_in_a_cache_that_can_only_be_read(compiler, monkeypatch):
    path = build.build_library("readable", "text")
    monkeypatch.setattr(cache, "writable_folder", lambda: pytest.fail("nothing is to be written"))
    assert build.build_library("readable", "text") == path


def test_the_cache_follows_the_xdg_convention(monkeypatch):
    monkeypatch.delenv("HGEMM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.configured_folder() == Path("/somewhere/hgemm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.configured_folder() == Path("/home/someone/.cache/hgemm")


@pytest.mark.parametrize("variable", ["HGEMM_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_cache_in_the_home_of_nobody_is_named(monkeypatch, variable):
    monkeypatch.delenv("HGEMM_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, "~no-such-user/x")
    with pytest.raises(BuildError, match=f"{variable}='~no-such-user/x': no such user.*set HGEMM_CACHE_DIR"):
        cache.configured_folder()


def test_a_damaged_entry_is_built_again(compiler):
    path = build.build_library("damaged", "text")
    path.unlink()
    assert build.build_library("damaged", "text").read_text() == "text"


def test_without_ninja_nothing_is_compiled(compiler, monkeypatch):
    monkeypatch.setattr(toolchain, "_ninja_candidates", lambda: iter(()))
    with pytest.raises(BuildError, match="pip install ninja"):
        build.build_library("unbuilt", "text")
    assert compiler.commands() == []


def test_keys_tell_lists_of_parts_apart():
    assert cache.key("ab", "c") != cache.key("a", "bc")
    assert cache.key("a", "") != cache.key("a")


def test_importing_the_package_builds_nothing(cache_folder):
    assert hgemm.backends()["cuda_tma"].configs
    assert not cache_folder.exists()


@pytest.mark.nvcc
def test_nvccs_own_error_lines_are_shown(cache_folder):
    with pytest.raises(BuildError, match=r'error: identifier "undeclared" is undefined'):
        build.build_library("wrong", "int f() { return undeclared; }")


@pytest.mark.nvcc
def test_a_real_unit_builds_and_loads_without_a_driver(cache_folder):
    unit = Unit("cp_async", "bf16")
    loaded = build.load_unit(unit)
    assert loaded.configs == tuple(kernel.name for kernel in FAMILIES["cp_async"].configs)
    assert build.load_unit(unit) is loaded
