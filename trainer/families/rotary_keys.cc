// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/rotary_keys.h"

#include <cstddef>

#include "absl/strings/string_view.h"

namespace gemini::trainer {
namespace {

// In the order of RotarySpec::Scaling.
constexpr absl::string_view kScalings[] = {"default", "linear", "llama3"};

}  // namespace

RotarySpec ReadRotary(ConfigKeys& keys, int64_t max_sequence) {
  using Scaling = RotarySpec::Scaling;
  RotarySpec rotary = {.original_positions = max_sequence};
  keys.Positive("rope_theta", rotary.theta);
  // Where both are there transformers takes the old spelling.
  keys.Within({"rope_scaling", "rope_parameters"}, [&rotary](ConfigKeys& inside) {
    inside.Positive("rope_theta", rotary.theta);
    size_t scaling = 0;
    inside.OneOf({"rope_type", "type"}, kScalings, scaling);
    rotary.scaling = static_cast<Scaling>(scaling);
    inside.MustBe("partial_rotary_factor", 1);
    if (rotary.scaling == Scaling::kNone) return;
    inside.NeededPositive("factor", rotary.factor);
    if (rotary.scaling == Scaling::kLinear) return;
    inside.NeededPositive("low_freq_factor", rotary.low_turns);
    inside.NeededPositive("high_freq_factor", rotary.high_turns);
    inside.Size({"original_max_position_embeddings"}, rotary.original_positions);
  });
  // transformers prefers it at the top level.
  keys.Size({"original_max_position_embeddings"}, rotary.original_positions);
  return rotary;
}

}  // namespace gemini::trainer
