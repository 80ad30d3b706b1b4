"""Handwritten CUDA kernels, and what compiles and calls them. Importing this compiles nothing and needs no GPU."""
