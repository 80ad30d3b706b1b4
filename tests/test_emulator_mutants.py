"""Every planted fault in the kernels is found by the check that should find it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hgemm.cuda_kernels.emulator import mutants
from hgemm.cuda_kernels.emulator.mutant import Mutant
from hgemm.cuda_kernels.emulator.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
CHECK = "if (ring % 1024 != 0) ptx::trap();"
HARMLESS = Mutant("harmless", "changes nothing", "tma.cuh", CHECK, "if (ring % 1024) ptx::trap();", ("race",))


def test_every_mutant_is_caught_by_name():
    # A kernel that is broken may hang: the child has a limit.
    command = [sys.executable, "-m", "hgemm.cuda_kernels.emulator.mutants", "--json", "--until-caught"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    outcomes = json.loads(run.stdout)
    assert [outcome["name"] for outcome in outcomes] == [mutant.name for mutant in MUTANTS]
    assert [outcome["name"] for outcome in outcomes if not outcome["caught"]] == []
    for outcome in outcomes:
        *before, last = outcome["found"].items()
        assert [name for name, _ in (*before, last)] == list(mutants.SCHEDULES[: len(before) + 1])
        assert set(outcome["expected"]) & set(last[1])
        assert not any(set(outcome["expected"]) & set(found) for _, found in before)
        kinds = {kind for found in outcome["found"].values() for kind in found}
        if kinds - {"values", "unwritten-output"}:
            assert outcome["places"], f"{outcome['name']}: no report names a line"


def test_there_are_enough_of_them_and_each_has_a_name():
    assert len(MUTANTS) >= 55
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.family for mutant in MUTANTS} == {"cp_async", "tma"}


def test_a_survivor_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr(mutants, "MUTANTS", (HARMLESS,))
    assert mutants.main(["--until-caught"]) == 1
    text = capsys.readouterr().out
    assert "SURVIVED harmless" in text
    assert all(schedule in text for schedule in mutants.SCHEDULES)


def test_a_mutant_whose_text_is_gone_is_an_error(monkeypatch, capsys):
    gone = Mutant("gone", "", "tma.cuh", "no such text", "", ("race",))
    twice = Mutant("twice", "", "tma.cuh", "barrier", "", ("race",))
    broken = Mutant("broken", "", "tma.cuh", CHECK, "nowhere();", ("race",))
    for mutant, words in ((gone, "0 times"), (twice, "must be there once"), (broken, "nowhere")):
        monkeypatch.setattr(mutants, "MUTANTS", (mutant,))
        assert mutants.main([]) == 2
        assert words in capsys.readouterr().err


def test_a_name_that_is_none_is_refused():
    with pytest.raises(SystemExit, match="2"):
        mutants.main(["no-such-mutant"])
