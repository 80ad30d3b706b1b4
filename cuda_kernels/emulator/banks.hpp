// Bank conflicts: how many passes over shared memory an access of a warp takes.
//
// Shared memory delivers 32 banks of 4 bytes, 128 bytes, at a time. Lanes that access 4 bytes each go together, 32 at a
// time; of 16 bytes, 8 at a time. Within such a phase two lanes conflict if they want different words of one bank;
// lanes that want the same words share a pass.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "operations.hpp"

namespace hgemm::emulator {

// Passes that conflicts add. `addresses[i]`, a multiple of `width`, counts if bit i of `lanes` is set; width is 4
// or 16.
inline uint32_t extra_wavefronts(const uint32_t* addresses, uint32_t lanes, uint32_t width) {
  const uint32_t slots = 128 / width;  // places across the banks; also the lanes of a phase
  uint32_t extra = 0;
  for (uint32_t start = 0; start < 32; start += slots) {
    uint32_t words[32] = {}, passes = 1;  // distinct addresses in each slot
    for (uint32_t i = start; i < start + slots; ++i) {
      if (!(lanes >> i & 1)) continue;
      uint32_t j = start;
      while (j < i && !(lanes >> j & 1 && addresses[j] == addresses[i])) ++j;
      if (j < i) continue;  // shares the pass of an earlier lane
      const uint32_t rivals = ++words[addresses[i] / width % slots];
      if (rivals > passes) passes = rivals;
    }
    extra += passes - 1;
  }
  return extra;
}

// Loads and stores of a warp's lanes reach the emulator one by one. The n-th execution of one line of source by each
// lane is taken to be one instruction of the warp.
class BankRecorder {
 public:
  void reset() { lines_.clear(); }

  void record(Operation operation, const Site& site, uint32_t lane, uint32_t address, uint32_t width,
              Counters& counters) {
    Line& line = find(operation, site, width);
    const uint64_t number = line.executions[lane]++ - line.first;
    if (number >= line.open.size()) line.open.resize(number + 1);
    Instruction& instruction = line.open[number];
    instruction.lanes |= 1u << lane;
    instruction.addresses[lane] = address;
    while (!line.open.empty() && line.open.front().lanes == ~0u) close_first(line, counters);
  }

  // Instructions in which not all lanes took part.
  void finish(Counters& counters) {
    for (Line& line : lines_)
      while (!line.open.empty()) close_first(line, counters);
    lines_.clear();
  }

 private:
  struct Instruction {
    uint32_t lanes = 0;
    uint32_t addresses[32];
  };
  struct Line {
    Operation operation;
    const char* file;
    uint32_t line, column, width;
    std::array<uint64_t, 32> executions{};
    uint64_t first = 0;  // number of the first open instruction
    std::deque<Instruction> open = {};
  };

  Line& find(Operation operation, const Site& site, uint32_t width) {
    for (Line& line : lines_)
      if (line.line == site.line() && line.column == site.column() && line.operation == operation &&
          line.file == site.file_name())
        return line;
    lines_.push_back({operation, site.file_name(), site.line(), site.column(), width});
    return lines_.back();
  }

  static void close_first(Line& line, Counters& counters) {
    const Instruction& instruction = line.open.front();
    if (instruction.lanes) {
      OperationCounter& counter = counters[line.operation];
      ++counter.executed;
      counter.extra_wavefronts += extra_wavefronts(instruction.addresses, instruction.lanes, line.width);
    }
    line.open.pop_front();
    ++line.first;
  }

  std::vector<Line> lines_;
};

}  // namespace hgemm::emulator
