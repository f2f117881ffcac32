// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/non_finite_parameter.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/types/span.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {

absl::StatusOr<std::string> FindNonFinite(ParameterStore& store,
                                          const std::vector<ParameterShape>& parameters) {
  for (const ParameterShape& parameter : parameters) {
    // The first piece that holds one ends the search.
    const absl::Status status =
        store.Read(parameter.name, ChunkKind::kParam,
                   [](int64_t, absl::Span<const std::byte> bytes) -> absl::Status {
                     for (size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
                       float value;
                       std::memcpy(&value, bytes.data() + at, sizeof(value));
                       if (!std::isfinite(value)) return absl::CancelledError();
                     }
                     return absl::OkStatus();
                   });
    if (absl::IsCancelled(status)) return parameter.name;
    GEMINI_RETURN_IF_ERROR(status);
  }
  return "";
}

}  // namespace gemini::trainer
