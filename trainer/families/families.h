// SPDX-License-Identifier: Apache-2.0
// Lists the model families. A family is a function from the keys of a config.json to a ModelSpec;
// docs/models.md says how one is added.
#pragma once
#include <array>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/families/config_keys.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

struct Family {
  absl::string_view model_type;  // As config.json has it.
  // By task (TaskKind): the class in transformers, or of a family that is not there a name of our
  // own, for the key "architectures". It is empty where the family has no such task. Each has one
  // at least.
  std::array<absl::string_view, 5> classes;
  // Returns the spec. A key that is left out has the default of the family's configuration class in
  // transformers. If keys.status() is not OK afterwards, the caller drops the spec.
  ModelSpec (*make_spec)(ConfigKeys& keys);
};

absl::Span<const Family> Families();

ModelSpec MakeBertSpec(ConfigKeys& keys);
ModelSpec MakeCohereSpec(ConfigKeys& keys);
ModelSpec MakeGemmaSpec(ConfigKeys& keys);
ModelSpec MakeGemma2Spec(ConfigKeys& keys);
ModelSpec MakeGemma3TextSpec(ConfigKeys& keys);
ModelSpec MakeGpt2Spec(ConfigKeys& keys);
ModelSpec MakeGptNeoxSpec(ConfigKeys& keys);
ModelSpec MakeLlamaSpec(ConfigKeys& keys);
ModelSpec MakeMistralSpec(ConfigKeys& keys);
ModelSpec MakeMixtralSpec(ConfigKeys& keys);
ModelSpec MakeOptSpec(ConfigKeys& keys);
ModelSpec MakePairTrunkSpec(ConfigKeys& keys);
ModelSpec MakePhi3Spec(ConfigKeys& keys);
ModelSpec MakeQwen2Spec(ConfigKeys& keys);
ModelSpec MakeQwen2MoeSpec(ConfigKeys& keys);
ModelSpec MakeQwen3Spec(ConfigKeys& keys);
ModelSpec MakeQwen3MoeSpec(ConfigKeys& keys);
ModelSpec MakeVitSpec(ConfigKeys& keys);

}  // namespace gemini::trainer
