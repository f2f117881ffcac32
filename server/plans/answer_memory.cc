// SPDX-License-Identifier: Apache-2.0
#include "server/plans/answer_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/sealed_memfd.h"

namespace gemini::server {
absl::StatusOr<UniqueFd> AnswerMemory::Make(uint64_t session, absl::string_view name,
                                            absl::string_view bytes) {
  Cut(Remove(session, max_bytes_));
  GEMINI_ASSIGN_OR_RETURN(UniqueFd made, MakeReadOnlyMemfd(name, bytes));
  UniqueFd kept(::fcntl(made.get(), F_DUPFD_CLOEXEC, 0));
  if (!kept) return ErrnoStatus(errno, "copy the descriptor of an answer");
  MutexLock lock(mutex_);
  const auto size_bytes = static_cast<int64_t>(bytes.size());
  size_bytes_ += size_bytes;
  answers_.push_back({session, size_bytes, std::move(kept)});
  return made;
}

std::vector<AnswerMemory::Answer> AnswerMemory::Remove(uint64_t session) {
  return Remove(session, std::numeric_limits<int64_t>::max());
}

void AnswerMemory::Cut(const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) {
    while (::ftruncate(answer.fd.get(), 0) != 0 && errno == EINTR) {
    }
  }
}

std::vector<AnswerMemory::Answer> AnswerMemory::Remove(uint64_t session, int64_t max_bytes) {
  std::vector<Answer> removed;
  MutexLock lock(mutex_);
  const auto remove = [&](std::deque<Answer>::iterator answer) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    size_bytes_ -= answer->size_bytes;
    removed.push_back(std::move(*answer));
    return answers_.erase(answer);
  };
  for (auto answer = answers_.begin(); answer != answers_.end();) {
    answer = answer->session == session ? remove(answer) : answer + 1;
  }
  while (size_bytes_ > max_bytes) remove(answers_.begin());
  return removed;
}

}  // namespace gemini::server
