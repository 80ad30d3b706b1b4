"""The registry: the ladder in its order, look-up by name, and backends of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import hgemm
from hgemm.backends import Backends, Properties, find, get, register_backend
from hgemm.config import Config
from hgemm.problem import Problem

LADDER = (
    "torch",
    "cublas",
    "cublaslt",
    "cuda_cp_async",
    "cuda_tma",
    "triton_pointer",
    "triton",
    "triton_mma_sync",
    "triton_gluon",
)


def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: str | None) -> None:
    """One line about it.

    And more.
    """
    out.copy_(a.double() @ b.double())


def test_the_ladder_in_its_order() -> None:
    assert hgemm.backends().names == LADDER
    for record in hgemm.backends():
        assert record.idea
        assert "\n" not in record.idea
        assert record.properties.accumulator == "float32"


def test_every_configuration_has_a_name_of_the_grammar() -> None:
    for record in hgemm.backends():
        assert [Config.parse(name).name for name in record.configs] == list(record.configs)
        assert len(set(record.configs)) == len(record.configs)
    assert {"128x128x32_s2_w64x32", "128x128x32_s3_w64x32"} <= set(hgemm.backends()["cuda_cp_async"].configs)
    assert {"128x128x64_s3_w64x32", "128x128x32_s3_w64x32"} <= set(hgemm.backends()["cuda_tma"].configs)
    assert {"128x128x32_s2_w64x32", "128x128x32_s3_w64x32"} <= set(hgemm.backends()["triton_pointer"].configs)
    assert hgemm.backends()["torch"].configs == ()


def test_a_sequence_indexed_by_position_name_and_slice() -> None:
    records = hgemm.backends()
    assert len(records) == len(LADDER)
    assert records[0] is records["torch"] is records[-len(LADDER)]
    assert records[1:3].names == ("cublas", "cublaslt")
    assert isinstance(records[1:3], Backends)
    assert records["triton"] in records
    assert "triton_pointer" in repr(records)
    with pytest.raises(IndexError):
        records[len(LADDER)]
    with pytest.raises(KeyError, match="did you mean 'triton'"):
        records["tritn"]


def test_get_names_what_there_is() -> None:
    assert get("cuda_tma") is find("cuda_tma") is hgemm.backends()["cuda_tma"]
    assert find("wgmma") is None
    with pytest.raises(ValueError) as caught:
        get("cuda_tam")
    assert "'cuda_tam'" in str(caught.value)
    assert "did you mean 'cuda_tma'?" in str(caught.value)
    for name in ("auto", *LADDER):
        assert name in str(caught.value)


def test_availability_comes_with_its_reason() -> None:
    for record in hgemm.backends():
        assert record.available == (record.reason == "")
        for device_type in ("cuda", "cpu"):
            assert record.available_on(device_type) == (record.unavailable(device_type) is None)
    assert hgemm.backends()["torch"].available_on("cpu")
    assert not hgemm.backends()["cublas"].available_on("cpu")
    if not torch.cuda.is_available():
        assert not any(record.available_on("cuda") for record in hgemm.backends())


def test_a_backend_of_ones_own() -> None:
    record = hgemm.register_backend("mine", multiply, configs=("small", "large"))
    assert hgemm.backends().names == (*LADDER, "mine")
    assert hgemm.backends()["mine"] is record is get("mine")
    assert record.available
    assert record.idea == "One line about it."
    assert record.configs == ("small", "large")
    a, b = torch.randn(5, 8).half(), torch.randn(8, 3).half()
    problem = Problem.from_tensors(a, b)
    assert record.choose(problem) == "small"
    assert record.accepts(problem, None) is None
    assert record.properties == Properties(False, False, "float32", True)
    expected = (a.double() @ b.double()).half()
    assert torch.equal(hgemm.matmul(a, b, backend="mine"), expected)


def test_ones_own_rule_and_properties() -> None:
    declared = Properties(deterministic=True)
    record = register_backend(
        "mine",
        multiply,
        accepts=lambda problem, config: f"M is {problem.M}" if problem.M > 4 else None,
        properties=declared,
    )
    assert record.properties is declared
    assert hgemm.matmul(torch.ones(4, 8).half(), torch.ones(8, 8).half(), backend="mine").eq(8).all()
    with pytest.raises(hgemm.UnsupportedProblem, match=r"'mine' cannot .* M is 5"):
        hgemm.matmul(torch.ones(5, 8).half(), torch.ones(8, 8).half(), backend="mine")


def test_the_configuration_reaches_the_function() -> None:
    seen = []

    def record_config(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: str | None) -> None:
        seen.append(config)

    hgemm.register_backend("mine", record_config, configs=["small", "large"])
    a = torch.ones(8, 8).half()
    hgemm.matmul(a, a, backend="mine")
    hgemm.matmul(a, a, backend="mine", config="large")
    hgemm.matmul(a, a, backend="mine")
    assert seen == ["small", "large", "small"]


def test_registering_again_replaces_also_for_calls_seen_before() -> None:
    a = torch.ones(8, 8).half()
    hgemm.register_backend("mine", lambda a, b, out, config: torch.full(out.shape, 1.0, out=out))
    assert hgemm.matmul(a, a, backend="mine").eq(1).all()
    hgemm.register_backend("mine", lambda a, b, out, config: torch.full(out.shape, 2.0, out=out))
    assert hgemm.matmul(a, a, backend="mine").eq(2).all()
    assert hgemm.backends().names == (*LADDER, "mine")


@pytest.mark.parametrize("name", ["auto", *LADDER])
def test_names_of_the_package_are_taken(name: str) -> None:
    with pytest.raises(ValueError, match="under another"):
        hgemm.register_backend(name, multiply)


@pytest.mark.parametrize("name", ["", "my backend", "1st", "a:b", "a/b"])
def test_a_name_is_a_word(name: str) -> None:
    with pytest.raises(ValueError, match="a backend's name is"):
        hgemm.register_backend(name, multiply)


def test_what_cannot_be_called_is_refused() -> None:
    nothing: Any = "a string"
    with pytest.raises(TypeError, match="fn must be a function, found str"):
        hgemm.register_backend("mine", nothing)
    with pytest.raises(TypeError, match="accepts must be a function, found str"):
        hgemm.register_backend("mine", multiply, accepts=nothing)
    with pytest.raises(TypeError, match="sequence of names"):
        hgemm.register_backend("mine", multiply, configs="small")
    for name in (None, 5):
        with pytest.raises(TypeError, match="name must be a string, found"):
            hgemm.register_backend(name, multiply)  # type: ignore[arg-type]
    for configs in (("small", 5), (None,), ("",)):
        with pytest.raises(TypeError, match="configs must be names, found"):
            hgemm.register_backend("mine", multiply, configs=configs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"configs must be names without control characters, found '\\x1b\[31m'"):
        hgemm.register_backend("mine", multiply, configs=("small", "\x1b[31m"))
    with pytest.raises(ValueError, match="configs must differ, found 'small' 2 times"):
        hgemm.register_backend("mine", multiply, configs=("small", "large", "small"))
    with pytest.raises(TypeError, match="properties must be a Properties, found dict"):
        hgemm.register_backend("mine", multiply, properties={})  # type: ignore[arg-type]
    assert find("mine") is None


@pytest.mark.parametrize("answer", [True, False, "", 0])
def test_a_rule_is_text_or_none(answer: Any) -> None:
    hgemm.register_backend("mine", multiply, accepts=lambda problem, config: answer)
    with pytest.raises(TypeError, match=r"accepts\(\) of backend 'mine' returned .*; return the rule broken"):
        hgemm.matmul(torch.ones(8, 8).half(), torch.ones(8, 8).half(), backend="mine")


def test_a_rule_that_fails_spoils_no_other_refusal() -> None:
    def fails(problem: Problem, config: str | None) -> str | None:
        raise LookupError("a rule of ours")

    hgemm.register_backend("fails", multiply, accepts=fails)
    hgemm.register_backend("mine", multiply, accepts=lambda problem, config: "not today")
    a = torch.ones(8, 8).half()
    with pytest.raises(hgemm.UnsupportedProblem, match="not today") as caught:
        hgemm.matmul(a, a, backend="mine")
    assert "fails" not in str(caught.value)
    with pytest.raises(LookupError, match="a rule of ours"):
        hgemm.matmul(a, a, backend="fails")


def test_out_is_written_not_resized() -> None:
    a = torch.ones(8, 8).half()
    for resize in (lambda out: out.resize_(4, 4), lambda out: out.t_(), lambda out: out.set_(torch.ones(8, 8).half())):
        hgemm.register_backend("mine", lambda a, b, out, config, resize=resize: resize(out))
        if resize(torch.ones(8, 8).half()).shape == (8, 8):
            out = torch.empty(8, 16).half()[:, :8]
            with pytest.raises(ValueError, match="'mine' must write into out as it is"):
                hgemm.matmul(a, a, backend="mine", out=out)
        with pytest.raises(ValueError, match="'mine' must write into out as it is"):
            hgemm.matmul(a, torch.ones(8, 4).half(), backend="mine")


def test_import_is_light_and_listing_needs_no_tools() -> None:
    program = """
import sys
import hgemm
heavy = {"triton", "matplotlib", "rich", "hgemm.baselines", "hgemm.cuda_kernels", "hgemm.triton_kernels", "hgemm.bench"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import torch
assert not torch.cuda.is_initialized()
assert all(len(record.configs) for record in hgemm.backends()[3:])
assert not torch.cuda.is_initialized()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PATH": "", "CUDA_HOME": ""}
    )
    assert done.returncode == 0, done.stderr
