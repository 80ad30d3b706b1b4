// What belongs together between hgemm_emulator_begin and hgemm_emulator_end: settings, memory and one report.
#pragma once

#include <string>

#include "global_memory.hpp"
#include "group.hpp"

namespace hgemm::emulator {

struct Session {
  Settings settings;
  GlobalMemory memory;
  Report report;
  bool open = false;
  uint32_t launches = 0;
  std::string text;  // what the last call returned

  // The session of the calling thread.
  static Session& mine();

  // Takes the schedule given, or the environment's, or lazy. Returns what is wrong with it, or nothing.
  std::string begin(const HgemmMemory* memories, size_t count, const HgemmEmulatorOptions* options);
  // Runs all blocks of a launch, on several threads of the host if they are independent.
  void run(const Launch& launch);
};

std::string to_json(const Report& report, const Schedule& schedule, uint32_t shared_base);

}  // namespace hgemm::emulator
