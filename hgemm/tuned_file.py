"""The files in which ``python -m hgemm.tune`` keeps what it found: the user's own tables of what is fastest where.

There is one file for each kind of GPU, in the folder ``tuned`` of the kernel cache. It holds one table for each torch,
Triton and digest of the kernels' sources under which tuning was done.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hgemm.problem import Problem
from hgemm.sources import sources_digest

FOLDER = "tuned"
SCHEMA = "hgemm-tuned"
SCHEMA_VERSION = 1

_DTYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Gpu:
    """What a table is for: what the driver calls it, its compute capability and its number of multiprocessors."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name} (compute capability {major}.{minor}, {self.multiprocessors} multiprocessors)"

    @classmethod
    def of(cls, device: torch.device) -> Gpu:
        properties: Any = torch.cuda.get_device_properties(device)
        return cls(properties.name, (properties.major, properties.minor), properties.multi_processor_count)

    @property
    def file(self) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return f"{slug}-sm{self.capability[0]}{self.capability[1]}-{self.multiprocessors}.json"


@dataclass(frozen=True)
class Versions:
    """What times depend on beside the GPU. ``sources``: the digest of the kernels' sources."""

    torch: str
    triton: str | None
    sources: str

    def difference(self, now: Versions) -> str:
        """What another table's versions have that those in use ``now`` have not, in words; empty if they are equal."""
        found = [
            f"{name} was {was or 'absent'} and is {is_now or 'absent'}"
            for name, was, is_now in (("torch", self.torch, now.torch), ("triton", self.triton, now.triton))
            if was != is_now
        ]
        return "; ".join([*found, *(["the kernels' sources have changed"] if self.sources != now.sources else [])])


@functools.cache
def versions() -> Versions:
    """Those in use."""
    triton = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        triton = importlib.metadata.version("triton")
    return Versions(str(torch.__version__), triton, sources_digest())


@dataclass(frozen=True)
class Product:
    """What is looked up. ``layout``: letters as in ``Problem.layout``, of a, b and out."""

    M: int
    N: int
    K: int
    batch: int
    dtype: str
    layout: str

    @classmethod
    def of(cls, problem: Problem) -> Product:
        M, N, K, batch = problem.M, problem.N, problem.K, math.prod(problem.batch)
        return cls(M, N, K, batch, _DTYPE_NAMES[problem.dtype], problem.layout + problem.out.letter)

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        return f"{batch}{self.M},{self.N},{self.K} {self.dtype} {self.layout[:2]}"


@dataclass(frozen=True)
class Timed:
    """A configuration and its median time in microseconds."""

    backend: str
    config: str | None
    us: float


@dataclass(frozen=True)
class LeftOut:
    """A configuration that gave no time, and why."""

    backend: str
    config: str | None
    reason: str


@dataclass(frozen=True)
class Entry:
    """One tuned product; ``utc``: when. ``ranking``: the fastest first."""

    product: Product
    utc: str
    ranking: tuple[Timed, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def date(self) -> str:
        return self.utc[:10]

    @property
    def tried(self) -> frozenset[tuple[str, str | None]]:
        ranked = {(one.backend, one.config) for one in self.ranking}
        return frozenset(ranked | {(one.backend, one.config) for one in self.left_out})


def entries_in_use(gpu: Gpu) -> dict[Product, Entry]:
    """The entries for the versions in use; none where the file is missing or damaged."""
    path = path_of(gpu)
    with contextlib.suppress(ValueError):
        return load(path, gpu).get(versions(), {}) if path else {}
    return {}


def files() -> list[Path]:
    """The files there are, one for each kind of GPU."""
    return sorted(path for folder in folders() for path in folder.glob("*.json"))


def contents(path: Path) -> tuple[Gpu, dict[Versions, dict[Product, Entry]]]:
    """A file's GPU and tables. Raises ValueError, in words, if it is damaged."""
    document = _document(path)
    return _gpu_of(document), _tables_of(document)


def store(gpu: Gpu, entry: Entry, waiting: Callable[[], None] = lambda: None) -> Path:
    """Puts an entry into the table of the versions in use, in place of an earlier one of its product.

    The file is replaced in one step and under a lock: nobody reads half of it, and of two processes that tune neither
    loses what the other stores. A damaged file is written anew. Raises BuildError if there is no folder to write, and
    OSError.
    """

    def add(tables: dict[Versions, dict[Product, Entry]]) -> int:
        tables.setdefault(versions(), {})[entry.product] = entry
        return 1

    return _change(gpu, add, waiting)[0]


def forget(gpu: Gpu, products: Iterable[Product] | None = None, waiting: Callable[[], None] = lambda: None) -> int:
    """Removes these products, or all, from every table for the GPU; returns how many entries there were."""
    wanted = None if products is None else set(products)

    def remove(tables: dict[Versions, dict[Product, Entry]]) -> int:
        count = 0
        for entries in tables.values():
            for product in [known for known in entries if wanted is None or known in wanted]:
                del entries[product]
                count += 1
        return count

    return _change(gpu, remove, waiting)[1] if path_of(gpu) else 0


def _change(
    gpu: Gpu, change: Callable[[dict[Versions, dict[Product, Entry]]], int], waiting: Callable[[], None]
) -> tuple[Path, int]:
    from hgemm.cuda_kernels import cache

    folder = folder_to_write()
    with cache.lock(folder.parent, f"{FOLDER}-{gpu.file}", waiting):
        folder.mkdir(exist_ok=True)
        path = folder / gpu.file
        try:
            tables = load(path, gpu) if path.exists() else {}
        except ValueError:
            tables = {}
        count = change(tables)
        _replace(path, json.dumps(document(gpu, tables), indent=1) + "\n")
    return path, count


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)  # a cache may be shared by several users
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def folders() -> list[Path]:
    """Where the files may be."""
    try:
        from hgemm.cuda_kernels import cache, toolchain
    except ImportError:  # what only Linux has
        return []
    with contextlib.suppress(toolchain.BuildError):
        return [cache.configured_folder() / FOLDER, cache.temporary_folder() / FOLDER]
    return []


