"""Measuring: contestants interleaved in random order, checked before they are timed, beside the device's own limits.

    python -m hgemm.bench --help

Read in this order: ``suites`` (what is measured), ``contestants`` (by whom), ``bursts`` and ``machine`` (how calls are
timed), ``preflight`` and ``prepare`` (tried, checked and captured first), ``measure`` (the rounds), ``schema`` and
``results`` (the file), ``resume`` (going on with one), ``metrics`` and ``statistics`` (the numbers drawn from it),
``tables`` and ``spreadsheet`` (how they are shown), ``options`` and ``__main__`` (the command).
"""
