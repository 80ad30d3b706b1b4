// What a kernel of your own includes: all of our headers, and a macro that makes it callable from Python.
//
//   HGEMM_USER_KERNEL(problem, stream) { return launch<my_kernel>(blocks, threads, shared_bytes, stream, ...); }
//
// `problem` is a const HgemmProblem& (launch.h): row-major matrices, C[M, N] = A[M, K] @ B[K, N]. Return the message
// with which you refuse a product, or what `launch` returns. `Element` is f16 or bf16, as the tensors are.
#pragma once

#include "epilogue.cuh"
#include "launch.cuh"
#include "mainloop.cuh"
#include "pipeline.cuh"
#include "ptx_cluster.cuh"
#include "raster.cuh"

using namespace hgemm;
using Element = HGEMM_ELEMENT;

#define HGEMM_USER_KERNEL(problem, stream)                                                          \
  static const char* launch_user_kernel(const HgemmProblem& problem, void* stream);                 \
  extern "C" {                                                                                      \
  int hgemm_config_count(void) { return 1; }                                                        \
  const char* hgemm_config_name(int config) { return config == 0 ? "user" : nullptr; }              \
  size_t hgemm_workspace_bytes(const HgemmProblem*, int) { return 0; }                              \
  const char* hgemm_launch(const HgemmProblem* it, int, void*, size_t, void* on) {                  \
    return launch_user_kernel(*it, on);                                                             \
  }                                                                                                 \
  const char* hgemm_resources(int, HgemmResources*) { return "not known of a kernel of your own"; } \
  }                                                                                                 \
  static const char* launch_user_kernel([[maybe_unused]] const HgemmProblem& problem, [[maybe_unused]] void* stream)
