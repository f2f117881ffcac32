// SPDX-License-Identifier: Apache-2.0
#include "gemini/nvme_directory.h"

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"

namespace gemini {

absl::StatusOr<NvmeDirectory> ParseNvmeDirectory(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("wants DIR:SIZE, such as /mnt/nvme:20GiB, not '", text, "'"));
  }
  const absl::StatusOr<int64_t> capacity = ParseByteSize(text.substr(colon + 1));
  if (!capacity.ok()) return capacity.status();
  if (*capacity == 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' gives no room"));
  }
  return NvmeDirectory{std::string(text.substr(0, colon)), *capacity};
}

}  // namespace gemini
