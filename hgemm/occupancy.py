"""How many blocks of a kernel a device holds at a time, by its published numbers."""

from __future__ import annotations

from hgemm.devices import Rates

RESERVED_SHARED_BYTES = 1024  # by the system, for each resident block

# A cluster's blocks run within one of the device's own clusters of multiprocessors (GPC): an H200 has 132 in 8. They
# are in pairs; of the others as many are left over as do not fill a cluster. How many each GPC has is not printed: an
# estimate is half of what a cluster has beyond a pair.
MULTIPROCESSORS_OF_GPC = 16.5


def resident(shared_bytes: int, most: int, device: Rates) -> int:
    """Blocks that share a multiprocessor: at most ``most``, and 1 where not even one fits by these numbers."""
    return max(1, min(device.shared_bytes // (shared_bytes + RESERVED_SHARED_BYTES), most))


def reached(cluster: int, multiprocessors: int) -> int:
    """Multiprocessors that have a block each where blocks come in clusters of ``cluster``, a power of two. Further
    clusters share multiprocessors with them, while those that are left over idle."""
    left_over = max(0, cluster - 2) / 2 * multiprocessors / MULTIPROCESSORS_OF_GPC
    return max(cluster, int(multiprocessors - left_over) // cluster * cluster)
