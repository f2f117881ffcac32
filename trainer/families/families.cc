// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/families.h"

namespace gemini::trainer {

absl::Span<const Family> Families() {
  static constexpr Family kFamilies[] = {
      {"bert", {"", "BertForMaskedLM", "BertForSequenceClassification"}, MakeBertSpec},
      {"cohere", {"CohereForCausalLM", "", ""}, MakeCohereSpec},
      {"gemma", {"GemmaForCausalLM", "", "GemmaForSequenceClassification"}, MakeGemmaSpec},
      {"gemma2", {"Gemma2ForCausalLM", "", "Gemma2ForSequenceClassification"}, MakeGemma2Spec},
      {"gemma3_text",
       {"Gemma3ForCausalLM", "", "Gemma3TextForSequenceClassification"},
       MakeGemma3TextSpec},
      {"gpt2", {"GPT2LMHeadModel", "", "GPT2ForSequenceClassification"}, MakeGpt2Spec},
      {"gpt_neox", {"GPTNeoXForCausalLM", "", "GPTNeoXForSequenceClassification"}, MakeGptNeoxSpec},
      {"llama", {"LlamaForCausalLM", "", "LlamaForSequenceClassification"}, MakeLlamaSpec},
      {"mistral", {"MistralForCausalLM", "", "MistralForSequenceClassification"}, MakeMistralSpec},
      {"mixtral", {"MixtralForCausalLM", "", "MixtralForSequenceClassification"}, MakeMixtralSpec},
      {"opt", {"OPTForCausalLM", "", "OPTForSequenceClassification"}, MakeOptSpec},
      {"pair_trunk",
       {"", "PairTrunkForMaskedMsa", "", "", "PairTrunkForDistogram"},
       MakePairTrunkSpec},
      {"phi3", {"Phi3ForCausalLM", "", "Phi3ForSequenceClassification"}, MakePhi3Spec},
      {"qwen2", {"Qwen2ForCausalLM", "", "Qwen2ForSequenceClassification"}, MakeQwen2Spec},
      {"qwen2_moe",
       {"Qwen2MoeForCausalLM", "", "Qwen2MoeForSequenceClassification"},
       MakeQwen2MoeSpec},
      {"qwen3", {"Qwen3ForCausalLM", "", "Qwen3ForSequenceClassification"}, MakeQwen3Spec},
      {"qwen3_moe",
       {"Qwen3MoeForCausalLM", "", "Qwen3MoeForSequenceClassification"},
       MakeQwen3MoeSpec},
      {"vit", {"", "", "", "ViTForImageClassification"}, MakeVitSpec},
  };
  return kFamilies;
}

}  // namespace gemini::trainer
