// SPDX-License-Identifier: Apache-2.0
#include "client/take_slabs.h"

#include <iterator>
#include <utility>

#include "gemini/status_macros.h"

namespace gemini::client {

absl::Status TakeSlabs(Connection& connection, uint64_t space, int64_t first, int64_t count,
                       std::vector<UniqueFd>& slabs) {
  while (static_cast<int64_t>(slabs.size()) < count) {
    const int64_t next = first + static_cast<int64_t>(slabs.size());
    GEMINI_ASSIGN_OR_RETURN(Reply more,
                            connection.Call(
                                wire::Body::TakeSlabs,
                                [&](flatbuffers::FlatBufferBuilder& builder) {
                                  return wire::CreateTakeSlabs(builder, space, next).Union();
                                },
                                wire::Body::SlabsReply));
    if (more.fds.empty()) {
      return absl::InvalidArgumentError("the server's answer has fewer slabs than there are");
    }
    std::move(more.fds.begin(), more.fds.end(), std::back_inserter(slabs));
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
