"""The cost model: how long a configuration takes for a product on a device, and why.

    time = launch + max(tensor work, memory), with the corner between the two rounded

Tensor work is that of the busiest multiprocessor. It computes its tiles round by round, as many at a time as fit it,
and a last round that is not full costs less than a full one only as far as its blocks wait for each other. A step of a
tile along K is what the tensor cores need, or the shared memory that feeds mma.sync; a block that is alone on its
multiprocessor waits besides, for what other blocks would hide. A tile costs a little more, to fill its stages and to
store C. Memory is read once; a multiprocessor reads its tiles' operands from L2.

What of this a board's rates do not say is in a few numbers of each configuration, ``Traits``, fitted to measurements by
``hgemm.fit`` and kept in cost.json. A configuration that was never measured has those of the most similar one, and is
taken to be slower by ``UNMEASURED`` and more.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files

from hgemm import occupancy
from hgemm.config import Config
from hgemm.devices import Rates
from hgemm.problem import Problem

# mma.sync on Hopper, of the rate of wgmma: 648 of 989 TFLOPS from registers alone, measured on an H200.
MMA_SYNC_OF_HOPPER = 0.655
FEWEST_WGMMA_ROWS = 64

SHARED_BYTES_PER_CLOCK = 128  # of a multiprocessor, that ldmatrix reads and TMA writes
L2_BYTES_PER_CLOCK = 64  # that a multiprocessor of a server chip gets while all others read too; an H200's 43 at least
GEFORCE_L2_BYTES_PER_CLOCK = 32  # an assumption: nobody prints it

# How much both of two limits cost where they are near each other: (x^p + y^p)^(1/p).
FEEDING, OVERLAP = 8.0, 3.0

# Before the first step of a tile can be multiplied it comes from memory.
FILLING_CLOCKS = 1000

# What adding the sums of parts of K takes beyond writing and reading them: a second kernel, or that the blocks of a
# cluster meet twice. That is an assumption, and so is that multiprocessors read each other's memory at half the rate of
# L2, without which the fit regrets more.
ADDITION_SECONDS, MEETING_SECONDS, EXCHANGE = 2e-6, 1e-6, 2.0

# As in cuda_kernels/tail.cuh: tiles of K that sharing out the last wave costs, and the fewest of a block.
TAIL_COST, TAIL_LEAST_SHARE = 8, 4

# A similar configuration may be a few percent better or worse, the more the less similar it is, and of several the
# luckiest would win. So it has to be expected to be quicker by so much, and by so much for each step of `difference`.
UNMEASURED, UNLIKE = 0.03, 0.02
INDISTINCT = 0.01

BESIDES_TRITON = frozenset(("triton", "triton_mma_sync"))  # one kernel, compiled for wgmma or for mma.sync


@dataclass(frozen=True)
class Traits:
    """What was fitted: of a configuration, or of a library whose kernels are closed."""

    pace: float = 1.2  # time to feed a step of K to the tensor cores, over that of shared memory's bandwidth
    wait: float = 150.0  # clocks that a step of a block takes longer if it is alone
    tile: float = 800.0  # clocks to store 128 x 128 elements of C
    reach: float = 0.8  # share of the memory's bandwidth
    launch: float = 3.0  # us
    columns: float = 1.0  # what the pace is multiplied by where B is stored column by column


@dataclass(frozen=True)
class Kernel:
    """What can be known of a configuration without running it; ``config`` is None for a library's."""

    backend: str
    config: Config | None
    shared_bytes: int = 0
    resident: int = 32  # blocks a multiprocessor that its registers allow

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.config.name}" if self.config else self.backend

    @property
    def adds_in_cluster(self) -> bool:
        """Whether the blocks that have the parts of a tile are a cluster, and add them without a second kernel."""
        return self.backend == "cuda_tma" and self.config is not None and self.config.parts > 1

    @property
    def resembles_others(self) -> bool:
        """Whether another configuration's traits may stand in for its own: not for Triton's clusters, like no other."""
        return self.config is not None and not (self.backend == "triton" and self.config.cluster > 1)


@dataclass(frozen=True)
class Size:
    """``batch`` products of M x K by K x N; ``layout`` as in ``Problem``."""

    M: int
    N: int
    K: int
    batch: int = 1
    layout: str = "nn"

    @classmethod
    def of(cls, problem: Problem, transposed: bool = False) -> Size:
        """The problem's, or that of the transposed product, (A B)^T = B^T A^T."""
        batch, layout = math.prod(problem.batch), problem.layout
        if not transposed:
            return cls(problem.M, problem.N, problem.K, batch, layout)
        letters = "".join("t" if letter == "n" else "n" for letter in reversed(layout))
        return cls(problem.N, problem.M, problem.K, batch, letters)

    @property
    def bytes(self) -> int:
        """Of A, B and C, each once."""
        return 2 * self.batch * (self.M * self.K + self.K * self.N + self.M * self.N)


