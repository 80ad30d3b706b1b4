"""The Triton kernels: twins of the handwritten CUDA kernels, under the same names of configurations."""
