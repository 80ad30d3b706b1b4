// Turns a list of kernels, one for each configuration, into the C interface of launch.h.
#pragma once

#include "epilogue.cuh"
#include "launch.cuh"

namespace hgemm {

template <class... Gemms>
struct Unit {
  static constexpr int COUNT = sizeof...(Gemms);

  static const char* name(int config) {
    static constexpr const char* names[] = {Gemms::Shape::NAME...};
    return config >= 0 && config < COUNT ? names[config] : nullptr;
  }

  static size_t workspace_bytes(const HgemmProblem& problem, int config) {
    return refuse(problem, config) ? 0 : workspace_of_config(problem, config);  // a launch says why
  }

  static const char* launch(const HgemmProblem& problem, int config, void* workspace, size_t bytes, void* stream) {
    static constexpr const char* (*launchers[])(const HgemmProblem&, void*, void*) = {Gemms::launch...};
    if (const char* error = refuse(problem, config)) return error;
    if (const size_t needed = workspace_of_config(problem, config); bytes < needed)
      return message("a workspace of %zu bytes: %s needs %zu", bytes, name(config), needed);
    return launchers[config](problem, workspace, stream);
  }

  static const char* resources(int config, HgemmResources* result) {
    static constexpr const char* (*queries[])(HgemmResources*) = {Gemms::resources...};
    if (config < 0 || config >= COUNT) return message("configuration %d of %d", config, COUNT);
    return queries[config](result);
  }

  static int64_t ldmatrix_offset(int config, int operand, int warp, int lane, int fragment, int step) {
    static constexpr int64_t (*offsets[])(int, int, int, int, int) = {lane_offset<typename Gemms::Shape>...};
    return config >= 0 && config < COUNT ? offsets[config](operand, warp, lane, fragment, step) : -1;
  }

 private:
  static size_t workspace_of_config(const HgemmProblem& problem, int config) {
    static constexpr size_t (*sizes[])(const HgemmProblem&) = {workspace_of<Gemms>...};
    return sizes[config](problem);
  }

  template <class Gemm>
  static size_t workspace_of(const HgemmProblem& problem) {
    if constexpr (requires { Gemm::workspace_bytes(problem); }) return Gemm::workspace_bytes(problem);
    return 0;
  }

  template <class Config>
  static int64_t lane_offset(int operand, int warp, int lane, int fragment, int step) {
    using Lane = LaneOffset<Config>;
    const int fragments = (operand == 0 ? Config::WARP_M : Config::WARP_N) / 16, steps = Config::TILE_K / 16;
    const auto within = [](int value, int count) { return value >= 0 && value < count; };
    if (!within(operand, 2) || !within(warp, Config::WARPS) || !within(lane, 32) || !within(fragment, fragments) ||
        !within(step, steps))
      return -1;
    return operand == 0 ? moved<typename Lane::A>(Lane::a(warp, lane), Config::row_distance(fragment * 16), step * 16)
                        : moved<typename Lane::B>(Lane::b(warp, lane), fragment * 16, step * 16);
  }

  // What every family asks for, checked in the last place before a launch. Python has described these refusals to its
  // user before; here they only keep a wrong call from becoming a wrong result.
  static const char* refuse(const HgemmProblem& p, int config) {
    if (config < 0 || config >= COUNT) return message("configuration %d of %d", config, COUNT);
    constexpr int64_t LARGEST = INT32_MAX - 256;  // room for a coordinate to run past an edge by one tile
    for (int64_t extent : {p.M, p.N, p.K, p.batch})
      if (extent < 1 || extent > LARGEST)
        return message("M, N, K, batch = %lld, %lld, %lld, %lld: each must lie in 1 .. %lld", (long long)p.M,
                       (long long)p.N, (long long)p.K, (long long)p.batch, (long long)LARGEST);
    static constexpr int64_t (*block_counts[])(const HgemmProblem&) = {block_count<typename Gemms::Shape>...};
    static constexpr int parts[] = {Gemms::Shape::PARTS...};
    if (block_counts[config](p) * parts[config] > INT32_MAX)
      return message("%lld tiles of C in %d parts: a grid has at most %d", (long long)block_counts[config](p),
                     parts[config], INT32_MAX);
    return nullptr;
  }
};

}  // namespace hgemm

// Defines the exported functions of the unit that `THIS_UNIT`, a Unit<...>, names.
#define HGEMM_EXPORT(THIS_UNIT)                                                                                    \
  extern "C" {                                                                                                     \
  int hgemm_config_count(void) { return THIS_UNIT::COUNT; }                                                        \
  const char* hgemm_config_name(int config) { return THIS_UNIT::name(config); }                                    \
  size_t hgemm_workspace_bytes(const HgemmProblem* problem, int config) {                                          \
    return THIS_UNIT::workspace_bytes(*problem, config);                                                           \
  }                                                                                                                \
  const char* hgemm_launch(const HgemmProblem* problem, int config, void* workspace, size_t workspace_bytes,       \
                           void* stream) {                                                                         \
    return THIS_UNIT::launch(*problem, config, workspace, workspace_bytes, stream);                                \
  }                                                                                                                \
  const char* hgemm_resources(int config, HgemmResources* result) { return THIS_UNIT::resources(config, result); } \
  uint32_t hgemm_swizzle(uint32_t span, uint32_t offset) { return hgemm::swizzle(span, offset); }                  \
  int64_t hgemm_ldmatrix_offset(int config, int operand, int warp, int lane, int fragment, int step) {             \
    return THIS_UNIT::ldmatrix_offset(config, operand, warp, lane, fragment, step);                                \
  }                                                                                                                \
  void hgemm_raster(int64_t index, int64_t tiles_m, int64_t tiles_n, int64_t* tile_m, int64_t* tile_n) {           \
    const hgemm::TileIndex tile = hgemm::raster(index, tiles_m, tiles_n);                                          \
    *tile_m = tile.m;                                                                                              \
    *tile_n = tile.n;                                                                                              \
  }                                                                                                                \
  }
