// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/rotary_keys.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace gemini::trainer {
namespace {

using Scaling = RotarySpec::Scaling;

// In the order of RotarySpec::Scaling.
constexpr absl::string_view kScalings[] = {"default", "linear", "llama3", "yarn"};

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

// Reads the object of one kind of block.
void ReadInside(ConfigKeys& keys, RotarySpec& rotary) {
  keys.Positive("rope_theta", rotary.theta);
  auto scaling = static_cast<size_t>(rotary.scaling);
  keys.OneOf({"rope_type", "type"}, kScalings, scaling);
  rotary.scaling = static_cast<Scaling>(scaling);
  keys.MustBe("partial_rotary_factor", 1);
  if (rotary.scaling == Scaling::kNone) return;
  keys.RequiredPositive("factor", rotary.factor);
  if (rotary.scaling == Scaling::kLinear) return;
  keys.Size({"original_max_position_embeddings"}, rotary.original_positions);
  if (rotary.scaling == Scaling::kYarn) return ReadYarn(keys, rotary);
  keys.RequiredPositive("low_freq_factor", rotary.low_turns);
  keys.RequiredPositive("high_freq_factor", rotary.high_turns);
}

}  // namespace

void ReadRotary(ConfigKeys& keys, ModelSpec& spec, RotarySpec rotary) {
  rotary.original_positions = spec.max_sequence;
  keys.Positive("rope_theta", rotary.theta);
  keys.MustBe("partial_rotary_factor", 1);
  // Where both are there transformers takes the old spelling.
  keys.Within({"rope_scaling", "rope_parameters"},
              [&rotary](ConfigKeys& inside) { ReadInside(inside, rotary); });
  // transformers prefers it at the top level.
  keys.Size({"original_max_position_embeddings"}, rotary.original_positions);
  for (BlockKind& kind : spec.kinds) kind.rotary = rotary;
}

void ReadRotaryOfKinds(ConfigKeys& keys, ModelSpec& spec, RotarySpec full, RotarySpec windowed) {
  full.original_positions = windowed.original_positions = spec.max_sequence;
  keys.Positive("rope_theta", full.theta);
  keys.Positive("rope_local_base_freq", windowed.theta);
  keys.Within({"rope_parameters"}, [&full, &windowed](ConfigKeys& kinds) {
    kinds.Within({"full_attention"}, [&full](ConfigKeys& inside) { ReadInside(inside, full); });
    kinds.Within({"sliding_attention"},
                 [&windowed](ConfigKeys& inside) { ReadInside(inside, windowed); });
  });
  keys.Within({"rope_scaling"}, [&full](ConfigKeys& inside) { ReadInside(inside, full); });
  spec.kinds.front().rotary = full;
  spec.kinds.back().rotary = windowed;
}

}  // namespace gemini::trainer
