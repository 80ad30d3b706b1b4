// What block 0 does with its shared memory, piece by piece and in the order in which it happens: a picture of the
// pipeline is drawn from it.
#pragma once

#include <cstdint>
#include <vector>

namespace hgemm::emulator {

enum class Happening : uint8_t {
  issued,  // an asynchronous copy into the piece was started
  landed,  // its bytes are there
  read,    // an ldmatrix read it
};

constexpr const char* HAPPENING_NAMES[] = {"issued", "landed", "read"};

struct Trace {
  struct Entry {
    uint64_t step;  // instructions of the block's warps so far
    Happening happening;
    uint32_t piece;
  };

  uint64_t step = 0;
  std::vector<Entry> entries;

  // Pieces of so many bytes from `base` on; 0: nothing is noted.
  void reset(uint32_t piece_bytes, uint32_t base) {
    *this = Trace();
    piece_bytes_ = piece_bytes;
    base_ = base;
  }

  // What is the same as before, as the other lanes of a warp do it, is noted once.
  void note(Happening happening, uint32_t address) {
    if (!piece_bytes_) return;
    const uint32_t piece = (address - base_) / piece_bytes_;
    if (!entries.empty()) {
      const Entry& last = entries.back();
      if (last.step == step && last.happening == happening && last.piece == piece) return;
    }
    entries.push_back({step, happening, piece});
  }

 private:
  uint32_t piece_bytes_ = 0, base_ = 0;
};

}  // namespace hgemm::emulator
