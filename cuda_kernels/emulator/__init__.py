"""The CUDA kernels on a CPU: the same source compiled against the names of ptx.cuh, with every access checked."""
