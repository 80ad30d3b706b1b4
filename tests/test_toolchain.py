"""Finding nvcc, a C++ compiler and ninja, and choosing architectures: where, in which order, and the reasons if not."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

import pytest
import torch

from hgemm.cuda_kernels import architectures, toolchain
from hgemm.cuda_kernels.toolchain import BuildError, Tool


def install(path: Path, answer: str) -> Path:
    """A program that answers `--version`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def install_nvcc(folder: Path, version: str = "13.0.88") -> Path:
    release = version.rsplit(".", 1)[0]
    return install(folder / "bin" / "nvcc", f"Cuda compilation tools, release {release}, V{version}")


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """No variable set, nothing but the shell on the PATH, no toolkit in the usual folder, no wheels."""
    for variable in ("CUDA_HOME", "CXX", "HGEMM_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(toolchain, "USUAL_CUDA_HOME", tmp_path / "usual")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """nvcc as the wheels install it, with packages whose versions a test can change."""
    home = tmp_path / "site-packages" / "nvidia" / "cu13"
    install_nvcc(home)
    (home / "lib").mkdir()
    (home / "lib" / "libcudart_static.a").touch()
    spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(home.parent)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: spec if name == "nvidia" else None)
    versions = dict.fromkeys(toolchain.NVCC_WHEELS, "13.0.88")
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    return home, versions


def test_nvcc_is_looked_for_in_this_order(tmp_path, monkeypatch, wheels):
    home, _ = wheels
    assert toolchain.find_nvcc().command == (str(home / "bin" / "nvcc"),)
    usual = install_nvcc(tmp_path / "usual")
    assert toolchain.find_nvcc().command == (str(usual),)
    on_path = install(tmp_path / "path" / "nvcc", "release 13.1, V13.1.5")
    assert toolchain.find_nvcc().command == (str(on_path),)
    named = install_nvcc(tmp_path / "named", "12.9.1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "named"))
    assert toolchain.find_nvcc() == Tool((str(named),), "12.9.1", "CUDA_HOME")
    assert toolchain.find_nvcc().release == (12, 9)


def test_without_nvcc_the_message_names_both_ways_out():
    with pytest.raises(BuildError, match=r"no nvcc: .*pip install 'hgemm\[toolkit\]'.*CUDA_HOME"):
        toolchain.find_nvcc()


def test_a_wrong_cuda_home_is_not_passed_over(tmp_path, monkeypatch):
    install_nvcc(tmp_path / "usual")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(BuildError, match=r"CUDA_HOME=.*nowhere has no bin/nvcc.*unset it"):
        toolchain.find_nvcc()


def test_an_old_nvcc_is_passed_over_or_refused_with_both_versions(tmp_path, monkeypatch):
    old = install(tmp_path / "path" / "nvcc", "release 11.8, V11.8.89")
    with pytest.raises(BuildError, match=r"nvcc 11\.8\.89 .* too old: .* 12\.0 or newer"):
        toolchain.find_nvcc()
    usual = install_nvcc(tmp_path / "usual")
    assert toolchain.find_nvcc().command == (str(usual),)
    (tmp_path / "named" / "bin").mkdir(parents=True)
    old.rename(tmp_path / "named" / "bin" / "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "named"))
    with pytest.raises(BuildError, match="too old"):
        toolchain.find_nvcc()


def test_an_nvcc_that_does_not_run_is_reported(tmp_path):
    broken = install_nvcc(tmp_path / "usual")
    broken.write_text("#!/bin/sh\necho 'libfoo.so is missing' >&2\nexit 127\n")
    with pytest.raises(BuildError, match=r"nvcc --version does not state a version: 'libfoo\.so is missing'"):
        toolchain.find_nvcc()


def test_an_updated_nvcc_is_asked_again(tmp_path):
    nvcc = install_nvcc(tmp_path / "usual", "13.0.88")
    assert toolchain.find_nvcc().version == "13.0.88"
    install_nvcc(tmp_path / "usual", "13.1.80")
    os.utime(nvcc, ns=(0, nvcc.stat().st_mtime_ns + 1_000_000))
    assert toolchain.find_nvcc().version == "13.1.80"


def test_wheels_need_to_be_told_where_their_libraries_are(wheels):
    home, _ = wheels
    assert toolchain.find_nvcc().flags == (f"-L{home / 'lib'}",)


def test_wheels_of_different_releases_are_refused_with_the_pins_to_install(wheels):
    _, versions = wheels
    versions["nvidia-nvvm"] = "13.5.37"
    with pytest.raises(BuildError, match=r"nvidia-nvvm 13\.5.*pip install 'nvidia-nvvm==13\.0\.\*'"):
        toolchain.find_nvcc()


def test_kernels_are_built_on_linux_only(tmp_path, monkeypatch):
    install_nvcc(tmp_path / "usual")
    monkeypatch.setattr(toolchain.sys, "platform", "darwin")
    with pytest.raises(BuildError, match=r"Linux .*darwin"):
        toolchain.find_nvcc()


def test_the_compiler_is_cxx_else_the_first_on_the_path(tmp_path, monkeypatch):
    clang = install(tmp_path / "path" / "clang++", "clang version 18.1.3")
    assert toolchain.find_cxx() == Tool((str(clang),), "18.1.3", "PATH")
    gcc = install(tmp_path / "path" / "g++", "g++ (Debian 12.2.0-14) 12.2.0")
    assert toolchain.find_cxx() == Tool((str(gcc),), "12.2.0", "PATH")
    install(tmp_path / "path" / "ccache", "g++ (GCC) 14.1.0")
    monkeypatch.setenv("CXX", "ccache g++")
    assert toolchain.find_cxx() == Tool(("ccache", "g++"), "14.1.0", "CXX")
    monkeypatch.setenv("CXX", "g++-99")
    with pytest.raises(BuildError, match=r"CXX='g\+\+-99' names no program"):
        toolchain.find_cxx()


def test_ninja_may_be_on_the_path_alone(tmp_path):
    ninja = install(tmp_path / "path" / "ninja", "1.13.2.git.kitware.jobserver-pipe-1")
    assert toolchain.find_ninja() == Tool((str(ninja),), "1.13.2", "PATH")


def test_describe_gives_a_reason_for_each_tool_that_is_missing(tmp_path):
    install_nvcc(tmp_path / "usual")
    described = toolchain.describe()
    assert described["nvcc"].version == "13.0.88"
    assert "apt-get install g++" in described["C++ compiler"]
    assert "pip install ninja" in described["ninja"]


@pytest.mark.parametrize(
    ("capability", "built"),
    [((8, 0), "80"), ((8, 9), "89"), ((9, 0), "90a"), ((10, 0), "100"), ((12, 0), "120f"), ((12, 1), "120f")],
)
def test_each_device_has_an_architecture_that_runs_on_it(capability, built):
    assert architectures.of_capability(capability) == built
    assert architectures.runs_on(built, capability)


def test_machine_code_runs_within_its_family_and_no_further():
    runs = {
        name: [
            capability
            for capability in ((8, 0), (8, 6), (9, 0), (12, 0), (12, 1))
            if architectures.runs_on(name, capability)
        ]
        for name in ("80", "86", "90a", "120a", "120f", "121")
    }
    assert runs == {
        "80": [(8, 0), (8, 6)],
        "86": [(8, 6)],
        "90a": [(9, 0)],
        "120a": [(12, 0)],
        "120f": [(12, 0), (12, 1)],
        "121": [(12, 1)],
    }


def test_architectures_without_any_hint_are_hopper_and_geforce_blackwell():
    assert architectures.selected() == ("90a", "120f")


def test_architectures_of_the_devices_present(monkeypatch):
    capabilities = [(8, 6), (12, 0), (12, 1)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
    assert architectures.selected() == ("86", "120f")
    assert architectures.selected(minimum=(9, 0)) == ("120f",)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("90a;120f", ("90a", "120f")),
        ("86, 90a", ("86", "90a")),
        ("sm_89", ("89",)),
        ("8.0 8.6 9.0+PTX", ("80", "86", "90a")),
        ("12.0;12.0a", ("120f", "120a")),
        ("7.5 8.0 9.0 9.0", ("80", "90a")),
    ],
)
def test_both_spellings_of_architectures_are_read(monkeypatch, text, chosen):
    for variable in ("TORCH_CUDA_ARCH_LIST", "HGEMM_CUDA_ARCHS"):
        monkeypatch.setenv(variable, text)
        assert architectures.selected() == chosen
        monkeypatch.setenv(variable, "")


def test_our_variable_comes_before_torchs(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    monkeypatch.setenv("HGEMM_CUDA_ARCHS", "120f")
    assert architectures.selected() == ("120f",)


@pytest.mark.parametrize("text", ["Hopper", "90a;x", "9", "90b"])
def test_what_is_no_architecture_is_named(monkeypatch, text):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", text)
    with pytest.raises(
        BuildError, match=rf"TORCH_CUDA_ARCH_LIST: '{text.split(';')[-1]}' is no architecture; .*90a;120f"
    ):
        architectures.selected()


def test_a_list_with_nothing_for_the_kernels_is_refused(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;8.6")
    with pytest.raises(BuildError, match=r"TORCH_CUDA_ARCH_LIST gives 80, 86, and .* 9\.0 or newer"):
        architectures.selected(minimum=(9, 0))


def test_a_list_that_leaves_out_the_device_is_noticed(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;12.0")
    assert architectures.not_covered((12, 1)) is None
    assert "add 90a to HGEMM_CUDA_ARCHS" in architectures.not_covered((9, 0))


def test_geforce_blackwell_needs_a_newer_nvcc_than_hopper():
    architectures.check_toolkit(("90a",), Tool(("nvcc",), "12.8.0", "PATH"))
    architectures.check_toolkit(("120f",), Tool(("nvcc",), "12.9.0", "PATH"))
    with pytest.raises(BuildError, match=r"120f needs nvcc 12\.9 or newer, found 12\.8\.93 \(PATH: nvcc\)"):
        architectures.check_toolkit(("90a", "120f"), Tool(("nvcc",), "12.8.93", "PATH"))


def test_a_driver_older_than_the_toolkit_is_noticed_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(architectures, "driver_release", lambda: (12, 8))
    architectures.check_toolkit(("90a",), Tool(("nvcc",), "12.9.1", "PATH"))
    with pytest.raises(BuildError, match=r"makes programs for CUDA 13, and the driver knows CUDA 12 at most"):
        architectures.check_toolkit(("90a",), Tool(("nvcc",), "13.0.88", "PATH"))


def test_gencode_asks_for_machine_code_of_exactly_the_target():
    assert architectures.gencode(("90a",)) == ("-gencode", "arch=compute_90a,code=sm_90a")
