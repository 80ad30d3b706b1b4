"""The registry: one record a family of kernels, what it needs, what it accepts and how it runs.

The order is the ladder's, from the vendor's libraries over the handwritten kernels to their Triton twins; a user's own
backends follow in the order of registration. Nothing is imported before the registry is first asked.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import torch
from torch import Tensor

from hgemm import cost
from hgemm.config import GRAMMAR
from hgemm.cost import Kernel, Prediction, Size
from hgemm.devices import Rates
from hgemm.problem import Problem

DEVICE_TYPES = ("cuda", "cpu")

# Takes every product on every device.
TORCH = "torch"


@dataclass(frozen=True)
class Properties:
    """What may be expected of a backend's results; ``python -m hgemm.check`` holds it to what it declares."""

    deterministic: bool = False  # the same call on the same machine gives the same bits
    row_invariant: bool = False  # the bits of a row do not depend on M
    accumulator: str = "float32"  # the type in which products are summed
    exact_integers: bool = True  # sums of small integers come out exact: no partial sum is rounded to 16 bits


Launch = Callable[[Tensor, Tensor, Tensor], None]
"""a, b, out: writes out, for one kind of problem and one configuration."""

LaunchAt = Callable[[int, int, int], None]
"""The same, given the addresses of the first elements: what is left to do once all else is known."""


@dataclass(frozen=True, eq=False)
class Backend:
    """One family of kernels. Two records are the same only if they are one object."""

    name: str
    idea: str  # one line
    requires: tuple[str, ...]  # words, for `python -m hgemm.env`
    configs: tuple[str, ...]  # names; empty for a backend without configurations
    properties: Properties  # of every configuration and of the default choice, unless the last fields say otherwise
    unavailable: Callable[[str], str | None]  # device type -> why the backend cannot run there; None if it can
    accepts: Callable[[Problem, str | None], str | None]  # the rule broken, with the value found; None if it is taken
    choose: Callable[[Problem], str | None]  # the default configuration for this problem
    run: Callable[[Tensor, Tensor, Tensor, str | None], None]  # a, b, out, config: writes out, checks nothing twice
    bind: Callable[[Problem, str | None], Launch] | None = None  # looks up once what `run` looks up in every call
    bind_at: Callable[[Problem, str | None], LaunchAt | None] | None = None  # the same by address; None where it cannot
    kernels: Callable[[Rates, Size], Sequence[Kernel]] | None = None  # what the cost model weighs for such a product
    transposes: bool = False  # a column-major out is computed as the transposed product
    config_properties: Mapping[str, Properties] = field(default_factory=dict)  # of configurations that keep less
    default_properties: Properties | None = None  # of the default choice, where following M it keeps less
    fn: Callable[[Tensor, Tensor, Tensor, str | None], None] | None = None  # the user's own, as it was registered

    def properties_of(self, config: str | None) -> Properties:
        """What may be expected of results in the configuration called ``config``, or in the default one."""
        if config is None:
            return self.default_properties or self.properties
        return self.config_properties.get(config, self.properties)

    def predictions(self, problem: Problem, device: Rates) -> list[Prediction]:
        """What the cost model expects of its configurations, the quickest first; empty if it knows nothing of them."""
        if self.kernels is None:
            return []
        size = Size.of(problem, transposed=self.transposes and problem.out.letter == "t")
        return cost.rank(self.kernels(device, size), size, device)

    def launcher(self, problem: Problem, config: str | None) -> Launch:
        """What computes problems of this dtype, device, these shapes, strides and alignments, in this configuration."""
        if self.bind is not None:
            return self.bind(problem, config)
        run = self.run  # not functools.partial, whose keyword costs more than a closure
        return lambda a, b, out: run(a, b, out, config)

    def launcher_at(self, problem: Problem, config: str | None) -> LaunchAt | None:
        """The same by address, for those backends that need no more of a tensor. It leaves the current device as it is,
        whichever device the problem is on."""
        return None if self.bind_at is None else self.bind_at(problem, config)

    def available_on(self, device_type: str) -> bool:
        """Whether this machine can run the backend on tensors of ``device_type``, "cuda" or "cpu"."""
        return self.unavailable(device_type) is None

    @property
    def available(self) -> bool:
        """Whether this machine can run it: on a CUDA device if there is one, else on the CPU."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why the backend is not available; empty if it is."""
        return self.unavailable("cuda" if torch.cuda.is_available() else "cpu") or ""

    def refuses_device(self, device_type: str) -> str | None:
        """Why this backend cannot take tensors of ``device_type`` on this machine; None if it can."""
        reason = self.unavailable(device_type)
        return None if reason is None else f"{self.name} does not run on {device_type} tensors here: {reason}"

    def refuses(self, problem: Problem, config: str | None = None) -> str | None:
        """Why this backend cannot compute ``problem`` on this machine, with the value found; None if it can.

        Adds to ``accepts`` what holds for all: the backend runs on the problem's device.
        """
        return self.refuses_device(problem.device.type) or self._rule(problem, config)

    def _rule(self, problem: Problem, config: str | None) -> str | None:
        """What ``accepts`` says. Raises TypeError if that is neither a rule nor None."""
        rule = self.accepts(problem, config)
        if rule is None or (isinstance(rule, str) and rule):
            return rule
        raise TypeError(
            f"accepts() of backend {self.name!r} returned {rule!r}; return the rule broken, as text, or None to accept"
        )

    def check_config(self, config: str | None) -> None:
        """Raises ValueError, listing the configurations there are, if ``config`` is neither None nor one of them."""
        if config is None or config in self.configs:
            return
        if not self.configs:
            raise ValueError(f"backend {self.name!r} has no configurations, found config={config!r}; leave config out")
        raise ValueError(
            f"backend {self.name!r} has no configuration {config!r}{did_you_mean(config, self.configs)}; it has "
            f"{', '.join(self.configs)} (names are {GRAMMAR})"
        )


