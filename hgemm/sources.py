"""A digest of the kernels' sources, without those of the emulator: what was measured or tuned holds for them alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

_SOURCES = (
    ("cuda_kernels", ("*.cuh", "*.h", "*.cpp", "configs.py", "build.py")),
    ("triton_kernels", ("*.py",)),
)


def sources_digest() -> str:
    """SHA-256 over the names and bytes of all kernel sources: equal digests mean equal kernels."""
    digest = hashlib.sha256()
    for folder, patterns in _SOURCES:
        root = _PACKAGE / folder
        for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
            content = path.read_bytes()
            digest.update(f"{folder}/{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
