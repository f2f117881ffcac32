// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/rotary_keys.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace gemini::trainer {
namespace {

using Scaling = RotarySpec::Scaling;

// In the order of RotarySpec::Scaling.
constexpr absl::string_view kScalings[] = {"default", "linear", "llama3", "yarn", "longrope"};
constexpr absl::string_view kOnlyLongRope[] = {"default", "longrope"};
constexpr const char* kFraction = "partial_rotary_factor";
constexpr absl::string_view kPairs = "the pairs that are rotated, of";

// The amplitude that Yarn recommends for a context grown by `factor`.
double YarnAmplitude(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

void ReadYarn(ConfigKeys& keys, RotarySpec& rotary) {
  rotary.low_turns = 1;
  rotary.high_turns = 32;
  keys.PositiveUnlessZero("beta_slow", rotary.low_turns);
  keys.PositiveUnlessZero("beta_fast", rotary.high_turns);
  keys.Flag("truncate", rotary.whole_pairs);
  double weight = 0;
  double weight_of_all = 0;
  keys.PositiveUnlessZero("mscale", weight);
  keys.PositiveUnlessZero("mscale_all_dim", weight_of_all);
  const bool has_both = weight > 0 && weight_of_all > 0;
  rotary.amplitude =
      has_both ? YarnAmplitude(rotary.factor, weight) / YarnAmplitude(rotary.factor, weight_of_all)
               : YarnAmplitude(rotary.factor, 1);
  keys.Positive("attention_factor", rotary.amplitude);
}

void ReadLongRope(ConfigKeys& keys, const ModelSpec& spec, RotarySpec& rotary) {
  const auto pairs = static_cast<size_t>(rotary.SizeOf(spec.attention.head_size) / 2);
  keys.RequiredPositives("short_factor", pairs, rotary.short_factors);
  keys.RequiredPositives("long_factor", pairs, rotary.long_factors);
  keys.MustNotExceed("the minimum", 2, "original_max_position_embeddings",
                     rotary.original_positions);
  const auto original = static_cast<double>(rotary.original_positions);
  rotary.factor = static_cast<double>(spec.max_sequence) / original;
  keys.Positive("factor", rotary.factor);
  if (rotary.factor > 1) {
    rotary.amplitude = std::sqrt(1 + std::log(rotary.factor) / std::log(original));
  }
  keys.Positive("attention_factor", rotary.amplitude);
}

void ReadScaling(ConfigKeys& keys, RotarySpec& rotary, const TopLevelRotary& top) {
  auto scaling = static_cast<size_t>(rotary.scaling);
  if (!top.only_longrope) {
    keys.OneOf({"rope_type", "type"}, kScalings, scaling);
    rotary.scaling = static_cast<Scaling>(scaling);
    return;
  }
  keys.OneOf({"rope_type", "type"}, kOnlyLongRope, scaling);
  rotary.scaling = scaling == 0 ? Scaling::kNone : Scaling::kLongRope;
}

// Reads which fraction of a head is rotated, if the family may rotate less than the whole.
void ReadFraction(ConfigKeys& keys, const char* key, RotarySpec& rotary,
                  const TopLevelRotary& top) {
  if (top.fraction != nullptr) {
    keys.Fraction(key, rotary.rotated_fraction);
  } else {
    keys.MustBe(key, 1);
  }
}

// Reads the object of one kind of block.
void ReadInside(ConfigKeys& keys, const ModelSpec& spec, RotarySpec& rotary,
                const TopLevelRotary& top = {}) {
  keys.Positive("rope_theta", rotary.theta);
  ReadScaling(keys, rotary, top);
  ReadFraction(keys, kFraction, rotary, top);
  if (rotary.scaling == Scaling::kNone) return;
  keys.Size({"original_max_position_embeddings"}, rotary.original_positions);
  if (top.original_positions > 0) rotary.original_positions = top.original_positions;
  if (rotary.scaling == Scaling::kLongRope) return ReadLongRope(keys, spec, rotary);
  keys.RequiredPositive("factor", rotary.factor);
  if (rotary.scaling == Scaling::kLinear) return;
  if (rotary.scaling == Scaling::kYarn) return ReadYarn(keys, rotary);
  keys.RequiredPositive("low_freq_factor", rotary.low_turns);
  keys.RequiredPositive("high_freq_factor", rotary.high_turns);
}

}  // namespace

void ReadRotary(ConfigKeys& keys, ModelSpec& spec, RotarySpec rotary, const TopLevelRotary& top) {
  rotary.original_positions = spec.max_sequence;
  keys.Positive(top.theta, rotary.theta);
  ReadFraction(keys, top.fraction != nullptr ? top.fraction : kFraction, rotary, top);
  TopLevelRotary read = top;
  keys.Size({"original_max_position_embeddings"}, read.original_positions);
  // Where both are there transformers takes the old spelling.
  keys.Within({"rope_scaling", "rope_parameters"},
              [&](ConfigKeys& inside) { ReadInside(inside, spec, rotary, read); });
  keys.MustDivide(rotary.rotated_fraction < 1 ? "rotated elements of a head:" : "head_dim",
                  rotary.SizeOf(spec.attention.head_size), kPairs, 2);
  for (BlockKind& kind : spec.kinds) kind.rotary = rotary;
}

void ReadRotaryOfKinds(ConfigKeys& keys, ModelSpec& spec, RotarySpec full, RotarySpec windowed) {
  full.original_positions = windowed.original_positions = spec.max_sequence;
  keys.Positive("rope_theta", full.theta);
  keys.Positive("rope_local_base_freq", windowed.theta);
  const auto read_full = [&](ConfigKeys& inside) { ReadInside(inside, spec, full); };
  keys.Within({"rope_parameters"}, [&](ConfigKeys& kinds) {
    kinds.Within({"full_attention"}, read_full);
    kinds.Within({"sliding_attention"},
                 [&](ConfigKeys& inside) { ReadInside(inside, spec, windowed); });
  });
  keys.Within({"rope_scaling"}, read_full);
  keys.MustDivide("head_dim", spec.attention.head_size, kPairs, 2);
  spec.kinds.front().rotary = full;
  spec.kinds.back().rotary = windowed;
}

}  // namespace gemini::trainer
