// SPDX-License-Identifier: Apache-2.0
// The nearest code is found by a table over the upper 16 bits of x, a cell each: no cell holds more
// than one of the borders between codes, so the code of its lowest value and one comparison are
// enough. Plain loops: two look-ups an element cost less than vector gathers of them.
#include "client/kernels/moment_quantisation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "client/kernels/default_rounding.h"
#include "gemini/philox.h"
#include "gemini/system/check.h"

namespace gemini::client {
namespace {

// Cells from 2^-23, below which everything is zero, to 1. The lowest one also holds what is nearer
// to zero.
constexpr int32_t kLowestCell = 0x3400;
constexpr int32_t kNumCells = 0x3f80 - kLowestCell + 1;

struct CodeTable {
  std::array<float, 256> values;
  // The largest fp32 not above the middle between a code and the next: above it is the next code's.
  std::array<float, 256> borders;
  // The code of the lowest x of a cell: positive ones, then those below zero.
  std::array<uint8_t, 2 * kNumCells> codes;
};

std::array<float, 256> MakeValues(MomentCode code) {
  std::vector<double> values = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = 1 << ((code == MomentCode::kSigned ? 6 : 7) - decade);
    for (int part = 0; part < parts; ++part) {
      const double value = std::pow(10.0, -decade) * (0.1 + 0.9 * (part + 0.5) / parts);
      values.push_back(value);
      if (code == MomentCode::kSigned) values.push_back(-value);
    }
  }
  GEMINI_CHECK(values.size() == 256);
  std::ranges::sort(values);
  std::array<float, 256> rounded;
  std::ranges::transform(values, rounded.begin(),
                         [](double value) { return static_cast<float>(value); });
  return rounded;
}

CodeTable MakeTable(MomentCode code) {
  CodeTable table = {.values = MakeValues(code), .borders = {}, .codes = {}};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 255; ++i) {
    const double middle = (double{table.values[i]} + double{table.values[i + 1]}) / 2;
    const auto rounded = static_cast<float>(middle);
    table.borders[i] = double{rounded} > middle ? std::nextafter(rounded, -kInfinity) : rounded;
  }
  table.borders[255] = kInfinity;
  if (code == MomentCode::kUnsigned) table.borders[0] = 0;  // Nothing above 0 becomes 0.
  const auto code_of = [&](float x) {
    return std::ranges::lower_bound(table.borders, x) - table.borders.begin();
  };
  for (int32_t cell = 0; cell < kNumCells; ++cell) {
    const auto first = static_cast<uint32_t>(cell + kLowestCell) << 16;
    const float nearest = cell == 0 ? 0 : std::bit_cast<float>(first);
    const float farthest = std::bit_cast<float>(first | 0xffff);
    table.codes[cell] = static_cast<uint8_t>(code_of(nearest));
    table.codes[kNumCells + cell] = static_cast<uint8_t>(code_of(-farthest));
    GEMINI_CHECK(code_of(farthest) - code_of(nearest) <= 1);
    GEMINI_CHECK(code_of(-nearest) - code_of(-farthest) <= 1);
  }
  return table;
}

const CodeTable& TableOf(MomentCode code) {
  static const std::array<CodeTable, 2> tables = {MakeTable(MomentCode::kSigned),
                                                  MakeTable(MomentCode::kUnsigned)};
  return tables[static_cast<size_t>(code)];
}

template <MomentCode kCode>
uint8_t NearestCode(const CodeTable& table, float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  int32_t index = 0;
  if constexpr (kCode == MomentCode::kUnsigned) {
    // As an integer, what is below zero is too, and lies in the lowest cell.
    index = std::max(bits >> 16, kLowestCell) - kLowestCell;
  } else {
    index = std::max((bits & 0x7fffffff) >> 16, kLowestCell) - kLowestCell;
    index += bits < 0 ? kNumCells : 0;
  }
  const uint8_t lowest = table.codes[index];
  return static_cast<uint8_t>(lowest + (x > table.borders[lowest]));
}

