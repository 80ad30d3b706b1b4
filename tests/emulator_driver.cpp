// All kernels on memory of exactly the right size, for test_emulator_sanitizers.py. "short": A lacks its last
// row.
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "cp_async.cuh"
#include "emulator/control.h"
#include "tma.cuh"
#include "tma_producer.cuh"
#include "tma_rotating.cuh"

namespace {

template <int Stages, bool Persistent, int Parts = 1, int Cluster = 1>
struct Config : hgemm::TileShape<64, 64, 32, Stages, 32, 32> {
  static constexpr bool PERSISTENT = Persistent;
  static constexpr int PARTS = Parts, CLUSTER = Cluster;
  static constexpr int BLOCKS_PER_MULTIPROCESSOR = 1;
  static constexpr bool A_K_CONTIGUOUS = true, B_K_CONTIGUOUS = false;
  static constexpr const char* NAME = "driver";
};

struct alignas(16) Chunk {
  uint16_t element[8];
};

using Launch = const char* (*)(const HgemmProblem&, void* workspace, void* stream);

// A product of ones: every element of C is K.
bool multiply(Launch launch, const char* schedule, int M, int N, int K, int lacking_rows) {
  constexpr uint16_t ONE = 0x3c00;
  const Chunk ones{{ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE}};
  std::vector<Chunk> a((M - lacking_rows) * K / 8, ones), b(K * N / 8, ones), c(M * N / 8);
  HgemmProblem p{};
  p.a = a.data(), p.b = b.data(), p.c = c.data();
  p.M = M, p.N = N, p.K = K, p.batch = 1;
  p.a_row_stride = K, p.b_row_stride = N, p.c_row_stride = N;
  p.a_column_stride = p.b_column_stride = p.c_column_stride = 1;
  const HgemmEmulatorOptions options{schedule, 0, 2, nullptr, 0};
  if (const char* error = hgemm_emulator_begin(nullptr, 0, &options)) return puts(error), false;
  if (const char* error = launch(p, nullptr, nullptr)) return puts(error), false;
  const std::string report = hgemm_emulator_end();
  if (report.find("\"events\": []") == std::string::npos) return puts(report.c_str()), false;
  const uint32_t expected = hgemm::f16::pack(static_cast<float>(K), 0) & 0xffff;
  for (const Chunk& chunk : c)
    for (uint16_t value : chunk.element)
      if (value != expected) return printf("%d x %d x %d: wrong\n", M, N, K), false;
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  const bool lacking = count > 1 && !strcmp(arguments[1], "short");
  const Launch launches[] = {hgemm::CpAsyncGemm<hgemm::f16, Config<2, false>>::launch,
                             hgemm::TmaGemm<hgemm::f16, Config<2, false>>::launch,
                             hgemm::TmaGemm<hgemm::f16, Config<4, false, 2>>::launch,
                             hgemm::TmaRotatingGemm<hgemm::f16, Config<3, false>>::launch,
                             hgemm::TmaRotatingGemm<hgemm::f16, Config<5, true>>::launch,
                             hgemm::TmaProducerGemm<hgemm::f16, Config<3, true, 1, 2>>::launch};
  for (Launch launch : launches)
    for (const char* schedule : {"eager", "lazy", "lazy,reversed", "random,seed=1"})
      for (int K : {8, 40, 72, 104})
        if (!multiply(launch, schedule, 72, 136, K, lacking)) return 1;
  puts("ok");
}
