"""The folder of built libraries: found by content, filled atomically, locked against building twice.

An entry is a folder `NAME-KEY` that appears complete or not at all: it is filled under another name beside its place
and then renamed. KEY is a hash of all that decides its content, so an entry never has to be invalidated. Whoever builds
one holds the operating system's lock on it, which is let go when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from hgemm.cuda_kernels.toolchain import BuildError

STAGING_PREFIX = "building-"


def configured_folder() -> Path:
    """HGEMM_CACHE_DIR, else `hgemm` in XDG_CACHE_HOME, else in ~/.cache. Raises BuildError for a home that is none."""
    if named := os.environ.get("HGEMM_CACHE_DIR", "").strip():
        return _expanded(named, f"HGEMM_CACHE_DIR={named!r}")
    if base := os.environ.get("XDG_CACHE_HOME", "").strip():
        return _expanded(base, f"XDG_CACHE_HOME={base!r}") / "hgemm"
    return _expanded("~/.cache", "~/.cache") / "hgemm"


def temporary_folder() -> Path:
    """Where libraries go if the configured folder cannot be written: in the system's temporary one, one a user."""
    return Path(tempfile.gettempdir()) / f"hgemm-{os.getuid()}"


def find(entry: str, product: str) -> Path | None:
    """The file `product` of a finished entry, also in a folder that cannot be written; None if it is not built."""
    for folder in (configured_folder(), temporary_folder()):
        path = folder / entry / product
        with contextlib.suppress(OSError):
            if path.is_file() and (folder != temporary_folder() or _is_own(folder)):
                return path
    return None


def writable_folder() -> Path:
    """The folder to build in: the configured one, or the temporary one, with a warning that says why.

    Raises BuildError if neither can be written.
    """
    folder = configured_folder()
    try:
        _try_writing(folder)
    except OSError as error:
        fallback, found = temporary_folder(), f"cannot write the kernel cache {folder} ({error.strerror})"
        try:
            _make_own(fallback)
        except OSError as second:
            raise BuildError(f"{found}, nor {fallback} ({second.strerror}): set HGEMM_CACHE_DIR") from second
        _warn_once(
            f"{found}: building in {fallback}, which may be emptied; set HGEMM_CACHE_DIR to a folder that you can write"
        )
        return fallback
    return folder


@contextlib.contextmanager
def lock(folder: Path, entry: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock on one entry of `folder`; calls `waiting` once if another process holds it.

    A file system without locks is no obstacle: then two processes may build the same entry, and one of them is kept.
    """
    (folder / "locks").mkdir(exist_ok=True)
    with open(folder / "locks" / entry, "w") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            yield
            return
        _remove_abandoned(folder, entry)
        try:
            yield
        finally:
            # Closing alone would leave it locked as long as a process forked meanwhile has the file open.
            fcntl.flock(file, fcntl.LOCK_UN)


def stage(folder: Path, entry: str) -> Path:
    """A new empty folder to build the entry in."""
    staging = Path(tempfile.mkdtemp(prefix=f"{STAGING_PREFIX}{entry}-", dir=folder))
    staging.chmod(0o755)  # a cache may be shared by several users
    return staging


def publish(staging: Path, folder: Path, entry: str, product: str) -> Path:
    """Moves a filled staging folder to its place in one step and returns the path of its file `product`."""
    place = folder / entry
    if place.exists() and not (place / product).is_file():
        shutil.rmtree(place)  # damaged from outside: no build leaves an entry without its product
    try:
        staging.rename(place)
    except OSError:
        if not (place / product).is_file():
            raise
        shutil.rmtree(staging)  # another process, on a file system without locks, was first
    return place / product


def key(*parts: str | bytes) -> str:
    """A hash of all parts, in which no two different lists of parts look alike."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()[:20]


def included_files(text: str, folder: Path) -> dict[str, bytes]:
    """Content by name of every file that `text` includes in quotes from `folder`, directly or not."""
    files: dict[str, bytes] = {}
    pending = [(text, folder)]
    while pending:
        source, beside = pending.pop()
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', source, re.MULTILINE):
            path = next((path for path in (beside / name, folder / name) if path.is_file()), None)
            if path is None:
                continue  # the compiler says so better, and a branch that is not compiled may name what is not there
            relative = os.path.relpath(path, folder)
            if relative not in files:
                files[relative] = path.read_bytes()
                pending.append((files[relative].decode(), path.parent))
    return files


def _expanded(path: str, source: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise BuildError(f"{source}: no such user, or no home folder; set HGEMM_CACHE_DIR to a full path") from error


def _try_writing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _is_own(folder: Path) -> bool:
    """A folder in a place that everyone can write counts only if this user made it: its libraries are executed."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _make_own(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(errno.EPERM, "others can write it", str(folder))
    _try_writing(folder)


def _remove_abandoned(folder: Path, entry: str) -> None:
    """What a killed build left: nobody else fills a staging folder while we hold the entry's lock."""
    for path in folder.glob(f"{STAGING_PREFIX}{entry}-*"):
        shutil.rmtree(path, ignore_errors=True)


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
