// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/families.h"

namespace gemini::trainer {

absl::Span<const Family> Families() {
  static constexpr Family kFamilies[] = {
      {"cohere", MakeCohereSpec},
      {"gemma", MakeGemmaSpec},
      {"gemma2", MakeGemma2Spec},
      {"gemma3_text", MakeGemma3TextSpec},
      {"gpt2", MakeGpt2Spec},
      {"llama", MakeLlamaSpec},
      {"mistral", MakeMistralSpec},
      {"mixtral", MakeMixtralSpec},
      {"opt", MakeOptSpec},
      {"qwen2", MakeQwen2Spec},
      {"qwen2_moe", MakeQwen2MoeSpec},
      {"qwen3", MakeQwen3Spec},
      {"qwen3_moe", MakeQwen3MoeSpec},
  };
  return kFamilies;
}

}  // namespace gemini::trainer