template <MomentCode kCode>
uint8_t StochasticCode(const CodeTable& table, float x, uint8_t nearest, uint32_t random) {
  const int lower = nearest > 0 && table.values[nearest] > x ? nearest - 1 : nearest;
  if (lower == 255) return 255;
  if (kCode == MomentCode::kUnsigned && lower == 0) return nearest;
  const float part = (x - table.values[lower]) / (table.values[lower + 1] - table.values[lower]);
  return static_cast<uint8_t>(lower + (static_cast<float>(random >> 8) * 0x1p-24f < part));
}

// The value of the largest magnitude, of two with opposite signs the positive one; NaN: one is not
// finite.
float LargestOf(const float* values, int64_t count) {
  // Bits of magnitudes are ordered as the magnitudes are, infinity and NaNs above all, and as
  // signed integers all values below zero are negative.
  uint32_t magnitude = 0;
  int32_t positive = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    magnitude = std::max(magnitude, bits & 0x7fffffff);
    positive = std::max(positive, static_cast<int32_t>(bits));
  }
  if (magnitude >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
  const auto largest = std::bit_cast<float>(magnitude);
  return static_cast<uint32_t>(positive) == magnitude ? largest : -largest;
}

template <MomentCode kCode>
float QuantiseBlock(const CodeTable& table, const float* values, int64_t first_element,
                    int64_t count, const StochasticRounding* stochastic, uint8_t* codes) {
  const float scale = LargestOf(values, count);
  if (std::isnan(scale)) {
    std::memset(codes, 255, static_cast<size_t>(count));
    return scale;
  }
  const float divisor = scale == 0 ? 1 : scale;
  float x[kQuantisationBlockElements];
  for (int64_t i = 0; i < count; ++i) x[i] = values[i] / divisor;
  for (int64_t i = 0; i < count; ++i) codes[i] = NearestCode<kCode>(table, x[i]);
  if (stochastic == nullptr) return scale;
  // Four elements share a counter.
  for (int64_t i = 0; i < count; i += 4) {
    const auto quad = static_cast<uint64_t>(first_element + i) / 4;
    const std::array<uint32_t, 4> random =
        Philox({static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32),
                static_cast<uint32_t>(stochastic->step), static_cast<uint32_t>(kCode)},
               stochastic->seed);
    for (int64_t j = i; j < std::min(i + 4, count); ++j) {
      codes[j] = StochasticCode<kCode>(table, x[j], codes[j], random[j - i]);
    }
  }
  return scale;
}

}  // namespace

const std::array<float, 256>& CodeValues(MomentCode code) { return TableOf(code).values; }

void DequantiseMoment(MomentCode code, const uint8_t* codes, const float* scales, int64_t count,
                      float* values) {
  if (codes == nullptr) {
    std::fill_n(values, count, 0.0f);
    return;
  }
  const DefaultRounding rounding;
  const std::array<float, 256>& table = TableOf(code).values;
  for (int64_t begin = 0; begin < count; begin += kQuantisationBlockElements) {
    const int64_t end = std::min(begin + kQuantisationBlockElements, count);
    const float scale = *scales++;
    for (int64_t i = begin; i < end; ++i) values[i] = table[codes[i]] * scale;
  }
}

void QuantiseMoment(MomentCode code, const float* values, int64_t first_element, int64_t count,
                    const StochasticRounding* stochastic, uint8_t* codes, float* scales) {
  GEMINI_CHECK(first_element % kQuantisationBlockElements == 0);
  const DefaultRounding rounding;
  const CodeTable& table = TableOf(code);
  const auto quantise = code == MomentCode::kSigned ? &QuantiseBlock<MomentCode::kSigned>
                                                    : &QuantiseBlock<MomentCode::kUnsigned>;
  for (int64_t begin = 0; begin < count; begin += kQuantisationBlockElements) {
    const int64_t size = std::min(kQuantisationBlockElements, count - begin);
    *scales++ =
        quantise(table, values + begin, first_element + begin, size, stochastic, codes + begin);
  }
}

}  // namespace gemini::client
