// SPDX-License-Identifier: Apache-2.0
#include "server/spaces/space_plan.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {
namespace {

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

absl::Status CheckSlots(absl::string_view name, Tier tier, int64_t slots, int64_t chunk_bytes,
                        int64_t left_bytes) {
  if (slots < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("space ", name, " asks for ", slots, " slots of ", TierName(tier)));
  }
  // By division: the product may overflow.
  if (slots <= left_bytes / chunk_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("space ", name, " needs ", slots, " slots of ", FormatByteSize(chunk_bytes),
                   " in ", TierName(tier), ", the lease has ", FormatByteSize(left_bytes),
                   " left: open a larger lease or close one of its spaces"));
}

}  // namespace

absl::StatusOr<SpacePlan> PlanSpace(const OpenSpaceRequest& request, const TierMap<int64_t>& left) {
  if (request.name.empty() || static_cast<int64_t>(request.name.size()) > kMaxSpaceNameChars ||
      !std::all_of(request.name.begin(), request.name.end(), IsNameCharacter)) {
    return absl::InvalidArgumentError(
        absl::StrCat("space name '", absl::CHexEscape(request.name.substr(0, kMaxSpaceNameChars)),
                     "' (", request.name.size(), " characters): a name is 1 to ",
                     kMaxSpaceNameChars, " of A-Z a-z 0-9 . _ -"));
  }
  if (request.chunk_bytes <= 0 || request.chunk_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("space ", request.name, " has chunks of ", request.chunk_bytes,
                     " bytes: it must be a positive multiple of ", kPageBytes));
  }
  if (request.chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "space ", request.name, " has chunks of ", FormatByteSize(request.chunk_bytes), ", up to ",
        FormatByteSize(kMaxChunkBytes), " are allowed: use smaller chunks"));
  }
  if (request.num_bundles < 1 || request.num_bundles > kMaxSpaceBundles) {
    return absl::InvalidArgumentError(
        absl::StrCat("space ", request.name, " has ", request.num_bundles, " bundles: 1 to ",
                     kMaxSpaceBundles, " are allowed; use larger chunks"));
  }
  if (request.num_tensors < 0 || request.num_tensors > kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat("space ", request.name, " has ",
                                                   request.num_tensors, " tensors: 0 to ",
                                                   kMaxTensors, " are allowed"));
  }
  GEMINI_RETURN_IF_ERROR(CheckSlots(request.name, Tier::kHost, request.host_slots,
                                    request.chunk_bytes, left[Tier::kHost]));
  GEMINI_RETURN_IF_ERROR(CheckSlots(request.name, Tier::kNvme, request.nvme_slots,
                                    request.chunk_bytes, left[Tier::kNvme]));
  // The client segment is not charged to the lease: it stays small beside the slots.
  const int64_t slots = request.host_slots + request.nvme_slots;
  if (request.num_bundles / 4 > slots + 256) {
    return absl::InvalidArgumentError(absl::StrCat("space ", request.name, " has ",
                                                   request.num_bundles, " bundles for ", slots,
                                                   " slots: ask for more slots"));
  }
  return SpacePlan{request.name,       request.chunk_bytes, request.num_bundles,
                   request.host_slots, request.nvme_slots,  request.num_tensors};
}

}  // namespace gemini::server
