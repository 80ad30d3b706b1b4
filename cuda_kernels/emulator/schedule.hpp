// In which order emulated threads run, and when asynchronous copies land: all that a GPU leaves open.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace hgemm::emulator {

struct Schedule {
  enum class Copies : uint8_t {
    eager,   // a copy lands when it is issued: the luckiest machine
    lazy,    // a copy lands when nothing else can go on, a cp.async when it is waited for: the unluckiest
    random,  // at any time between; warps and lanes are drawn too, and interrupted anywhere
  };
  Copies copies = Copies::lazy;
  bool reversed = false;  // the highest warp and lane first instead of the lowest
  uint64_t seed = 1;      // of random: equal seeds give equal runs

  // "eager", "lazy", "random", then ",reversed" or ",seed=N". Returns what is wrong with the text, or nothing.
  std::string parse(const char* text) {
    *this = Schedule();
    const std::string all = text;
    for (size_t start = 0, part = 0; start <= all.size(); ++part) {
      const size_t end = std::min(all.find(',', start), all.size());
      const std::string word = all.substr(start, end - start);
      char* rest = nullptr;
      if (part == 0 && word == "eager") {
        copies = Copies::eager;
      } else if (part == 0 && word == "lazy") {
        copies = Copies::lazy;
      } else if (part == 0 && word == "random") {
        copies = Copies::random;
      } else if (part > 0 && word == "reversed" && copies != Copies::random) {
        reversed = true;
      } else if (part > 0 && word.rfind("seed=", 0) == 0 && copies == Copies::random && word.size() > 5) {
        seed = strtoull(word.c_str() + 5, &rest, 10);
        if (*rest) return refusal(all, word);
      } else {
        return refusal(all, word);
      }
      start = end + 1;
    }
    return {};
  }

  std::string text() const {
    if (copies == Copies::random) return "random,seed=" + std::to_string(seed);
    return std::string(copies == Copies::eager ? "eager" : "lazy") + (reversed ? ",reversed" : "");
  }

 private:
  static std::string refusal(const std::string& all, const std::string& word) {
    return "schedule '" + all + "': '" + word +
           "' is not understood; schedules are eager, lazy, eager,reversed, lazy,reversed and random,seed=N";
  }
};

// xorshift64: small, fast, and the same everywhere.
class Random {
 public:
  void seed(uint64_t seed, uint64_t stream) {
    state_ = (seed * 0x9e3779b97f4a7c15u) ^ (stream * 0xbf58476d1ce4e5b9u) ^ 0x1234567u;
    if (!state_) state_ = 1;
    for (int i = 0; i < 8; ++i) next();
  }
  uint32_t below(uint32_t bound) { return next() % bound; }

 private:
  uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 16);
  }

  uint64_t state_ = 1;
};

}  // namespace hgemm::emulator