@dataclass(frozen=True)
class Prediction:
    """Times in seconds. ``waves`` are of ``slots`` blocks each; ``fill`` is the share of all their places that work."""

    kernel: Kernel
    seconds: float
    tensor: float
    memory: float
    waves: float
    slots: int
    steps: int
    device: str
    like: str | None  # the configuration whose traits stand in

    @property
    def fill(self) -> float:
        return self.waves / math.ceil(self.waves)

    @property
    def config(self) -> str | None:
        return self.kernel.config.name if self.kernel.config else None

    def __str__(self) -> str:
        tiles = f"{self.waves:.2f} waves of {self.slots} blocks, {self.fill:.0%} full; {self.steps} steps of K; "
        text = (
            f"model for {self.device}: {tiles if self.kernel.config else ''}{self.seconds * 1e6:.1f} us, "
            f"{self.tensor * 1e6:.1f} by tensor work, {self.memory * 1e6:.1f} by memory"
        )
        return f"{text}; not measured, taken to be like {self.like}" if self.like else text


def instruction(backend: str, config: Config | None, capability: tuple[int, int]) -> str:
    """What multiplies: "wgmma" where Triton has it and the tile is tall enough for it, else "mma.sync"."""
    wgmma = capability[0] == 9 and backend in ("triton", "triton_pointer", "cublaslt")
    return "wgmma" if wgmma and (config is None or config.tile_m >= FEWEST_WGMMA_ROWS) else "mma.sync"


def either(one: float, other: float, sharpness: float) -> float:
    """At least the larger of the two; 2^(1 / sharpness) of it where both are equal."""
    large, small = max(one, other), min(one, other)
    return large * (1 + (small / large) ** sharpness) ** (1 / sharpness) if large else 0.0


def step_clocks(config: Config, device: Rates, instruction: str, pace: float = 1.0) -> float:
    """Clocks of a multiprocessor for one step of a tile along K: the tensor cores', or those of what feeds them, which
    takes ``pace`` times as long as shared memory alone."""
    rate = device.flops_per_clock
    if instruction == "mma.sync" and device.capability[0] == 9:
        rate *= MMA_SYNC_OF_HOPPER
    # Rows and columns of a step: written once, and read by every warp, or for every 64 rows that wgmma multiplies.
    readers, reads = config.warps, config.warp_m + config.warp_n
    if instruction == "wgmma":
        readers, reads = config.tile_m // FEWEST_WGMMA_ROWS, FEWEST_WGMMA_ROWS + config.tile_n
    moved = config.tile_m + config.tile_n + readers * reads
    multiply = 2 * config.tile_m * config.tile_n * config.tile_k / rate
    return either(multiply, pace * 2 * config.tile_k * moved / SHARED_BYTES_PER_CLOCK, FEEDING)


