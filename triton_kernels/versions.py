"""Which Triton is at hand, and what the older ones lack."""

from __future__ import annotations

import functools

OLDEST_TRITON = (3, 6)
OLDEST_MULTICAST = (3, 7)


def _version() -> tuple[int, ...]:
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2])


@functools.cache
def triton_missing() -> str | None:
    """Why no kernel of Triton's can be had, and the way out; None if they can."""
    try:
        import triton
    except Exception as error:  # a broken installation can raise anything
        return f"Triton cannot be imported ({type(error).__name__}: {error}); pip install 'triton>=3.6'"
    if _version() < OLDEST_TRITON:
        return f"it needs Triton 3.6 or newer, found {triton.__version__}; pip install 'triton>=3.6'"
    return None


@functools.cache
def multicast_missing() -> str | None:
    """Why none can send tiles to several blocks; None if they can. Where there is a Triton."""
    import triton

    if _version() < OLDEST_MULTICAST:
        return (
            f"multicast to a cluster of blocks needs Gluon of Triton 3.7 or newer, found {triton.__version__}; "
            f"pip install 'triton>=3.7', or leave config out"
        )
    return None
