// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/families.h"

namespace gemini::trainer {

absl::Span<const Family> Families() {
  static constexpr Family kFamilies[] = {
      {"gpt2", MakeGpt2Spec},
      {"llama", MakeLlamaSpec},
      {"opt", MakeOptSpec},
  };
  return kFamilies;
}

}  // namespace gemini::trainer
