// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/families.h"

namespace gemini::trainer {

absl::Span<const Family> Families() {
  static constexpr Family kFamilies[] = {
      {"cohere", MakeCohereSpec},   {"gemma", MakeGemmaSpec},
      {"gemma2", MakeGemma2Spec},   {"gemma3_text", MakeGemma3TextSpec},
      {"gpt2", MakeGpt2Spec},       {"llama", MakeLlamaSpec},
      {"mistral", MakeMistralSpec}, {"opt", MakeOptSpec},
      {"qwen2", MakeQwen2Spec},     {"qwen3", MakeQwen3Spec},
  };
  return kFamilies;
}

}  // namespace gemini::trainer