class Backends(Sequence[Backend]):
    """The backends at one moment, indexed by position or by name: ``backends()["triton"]``."""

    def __init__(self, records: Iterable[Backend]) -> None:
        self._records = tuple(records)

    @overload
    def __getitem__(self, key: int | str) -> Backend: ...
    @overload
    def __getitem__(self, key: slice) -> Backends: ...
    def __getitem__(self, key: int | str | slice) -> Backend | Backends:
        if isinstance(key, slice):
            return Backends(self._records[key])
        if isinstance(key, int):
            return self._records[key]
        for record in self._records:
            if record.name == key:
                return record
        raise KeyError(_unknown(key, self.names))

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._records)

    def __repr__(self) -> str:
        return f"<hgemm backends: {', '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(record.name for record in self._records)


_registered: dict[str, Backend] = {}


@functools.cache
def _built_in() -> dict[str, Backend]:
    from hgemm.baselines import backends as baselines
    from hgemm.cuda_kernels.adapter import backends as cuda_backends
    from hgemm.triton_kernels.adapter import backends as triton_backends

    records = [*baselines(), *cuda_backends(), *triton_backends()]
    return {record.name: record for record in records}


def backends() -> Backends:
    """Every backend, available or not, in the order of the ladder."""
    return Backends([*_built_in().values(), *_registered.values()])


def is_built_in(name: str) -> bool:
    """Whether the backend of this name comes with the package."""
    return name in _built_in()


def find(name: str) -> Backend | None:
    """The backend called ``name``, or None."""
    return _built_in().get(name) or _registered.get(name)


registered = _registered.get
"""The user's backend called by a name, or None: the only ones that can be another record the next time."""


def get(name: str) -> Backend:
    """The backend called ``name``. Raises ValueError, naming those there are."""
    if record := find(name):
        return record
    raise ValueError(_unknown(name, ("auto", *backends().names)))


