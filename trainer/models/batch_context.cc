// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/batch_context.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/outer.h"
#include "ATen/ops/pow.h"

namespace gemini::trainer {
namespace {

// These compute as transformers does (modeling_rope_utils.py), in fp32 and in its order of
// operations: at position 8,192 the last bit of a frequency is 5e-4 of an angle. Torch divides a
// number by a tensor as number * (1 / tensor).

float ScaledByTurns(const RotarySpec& rotary, float frequency) {
  const auto factor = static_cast<float>(rotary.factor);
  const auto positions = static_cast<float>(rotary.original_positions);
  const auto low = static_cast<float>(rotary.low_turns);
  const auto high = static_cast<float>(rotary.high_turns);
  const float turn = 1 / frequency * static_cast<float>(2 * std::numbers::pi);  // In positions.
  if (turn > positions / low) return frequency / factor;
  if (turn < positions / high) return frequency;
  const float part = (1 / turn * positions - low) / (high - low);
  return (1 - part) * frequency / factor + part * frequency;
}

// The pairs between which Yarn interpolates: before the first all frequencies are kept, behind the
// last all are divided.
std::pair<double, double> YarnRange(const RotarySpec& rotary, int64_t size) {
  const auto pair_with = [&](double turns) {
    return static_cast<double>(size) *
           std::log(static_cast<double>(rotary.original_positions) /
                    (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rotary.theta));
  };
  double first = pair_with(rotary.high_turns);
  double last = pair_with(rotary.low_turns);
  if (rotary.whole_pairs) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(size - 1));
  return {first, first == last ? last + 0.001 : last};  // No division by 0.
}

float ScaledByPair(const RotarySpec& rotary, const std::pair<double, double>& range, int64_t pair,
                   float period) {
  const auto length = static_cast<float>(range.second - range.first);
  const float place = (static_cast<float>(pair) - static_cast<float>(range.first)) / length;
  const float kept = 1 - std::clamp(place, 0.0f, 1.0f);
  return 1 / (static_cast<float>(rotary.factor) * period) * (1 - kept) + 1 / period * kept;
}

// Returns the turn of each pair from one position to the next, in radians: [size / 2], fp32.
// `size`: elements of a head that are rotated.
torch::Tensor FrequenciesOf(const RotarySpec& rotary, int64_t size, int64_t sequence) {
  const torch::Tensor exponents = at::arange(0, size, 2, torch::kFloat32) / size;
  const torch::Tensor periods = at::pow(at::Scalar(rotary.theta), exponents);
  torch::Tensor frequencies = periods.reciprocal();
  auto* const values = frequencies.mutable_data_ptr<float>();
  std::pair<double, double> range;
  if (rotary.scaling == RotarySpec::Scaling::kYarn) range = YarnRange(rotary, size);
  for (int64_t i = 0; i < frequencies.numel(); ++i) {
    switch (rotary.scaling) {
      case RotarySpec::Scaling::kNone:
        break;
      case RotarySpec::Scaling::kLinear:
        values[i] /= static_cast<float>(rotary.factor);
        break;
      case RotarySpec::Scaling::kLlama3:
        values[i] = ScaledByTurns(rotary, values[i]);
        break;
      case RotarySpec::Scaling::kYarn:
        values[i] = ScaledByPair(rotary, range, i, periods.const_data_ptr<float>()[i]);
        break;
      case RotarySpec::Scaling::kLongRope: {
        const std::vector<double>& factors =
            sequence > rotary.original_positions ? rotary.long_factors : rotary.short_factors;
        values[i] = 1 / (static_cast<float>(factors[static_cast<size_t>(i)]) *
                         periods.const_data_ptr<float>()[i]);
        break;
      }
    }
  }
  return frequencies;
}

// `longest` counts the tokens of the longest document.
HeadAngles MakeAngles(const RotarySpec& rotary, int64_t head_size, int64_t sequence,
                      int64_t longest, const torch::TensorOptions& options) {
  // Angles in fp32, whatever the hidden state is in: 16 bits cannot tell late positions apart.
  const torch::Tensor positions =
      at::arange(sequence, torch::dtype(torch::kFloat32).device(options.device()));
  const torch::Tensor frequencies = FrequenciesOf(rotary, rotary.SizeOf(head_size), longest);
  const torch::Tensor turns = at::outer(positions, frequencies.to(options.device()));
  const torch::Tensor angles = rotary.interleaved ? turns.repeat_interleave(2, /*dim=*/-1)
                                                  : at::cat({turns, turns}, /*dim=*/-1);
  const auto type = options.dtype().toScalarType();
  return {angles.cos().mul_(rotary.amplitude).to(type),
          angles.sin().mul_(rotary.amplitude).to(type), rotary.interleaved, rotary.in_fp32};
}

// Returns the angles [sequence, ...] of `positions` [rows, sequence], as [rows, 1, sequence, ...].
torch::Tensor AnglesAt(const torch::Tensor& angles, const torch::Tensor& positions) {
  return angles.index_select(0, positions.flatten())
      .view({positions.size(0), 1, positions.size(1), -1});
}

}  // namespace

BatchContext MakeBatchContext(absl::Span<const BlockKind> kinds, int64_t head_size,
                              int64_t sequence, int64_t longest,
                              const torch::TensorOptions& options, SharedDocuments documents) {
  BatchContext context;
  context.sequence = sequence;
  context.documents = std::move(documents);
  torch::Tensor positions;
  if (context.documents != nullptr) {
    positions = context.documents->Positions(sequence).to(options.device());
  }
  for (const BlockKind& kind : kinds) {
    // Kinds that are rotated alike share the angles.
    const auto same = std::ranges::find(kinds, kind.rotary, &BlockKind::rotary);
    const auto first = static_cast<size_t>(same - kinds.begin());
    if (first < context.angles.size()) {
      context.angles.push_back(context.angles[first]);
    } else if (kind.rotary.has_value()) {
      HeadAngles angles = MakeAngles(*kind.rotary, head_size, sequence, longest, options);
      if (positions.defined()) {
        angles.cosine = AnglesAt(angles.cosine, positions);
        angles.sine = AnglesAt(angles.sine, positions);
      }
      context.angles.push_back(std::move(angles));
    } else {
      context.angles.emplace_back();
    }
  }
  return context;
}

}  // namespace gemini::trainer
