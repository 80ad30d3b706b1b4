"""The environment that a compiler is to find, and what decides which form of a kernel is compiled."""

from __future__ import annotations

import os
import threading

from hgemm.triton_kernels import launcher

KNOB = "DISABLE_MMA_V3"


def test_the_environment_of_compilers_nests_and_survives_threads() -> None:
    seen: list[str | None] = []
    with launcher.compiler_environment({KNOB: "1", "HGEMM_TEST": "x"}):
        with launcher.compiler_environment({KNOB: "2"}):
            thread = threading.Thread(target=lambda: seen.append(os.environ.get(KNOB)))
            thread.start()
            thread.join(60)
        assert (os.environ[KNOB], os.environ["HGEMM_TEST"]) == ("1", "x")
    assert seen == ["2"]
    assert KNOB not in os.environ
    assert "HGEMM_TEST" not in os.environ


def test_wide_numbers() -> None:
    assert launcher.wide((1, 2**31 - 1)) == ()
    assert launcher.wide((1, 2**31)) == (False, True)
