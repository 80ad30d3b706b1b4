"""What a kernel is made of and what it does: resources and main loop from compiled code, counters from Nsight Compute.

The static half needs no GPU. Counters are read by ``ncu`` from a child process that makes one call.
"""
