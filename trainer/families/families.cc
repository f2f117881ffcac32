// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/families.h"

namespace gemini::trainer {

absl::Span<const Family> Families() {
  static constexpr Family kFamilies[] = {
      {"cohere", "CohereForCausalLM", MakeCohereSpec},
      {"gemma", "GemmaForCausalLM", MakeGemmaSpec},
      {"gemma2", "Gemma2ForCausalLM", MakeGemma2Spec},
      {"gemma3_text", "Gemma3ForCausalLM", MakeGemma3TextSpec},
      {"gpt2", "GPT2LMHeadModel", MakeGpt2Spec},
      {"gpt_neox", "GPTNeoXForCausalLM", MakeGptNeoxSpec},
      {"llama", "LlamaForCausalLM", MakeLlamaSpec},
      {"mistral", "MistralForCausalLM", MakeMistralSpec},
      {"mixtral", "MixtralForCausalLM", MakeMixtralSpec},
      {"opt", "OPTForCausalLM", MakeOptSpec},
      {"phi3", "Phi3ForCausalLM", MakePhi3Spec},
      {"qwen2", "Qwen2ForCausalLM", MakeQwen2Spec},
      {"qwen2_moe", "Qwen2MoeForCausalLM", MakeQwen2MoeSpec},
      {"qwen3", "Qwen3ForCausalLM", MakeQwen3Spec},
      {"qwen3_moe", "Qwen3MoeForCausalLM", MakeQwen3MoeSpec},
  };
  return kFamilies;
}

}  // namespace gemini::trainer
