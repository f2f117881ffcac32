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
  keys.MustBeOff("short_factor");  // Phi-3 once called longrope so.
  const bool has_both = weight > 0 && weight_of_all > 0;
  rotary.amplitude =
      has_both ? YarnAmplitude(rotary.factor, weight) / YarnAmplitude(rotary.factor, weight_of_all)
               : YarnAmplitude(rotary.factor, 1);
  keys.Positive("attention_factor", rotary.amplitude);
}

constexpr const char* kPart = "partial_rotary_factor";
constexpr absl::string_view kPairs = "the pairs that are rotated, of";

void ReadLongRope(ConfigKeys& keys, const ModelSpec& spec, RotarySpec& rotary) {
  const auto pairs = static_cast<size_t>(rotary.SizeOf(spec.attention.head_size) / 2);
  keys.RequiredPositives("short_factor", pairs, rotary.short_factors);
  keys.RequiredPositives("long_factor", pairs, rotary.long_factors);
  const auto original = static_cast<double>(rotary.original_positions);
  rotary.factor = static_cast<double>(spec.max_sequence) / original;
  keys.Positive("factor", rotary.factor);
  if (rotary.factor > 1) {
    rotary.amplitude = std::sqrt(1 + std::log(rotary.factor) / std::log(original));
  }
  keys.Positive("attention_factor", rotary.amplitude);
}

// Reads which part of a head is rotated, if the family may rotate less than the whole.
void ReadPart(ConfigKeys& keys, const char* key, bool in_part, double& part) {
  if (in_part) {
    keys.Part(key, part);
  } else {
    keys.MustBe(key, 1);
  }
}

// Reads the object of one kind of block. `original_positions`: those of the top level, or 0.
void ReadInside(ConfigKeys& keys, const ModelSpec& spec, RotarySpec& rotary, bool in_part = false,
                int64_t original_positions = 0) {
  keys.Positive("rope_theta", rotary.theta);
  auto scaling = static_cast<size_t>(rotary.scaling);
  keys.OneOf({"rope_type", "type"}, kScalings, scaling);
  rotary.scaling = static_cast<Scaling>(scaling);
  ReadPart(keys, kPart, in_part, rotary.part);
  if (rotary.scaling == Scaling::kNone) return;
  keys.Size({"original_max_position_embeddings"}, rotary.original_positions);
  if (original_positions > 0) rotary.original_positions = original_positions;
  if (rotary.scaling == Scaling::kLongRope) return ReadLongRope(keys, spec, rotary);
  keys.RequiredPositive("factor", rotary.factor);
  if (rotary.scaling == Scaling::kLinear) return;
  if (rotary.scaling == Scaling::kYarn) return ReadYarn(keys, rotary);
  keys.RequiredPositive("low_freq_factor", rotary.low_turns);
  keys.RequiredPositive("high_freq_factor", rotary.high_turns);
}

}  // namespace

void ReadRotary(ConfigKeys& keys, ModelSpec& spec, RotarySpec rotary, const RotaryNames& names) {
  const bool in_part = names.part != nullptr;
  rotary.original_positions = spec.max_sequence;
  keys.Positive(names.theta, rotary.theta);
  ReadPart(keys, in_part ? names.part : kPart, in_part, rotary.part);
  int64_t original_positions = names.original_positions;
  keys.Size({"original_max_position_embeddings"}, original_positions);
  // Where both are there transformers takes the old spelling.
  keys.Within({"rope_scaling", "rope_parameters"}, [&](ConfigKeys& inside) {
    ReadInside(inside, spec, rotary, in_part, original_positions);
  });
  keys.MustDivide(rotary.part < 1 ? "the rotated part of a head, of" : "head_dim",
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