def predict(kernel: Kernel, size: Size, device: Rates, known: Known) -> Prediction:
    """The time of ``kernel`` on ``device``."""
    traits = known.traits
    if kernel.config is None:
        return _library(kernel, size, device, known)
    config, clock, P = kernel.config, device.clock_hz, device.multiprocessors
    together = occupancy.resident(kernel.shared_bytes, kernel.resident, device)
    reached = occupancy.reached(config.parts if kernel.adds_in_cluster else config.cluster, P)
    tiles = math.prod(config.tiles(size.M, size.N)) * size.batch
    k_tiles = -(-size.K // config.tile_k)
    blocks, steps = tiles * min(config.parts, k_tiles), -(-k_tiles // config.parts)
    slots = together * reached
    full, rest = divmod(blocks, slots)
    cut = config.parts > 1  # among blocks along K
    pace = traits.pace * (traits.columns if size.layout[1] == "t" else 1)
    work = step_clocks(config, device, instruction(kernel.backend, config, device.capability), pace)

    def step(count: int) -> float:
        return max(count * work, work + traits.wait)

    around = FILLING_CLOCKS + traits.tile * config.tile_m * config.tile_n / 128**2
    clocks = full * (steps * step(together) + around)
    if rest:
        last, count = float(steps), -(-rest // reached)
        if "tail" in config.flags:
            share = max(rest * steps / slots, TAIL_LEAST_SHARE)
            cut = share + 1 + TAIL_COST <= steps
            last = share + TAIL_COST if cut else last
        clocks += last * step(count) + around
    tensor = clocks / clock
    rows, columns = min(config.tile_m, size.M), min(config.tile_n, size.N)
    down, across = config.cluster_shape
    l2 = P * clock * (GEFORCE_L2_BYTES_PER_CLOCK if device.capability[0] == 12 else L2_BYTES_PER_CLOCK)
    from_l2 = 2 * tiles * (rows / across + columns / down) * size.K / l2
    memory = max(size.bytes / (device.bandwidth * traits.reach), from_l2)
    seconds = traits.launch * 1e-6 + either(tensor, memory, OVERLAP)
    if cut:
        sums = 8 * size.batch * size.M * size.N * config.parts if config.parts > 1 else 0  # fp32, written and read
        if kernel.adds_in_cluster:
            seconds += EXCHANGE * sums / l2 + MEETING_SECONDS
        else:
            seconds += sums / l2 + ADDITION_SECONDS
    waves = blocks / slots
    return Prediction(kernel, seconds * known.doubt, tensor, memory, waves, slots, steps, device.title, known.like)


def _library(kernel: Kernel, size: Size, device: Rates, known: Known) -> Prediction:
    """A library chooses among so many tiles that they always fill the device, but for the depth of K."""
    traits = known.traits
    depth = (size.K / 64 * traits.wait + traits.tile) / device.clock_hz
    flops = device.multiprocessors * device.flops_per_clock * device.clock_hz
    tensor = depth + 2 * size.M * size.N * size.K * size.batch * traits.pace / flops
    memory = size.bytes / (device.bandwidth * traits.reach)
    seconds = traits.launch * 1e-6 + either(tensor, memory, OVERLAP)
    return Prediction(kernel, seconds, tensor, memory, 1.0, device.multiprocessors, 1, device.title, None)


@dataclass(frozen=True)
class Known:
    """What is known of a kernel: its traits, or those of the one that it is ``like``, and a factor on its times."""

    traits: Traits
    like: str | None = None
    doubt: float = 1.0


@dataclass(frozen=True, eq=False)
class Fit:
    """Traits by the names of kernels, as they were measured on ``device``."""

    device: str
    capability: tuple[int, int]
    traits: Mapping[str, Traits]

    @functools.cached_property
    def _parsed(self) -> list[tuple[str, str, Config]]:
        split = [(name, *name.partition(":")) for name in self.traits]
        return [(name, backend, Config.parse(config)) for name, backend, _, config in split if config]

    def of(self, kernel: Kernel, device: Rates) -> Known:
        """What was measured of the kernel, or of the most similar one."""
        return self._of(kernel.name, kernel.backend, kernel.config, device.capability)

    @functools.lru_cache(maxsize=4096)  # noqa: B019  a process has one fit
    def _of(self, name: str, backend: str, config: Config | None, capability: tuple[int, int]) -> Known:
        needed = instruction(backend, config, capability)
        if name in self.traits and instruction(backend, config, self.capability) == needed:
            return Known(self.traits[name])
        if config is None:
            return Known(Traits(), "nothing")
        similar = [
            (difference(config, other) + (owner != backend) / 8, found)
            for found, owner, other in self._parsed
            if (owner == backend or {owner, backend} <= BESIDES_TRITON)
            and instruction(owner, other, self.capability) == needed
        ]
        if not similar:
            return Known(Traits(), "nothing", 2.0)
        apart, found = min(similar)
        return Known(self.traits[found], found, 1 + UNMEASURED + UNLIKE * apart)


def difference(one: Config, other: Config) -> float:
    """How little one configuration says about another: doublings of its sizes, and flags that one alone has."""
    weights = {"tile_m": 1.0, "tile_n": 1.0, "tile_k": 0.5, "stages": 0.5, "warp_m": 1.0, "warp_n": 1.0}
    sizes = sum(
        weight * abs(math.log2(getattr(one, field) / getattr(other, field))) for field, weight in weights.items()
    )
    swizzle = 16 * ("noswizzle" in set(one.flags) ^ set(other.flags))  # three times as slow
    return sizes + swizzle + 0.5 * len(set(one.flags) ^ set(other.flags))


def rank(kernels: Iterable[Kernel], size: Size, device: Rates, fit: Fit | None = None) -> list[Prediction]:
    """The kernels' predictions, the quickest first; of equals in the order given. What was not measured and resembles
    no other, as a library, is left out. On a device of another kind than the fitted one, that with the most stages of
    those that differ by less than ``INDISTINCT`` comes first: stages hide latencies that nobody measured there."""
    fit = fit or committed()
    predictions = []
    for kernel in kernels:
        known = fit.of(kernel, device)
        if kernel.resembles_others or not known.like:
            predictions.append(predict(kernel, size, device, known))
    predictions.sort(key=lambda prediction: prediction.seconds)
    if predictions and device.capability != fit.capability:
        equal = [one for one in predictions if one.seconds <= predictions[0].seconds * (1 + INDISTINCT)]
        first = max(equal, key=lambda one: one.kernel.config.stages if one.kernel.config else 0)
        predictions.remove(first)
        predictions.insert(0, first)
    return predictions


@functools.cache
def committed() -> Fit:
    """The fit that comes with the package, cost.json."""
    return from_document(json.loads(files("hgemm").joinpath("cost.json").read_text(encoding="utf-8")))


def from_document(document: Mapping[str, object]) -> Fit:
    """The fit that ``document`` describes. Raises KeyError or TypeError if it is no such document."""
    traits = document["traits"]
    capability = document["compute_capability"]
    assert isinstance(traits, dict) and isinstance(capability, list)
    return Fit(str(document["device"]), (capability[0], capability[1]), {n: Traits(**t) for n, t in traits.items()})


def to_document(fit: Fit) -> dict[str, object]:
    """What ``from_document`` reads; to four digits, so that the same measurements give the same text."""
    traits = {
        name: {field: float(f"{value:.4g}") for field, value in asdict(found).items()}
        for name, found in sorted(fit.traits.items())
    }
    return {"device": fit.device, "compute_capability": list(fit.capability), "traits": traits}
