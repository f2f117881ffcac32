// SPDX-License-Identifier: Apache-2.0
// Implements sixteen fp32 lanes in plain C++. The loops of updates and norms are written in such
// lanes, and these are the reference for those of each instruction set
// (client/kernels/lanes_avx2.h, client/kernels/lanes_avx512.h). Every operation is correctly
// rounded, so all give the same bits, except for the bits of NaNs, which OneNaN makes equal.
//   Floats 16 fp32 values · Words 32 patterns of 16 bits, for two Floats · Doubles 8 fp64 sums
// Stream: stores past the caches. The address must be a multiple of 64, and other threads may rely
//         on the store only after Fence.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "gemini/half_float.h"
#include "gemini/split_float.h"

namespace gemini::client {

struct LanesPortable {
  struct Floats {
    float lane[16];
  };
  struct Words {
    uint16_t lane[32];
  };
  struct Doubles {
    double lane[8];
  };

  static Floats Set(float value) {
    return Map([&](int) { return value; });
  }
  static Floats Load(const float* from) {
    Floats value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static Words LoadWords(const uint16_t* from) {
    Words value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void Store(float* to, const Floats& value) { std::memcpy(to, &value, sizeof(value)); }
  static void Stream(float* to, const Floats& value) { Store(to, value); }
  static void StoreWords(uint16_t* to, const Words& value) {
    std::memcpy(to, &value, sizeof(value));
  }
  static void StreamWords(uint16_t* to, const Words& value) { StoreWords(to, value); }

  static Floats Add(const Floats& a, const Floats& b) {
    return Map([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Floats Sub(const Floats& a, const Floats& b) {
    return Map([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Floats Mul(const Floats& a, const Floats& b) {
    return Map([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Floats Div(const Floats& a, const Floats& b) {
    return Map([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  // Returns a * b + c, rounded once.
  static Floats Fma(const Floats& a, const Floats& b, const Floats& c) {
    return Map([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static Floats Sqrt(const Floats& a) {
    return Map([&](int i) { return std::sqrt(a.lane[i]); });
  }
  // Returns whether a lane of one of the two is a NaN.
  static bool AnyNaN(const Floats& a, const Floats& b) {
    bool any = false;
    for (int i = 0; i < 16; ++i) any |= std::isnan(a.lane[i]) || std::isnan(b.lane[i]);
    return any;
  }
  // Replaces every NaN by that of kSplitNaN.
  static Floats OneNaN(const Floats& a) {
    return Map(
        [&](int i) { return std::isnan(a.lane[i]) ? std::bit_cast<float>(kSplitNaN) : a.lane[i]; });
  }

  static void OfBf16(const Words& bits, Floats& first, Floats& second) {
    first = Map([&](int i) { return FloatOfBf16(bits.lane[i]); });
    second = Map([&](int i) { return FloatOfBf16(bits.lane[16 + i]); });
  }
  static void OfFp16(const Words& bits, Floats& first, Floats& second) {
    first = Map([&](int i) { return FloatOfFp16(bits.lane[i]); });
    second = Map([&](int i) { return FloatOfFp16(bits.lane[16 + i]); });
  }
  // Rounds to nearest, ties to even.
  static Words Fp16Of(const Floats& first, const Floats& second) {
    return MapWords(first, second, [](float value) { return gemini::Fp16Of(value); });
  }
  // Join and split the halves of gemini/split_float.h. A NaN that is split must come from OneNaN.
  static void JoinSplit(const Words& high, const Words& low, Floats& first, Floats& second) {
    const auto join = [&](int i) {
      return JoinOf({.high = high.lane[i], .low = static_cast<int16_t>(low.lane[i])});
    };
    first = Map(join);
    second = Map([&](int i) { return join(16 + i); });
  }
  static void Split(const Floats& first, const Floats& second, Words& high, Words& low) {
    high = MapWords(first, second, [](float value) { return SplitOf(value).high; });
    low = MapWords(first, second,
                   [](float value) { return static_cast<uint16_t>(SplitOf(value).low); });
  }

  static Doubles Zeros() { return {}; }
  // Adds the square of lane i to sums[i % 8], the lanes in order. Squares are exact, so a fused
  // operation gives the same bits.
  static void AddSquares(const Floats& value, Doubles& sums) {
    for (int i = 0; i < 16; ++i) sums.lane[i % 8] += double{value.lane[i]} * double{value.lane[i]};
  }
  static void StoreDoubles(double* to, const Doubles& value) {
    std::memcpy(to, &value, sizeof(value));
  }

  static void Fence() {}

 private:
  template <typename Function>
  static Floats Map(const Function& function) {
    Floats result;
    for (int i = 0; i < 16; ++i) result.lane[i] = function(i);
    return result;
  }
  template <typename Function>
  static Words MapWords(const Floats& first, const Floats& second, const Function& function) {
    Words result;
    for (int i = 0; i < 16; ++i) result.lane[i] = function(first.lane[i]);
    for (int i = 0; i < 16; ++i) result.lane[16 + i] = function(second.lane[i]);
    return result;
  }
};

}  // namespace gemini::client