def register_backend(
    name: str,
    fn: Callable[[Tensor, Tensor, Tensor, str | None], None],
    accepts: Callable[[Problem, str | None], str | None] | None = None,
    properties: Properties | None = None,
    configs: Iterable[str] = (),
) -> Backend:
    """Makes a function of your own a backend: for ``matmul``, ``check``, ``bench`` and ``plot``.

    ``fn(a, b, out, config)`` writes the product of the matrices ``a[M, K]`` and ``b[K, N]`` into ``out[M, N]``, or
    that of batches of as many matrices, ``a[B, M, K]``, ``b[B, K, N]`` and ``out[B, M, N]``: fp16 or bf16, all on one
    device, none empty, of any strides; a stride of ``a`` or ``b`` may be 0. ``accepts(problem, config)`` returns the
    rule that a product breaks, with the value found, or None if ``fn`` can take it: ``hgemm.problem.row_major_rule``
    is one for single row-major matrices. Left out, every product is taken. ``configs`` are names of your choice, the
    first one the default. Registering a name again replaces the earlier function.

    Returns the record. Raises ValueError if the name is "auto" or a built-in backend's, or a configuration is named
    twice or with control characters, TypeError if an argument is of the wrong type. A call raises ValueError if ``fn``
    resizes ``out``.
    """
    if not isinstance(name, str):
        raise TypeError(f"a backend's name must be a string, found {name!r}")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        raise ValueError(f"a backend's name is letters, digits, '_', '.' and '-', found {name!r}")
    if name == "auto" or name in _built_in():
        raise ValueError(f"{name!r} is a name of hgemm's own; register your backend under another")
    for role, function in (("fn", fn), ("accepts", accepts)):
        if not callable(function) and not (role == "accepts" and function is None):
            raise TypeError(f"{role} must be a function, found {type(function).__name__}")
    if isinstance(configs, str):
        raise TypeError(f"configs must be a sequence of names, found the string {configs!r}; write ({configs!r},)")
    names = tuple(configs)
    for config in names:
        if not isinstance(config, str) or not config:
            raise TypeError(f"configs must be names, found {config!r} among them")
        if not config.isprintable():
            raise ValueError(f"configs must be names without control characters, found {config!r} among them")
        if names.count(config) > 1:
            raise ValueError(f"configs must differ, found {config!r} {names.count(config)} times")
    if properties is not None and not isinstance(properties, Properties):
        raise TypeError(f"properties must be a Properties, found {type(properties).__name__}")
    record = Backend(
        name=name,
        idea=next(iter((fn.__doc__ or "").strip().splitlines()), "registered by the user"),
        requires=(),
        configs=names,
        properties=properties or Properties(),
        unavailable=lambda device_type: None,
        accepts=accepts or (lambda problem, config: None),
        choose=lambda problem: names[0] if names else None,
        run=functools.partial(_run_and_look, name, fn),
        fn=fn,
    )
    _registered[name] = record
    return record


def _run_and_look(
    name: str,
    fn: Callable[[Tensor, Tensor, Tensor, str | None], None],
    a: Tensor,
    b: Tensor,
    out: Tensor,
    config: str | None,
) -> None:
    """Calls ``fn``. Raises ValueError if ``out`` is another tensor afterwards."""
    shape, stride, address = out.shape, out.stride(), out.data_ptr()
    fn(a, b, out, config)
    if out.shape != shape or out.stride() != stride or out.data_ptr() != address:
        raise ValueError(
            f"backend {name!r} must write into out as it is, but resized or moved it: shape {tuple(shape)}, strides "
            f"{stride} became shape {tuple(out.shape)}, strides {out.stride()}"
        )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``, did you mean 'x'?`` for the closest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _unknown(name: str, known: Sequence[str]) -> str:
    return f"unknown backend {name!r}{did_you_mean(str(name), known)}; there are {', '.join(known)}"
