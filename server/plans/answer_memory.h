// SPDX-License-Identifier: Apache-2.0
// Makes the memory in which sessions get the plans and traces that they asked for. A descriptor
// that a peer has cannot be taken back, but its pages can: so peers that keep their answers hold a
// bounded part of the machine's memory.
// Thread: any. Making an answer blocks for 225 ms a GiB, and taking one back for 124 ms.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

class AnswerMemory {
 public:
  // `max_bytes`: what sessions may have together beside the newest answer.
  explicit AnswerMemory(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns a memfd that holds `bytes` (not empty) and that nobody can write. It is cut to nothing
  // before the session's next answer is made, and earlier where newer ones take its room. `name` is
  // shown in /proc. RESOURCE_EXHAUSTED: no memory or descriptor left.
  absl::StatusOr<UniqueFd> Make(uint64_t session, absl::string_view name, absl::string_view bytes);
  struct Answer {
    uint64_t session = 0;
    int64_t size_bytes = 0;
    UniqueFd fd;
  };
  // Returns what the session has, if anything, for Cut. Does not block.
  std::vector<Answer> Remove(uint64_t session);
  // Cuts these to nothing.
  static void Cut(const std::vector<Answer>& answers);

 private:
  // Removes the session's answer, and the oldest while all have more than `max_bytes`.
  std::vector<Answer> Remove(uint64_t session, int64_t max_bytes);

  const int64_t max_bytes_;
  Mutex mutex_;                                         // Not held while memory is made or cut.
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
  int64_t size_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // Of all of them.
};

}  // namespace gemini::server
