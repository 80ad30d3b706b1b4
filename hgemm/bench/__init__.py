"""Measuring: contestants interleaved in random order, checked before they are timed, beside the device's own limits.

    python -m hgemm.bench --help

Read in this order: ``suites`` (what is measured), ``contestants`` (by whom), ``machine`` (how a burst is timed),
``prepare`` (checked and captured first), ``measure`` (the rounds), ``schema`` and ``results`` (the file), ``metrics``
and ``statistics`` (the numbers drawn from it).
"""