def folder_to_write() -> Path:
    """Where files are written; it need not be there yet. Raises BuildError if nothing can be written."""
    from hgemm.cuda_kernels import cache

    return cache.writable_folder() / FOLDER


def path_of(gpu: Gpu) -> Path | None:
    """The file for this kind of GPU; None if there is none."""
    from hgemm.cuda_kernels import cache

    return cache.find(FOLDER, gpu.file)


def document(gpu: Gpu, tables: dict[Versions, dict[Product, Entry]]) -> dict[str, Any]:
    """What a file holds."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **asdict(gpu),
        "tables": [
            {**asdict(made_with), "entries": [asdict(entry) for entry in entries.values()]}
            for made_with, entries in tables.items()
            if entries
        ],
    }


def load(path: Path, gpu: Gpu) -> dict[Versions, dict[Product, Entry]]:
    """The tables of a file for this GPU. Raises ValueError, in words, if it is damaged or another GPU's."""
    found, tables = contents(path)
    if found != gpu:
        raise ValueError(f"{path.name} is of {found}, and this is {gpu}")
    return tables


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is damaged: it is not JSON") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path.name} is not a table of hgemm.tune")
    if (version := found.get("schema_version")) != SCHEMA_VERSION:
        raise ValueError(f"{path.name} has schema version {version}, and this hgemm reads {SCHEMA_VERSION}")
    return found


def _gpu_of(document: dict[str, Any]) -> Gpu:
    try:
        major, minor = document["capability"]
        return Gpu(document["name"], (major, minor), document["multiprocessors"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a table of hgemm.tune is damaged ({type(error).__name__}: {error})") from None


def _tables_of(document: dict[str, Any]) -> dict[Versions, dict[Product, Entry]]:
    tables: dict[Versions, dict[Product, Entry]] = {}
    try:
        for one in document["tables"]:
            entries = [_entry(value) for value in one["entries"]]
            made_with = Versions(one["torch"], one["triton"], one["sources"])
            tables[made_with] = {entry.product: entry for entry in entries}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a table of hgemm.tune is damaged ({type(error).__name__}: {error})") from None
    return tables


def _entry(value: dict[str, Any]) -> Entry:
    entry = Entry(
        Product(**value["product"]),
        value["utc"],
        tuple(Timed(**one) for one in value["ranking"]),
        tuple(LeftOut(**one) for one in value["left_out"]),
    )
    product = entry.product
    extents = (product.M, product.N, product.K, product.batch)
    texts = [entry.utc, product.dtype, product.layout, *(one.backend for one in entry.ranking)]
    texts += [one.config for one in entry.ranking if one.config is not None]
    sound = all(isinstance(extent, int) and extent > 0 for extent in extents) and entry.ranking
    times = (one.us for one in entry.ranking)
    timed = all(isinstance(us, (int, float)) and math.isfinite(us) and us > 0 for us in times)
    if not (sound and timed and all(isinstance(text, str) for text in texts)):
        raise ValueError(f"no entry: {product}")
    return entry
