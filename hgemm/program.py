"""How every ``python -m hgemm.X`` ends: with its status, with no traceback for Ctrl-C or a closed pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130
CLOSED_PIPE = 1


def end_with(main: Callable[[], int]) -> NoReturn:
    """Exits with what ``main`` returns, with INTERRUPTED after Ctrl-C, and silently with CLOSED_PIPE where nobody reads
    the output any more, as with ``| head``."""
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = CLOSED_PIPE
    sys.exit(status)
