"""Who takes part: backends and configurations picked by pattern, each refused, or ready to be called."""

from __future__ import annotations

import contextlib
import fnmatch
import runpy
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import hgemm
from hgemm.backends import TORCH, Backend
from hgemm.bench.bursts import Call
from hgemm.bench.operands import Operands, OperandSet
from hgemm.bench.schema import Status
from hgemm.problem import Problem

DEFAULT_PATTERNS = ("*:default", "cuda_*", "triton_pointer")
"""Every backend as it chooses by itself, every handwritten kernel, and the twins of cp.async with 2 and 3 stages."""

DEFAULT_CONFIG = "default"
"""In a pattern, the configuration that the backend chooses for the product at hand."""


@dataclass(frozen=True)
class Choice:
    """One backend in one configuration; ``config`` None for a backend without configurations."""

    backend: Backend
    config: str | None

    def refusal(self, problem: Problem) -> tuple[Status, str] | None:
        """("unavailable" or "refused", why) where this choice cannot compute ``problem``."""
        if reason := self.backend.unavailable(problem.device.type):
            return "unavailable", reason
        if reason := self.backend.accepts(problem, self.config):
            return "refused", reason
        return None

    def kernel_call(self, operands: Operands) -> Call:
        """Runs the backend's kernel alone on set ``i % len(operands)``; its arguments have been checked once."""
        run, config, sets = self.backend.run, self.config, operands.sets

        def call(index: int) -> None:
            s: OperandSet = sets[index % len(sets)]
            run(s.a, s.b, s.out, config)

        return call

    def user_call(self, operands: Operands, *, allocates: bool) -> Call:
        """The whole of ``hgemm.matmul`` as a user's program pays for it, without ``out=`` if it ``allocates``.

        For the backend torch it is ``torch.matmul`` itself, which is the yardstick of what a call costs. It returns the
        product.
        """
        name, config = self.backend.name, self.config
        first = operands.sets[0]
        a, b, out = first.a, first.b, first.out
        if name == TORCH:
            return (lambda index: torch.matmul(a, b)) if allocates else (lambda index: torch.matmul(a, b, out=out))
        if allocates:
            return lambda index: hgemm.matmul(a, b, backend=name, config=config)
        return lambda index: hgemm.matmul(a, b, backend=name, config=config, out=out)


def load(path: Path) -> list[str]:
    """Runs a Python file that calls ``hgemm.register_backend``, and returns the names it has registered.

    Raises ValueError if it cannot be read, raises, or registers nothing.
    """
    before = set(hgemm.backends().names)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no part of an answer in JSON
            runpy.run_path(str(path))
    except OSError as error:
        raise ValueError(f"--contestant {path}: {error.strerror}") from error
    except Exception as error:
        raise ValueError(f"--contestant {path}: {type(error).__name__}: {error}") from error
    if registered := [name for name in hgemm.backends().names if name not in before]:
        return registered
    raise ValueError(f"--contestant {path}: it calls hgemm.register_backend for no new name")


def check_patterns(patterns: Sequence[str], backends: Iterable[Backend]) -> None:
    """Raises ValueError for the first pattern that no backend and configuration matches."""
    known = list(backends)
    for pattern in patterns:
        if not any(_configs(backend, [pattern]) for backend in known):
            names = ", ".join(backend.name for backend in known)
            raise ValueError(
                f"no backend matches {pattern!r}; a pattern is NAME, NAME:CONFIG or NAME:{DEFAULT_CONFIG}, with * and "
                f"?, and the names are {names}"
            )


def choose(patterns: Sequence[str], backends: Iterable[Backend], problem: Problem) -> list[Choice]:
    """The choices that match any pattern, in the order of the ladder, none twice."""
    choices = []
    for backend in backends:
        wanted = _configs(backend, patterns)
        if DEFAULT_CONFIG in wanted:
            default = backend.choose(problem)
            wanted = [default, *(config for config in wanted if config not in (DEFAULT_CONFIG, default))]
            order = {config: index for index, config in enumerate(backend.configs)}
            wanted.sort(key=lambda config: order.get(config or "", -1))
        choices += [Choice(backend, config) for config in wanted]
    return choices


def _configs(backend: Backend, patterns: Sequence[str]) -> list[str | None]:
    """The configurations of a backend that match, with DEFAULT_CONFIG standing for its own choice."""
    matched: list[str | None] = []
    for pattern in patterns:
        name, colon, config = pattern.partition(":")
        if not fnmatch.fnmatchcase(backend.name, name):
            continue
        if not backend.configs:
            matched += [None] if not colon or fnmatch.fnmatchcase(DEFAULT_CONFIG, config) else []
        elif config == DEFAULT_CONFIG:
            matched.append(DEFAULT_CONFIG)
        else:
            matched += [c for c in backend.configs if fnmatch.fnmatchcase(c, config if colon else "*")]
    return list(dict.fromkeys(matched))
