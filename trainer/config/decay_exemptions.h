// SPDX-License-Identifier: Apache-2.0
// Tells which parameters weight decay leaves alone, by the patterns of their names in --no-decay.
// Thread: values without one.
#pragma once
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gemini::trainer {

class DecayExemptions {
 public:
  DecayExemptions() = default;
  // Reads patterns separated by commas, such as "*.bias,transformer.wte.*", as fnmatch(3) takes
  // them: `*` stands for any text, dots included. Empty text exempts nothing.
  // INVALID_ARGUMENT: a pattern is empty.
  static absl::StatusOr<DecayExemptions> Parse(absl::string_view text);

  bool empty() const { return patterns_.empty(); }
  bool Exempts(absl::string_view name) const;
  // NOT_FOUND: a pattern matches none of the names; the message has it and one name for comparison.
  absl::Status CheckAgainst(absl::Span<const std::string> names) const;

 private:
  std::vector<std::string> patterns_;
};

}  // namespace gemini::trainer
