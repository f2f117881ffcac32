// SPDX-License-Identifier: Apache-2.0
#include "client/wire/take_slabs.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

absl::Status TakeSlabs(Connection& connection, uint64_t space, int64_t first, int64_t count,
                       std::vector<UniqueFd>& slabs) {
  while (static_cast<int64_t>(slabs.size()) < count) {
    const int64_t next = first + static_cast<int64_t>(slabs.size());
    const int64_t left = first + count - next;
    GEMINI_ASSIGN_OR_RETURN(Reply more,
                            connection.Call(
                                wire::Body::TakeSlabs,
                                [&](flatbuffers::FlatBufferBuilder& builder) {
                                  return wire::CreateTakeSlabs(builder, space, next, left).Union();
                                },
                                wire::Body::SlabsReply, kSlabsTimeout));
    if (more.fds.empty() || static_cast<int64_t>(more.fds.size()) > left) {
      return absl::InvalidArgumentError(absl::StrCat("the server's answer has ", more.fds.size(),
                                                     " slabs where ", left, " were asked for"));
    }
    std::move(more.fds.begin(), more.fds.end(), std::back_inserter(slabs));
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
