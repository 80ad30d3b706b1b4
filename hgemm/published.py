"""What others published for GeForce Blackwell (sm_120), and what the cost model predicts for our kernels of that kind.

The figures were not measured with this code. The model runs every board at its rated clock: what a power limit takes
off is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hgemm import cost, devices
from hgemm.backends import find
from hgemm.cost import Fit, Prediction, Size


@dataclass(frozen=True)
class Figure:
    """TFLOPS of one kernel. ``kernel`` is ours of its kind, ``backend:config``, or a backend for its default."""

    card: str  # title in devices.DEVICES
    remark: str
    size: Size
    what: str
    kernel: str
    tflops: float


_LAPTOP, _5090, _MAX_Q = "RTX 5060 Laptop", "RTX 5090", "RTX PRO 6000 Max-Q"
_4096, _4096_NT, _8192_NT = (Size(n, n, n, layout=layout) for n, layout in ((4096, "nn"), (4096, "nt"), (8192, "nt")))

FIGURES = (
    Figure(_LAPTOP, "bf16", _4096, "cp.async", "cuda_cp_async", 34.00),
    Figure(_LAPTOP, "bf16", _4096, "TMA, K = 32, two blocks", "cuda_tma:128x128x32_s3_w64x32", 34.31),
    Figure(_LAPTOP, "bf16", _4096, "TMA, K = 64, one block", "cuda_tma:128x128x64_s3_w64x32", 32.05),
    Figure(_5090, "bf16, 400 W", _4096_NT, "cp.async", "cuda_cp_async", 164.0),
    Figure(_5090, "bf16, 400 W", _4096_NT, "TMA", "cuda_tma", 171.2),
    Figure(_5090, "bf16, 400 W", _8192_NT, "cp.async", "cuda_cp_async", 192.3),
    Figure(_5090, "bf16, 400 W", _8192_NT, "TMA", "cuda_tma", 200.3),
    Figure(_MAX_Q, "fp16, 300 W", Size(8192, 8192, 8192), "cp.async", "cuda_cp_async", 243.0),
)


def predictions(fit: Fit | None = None) -> Iterator[tuple[Figure, Prediction, float]]:
    """Each figure with the prediction for our kernel of that kind, and the TFLOPS that are predicted."""
    for figure in FIGURES:
        name, _, config = figure.kernel.partition(":")
        record = find(name)
        board = next(device for device in devices.DEVICES if device.title == figure.card)
        rates = devices.rates(board.title, board.compute_capability, board.multiprocessors)
        assert record is not None and record.kernels is not None
        ranking = cost.rank(record.kernels(rates, figure.size), figure.size, rates, fit)
        found = next(one for one in ranking if config in ("", one.config))
        size = figure.size
        yield figure, found, 2 * size.M * size.N * size.K * size.batch / found.seconds * 1e-12
