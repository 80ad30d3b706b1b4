"""Explicit tuning: every configuration that takes a product is tried on this GPU, and the order is kept for ``auto``.

Read in this order: ``candidates`` (who is tried, and who is not), ``compiling`` (all at once, before anything is
timed), ``trials`` (checked, then timed in rounds from which the losers drop out), ``tuner`` (product after product),
``__main__`` (the command). ``hgemm.tuned`` keeps what was found. ``matmul`` itself neither times nor searches.
"""
