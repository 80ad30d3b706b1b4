"""What every ``python -m hgemm.X`` shares: how it reads its options, and how it ends."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn

INTERRUPTED = 130
CLOSED_PIPE = 1


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with status 2: thirty options of usage in front of it hide what is wrong."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Else -1,2,3 is taken for an option, and all that is said is that a value is missing. No option is a number.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)} (--help lists the options)\n")


def reading(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """``parse`` as the type of an option: the message of its ValueError is the parser's."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def names(known: Collection[str], what: str) -> Callable[[str], tuple[str, ...]]:
    """The type of an option whose value is some of the ``known`` names, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(text.split(",")))
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"a {what} is one of {', '.join(known)}, found {name!r}")
        return found

    return parse


def printable(text: str) -> str:
    """``text`` on one line, with a space for any white space and escapes for what would steer a terminal or break a
    document."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else char.encode("unicode_escape").decode()
        for char in text
    )


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
