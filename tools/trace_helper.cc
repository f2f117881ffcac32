// SPDX-License-Identifier: Apache-2.0
#include "tools/trace_helper.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"

namespace gemini::tools {
namespace {

constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr size_t kReadBytes = size_t{1} << 20;
constexpr int64_t kMostWaitMs = int64_t{1} << 30;  // Of one call of poll, which takes an int.

}  // namespace

std::string TraceHelper::ProgramBesideThis() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return absl::StrCat(self.substr(0, self.rfind('/') + 1), "gemini-trace");
}

TraceHelper::~TraceHelper() { Reap(); }

absl::StatusOr<trainer::NamedTrace> TraceHelper::Trace(const trainer::TraceRequest& request) {
  const std::string line = trainer::EncodeRequest(request);
  const auto known = known_.find(line);
  if (known != known_.end()) return known->second;
  GEMINI_RETURN_IF_ERROR(Start());
  GEMINI_ASSIGN_OR_RETURN(trainer::NamedTrace made, Ask(line));
  return known_.emplace(line, std::move(made)).first->second;
}

absl::Status TraceHelper::Start() {
  if (socket_) return absl::OkStatus();
  GEMINI_RETURN_IF_ERROR(ended_);
  if (::access(program_.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no ", program_, ", which foretells a model's steps: a build with Torch has it"));
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDOUT_FILENO);
  const char* const arguments[] = {program_.c_str(), "--model", model_.c_str(), nullptr};
  const int error = ::posix_spawn(&process_, program_.c_str(), &actions, nullptr,
                                  const_cast<char* const*>(arguments), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    process_ = 0;
    return ErrnoStatus(error, absl::StrCat("starting ", program_));
  }
  socket_ = std::move(ours);
  return absl::OkStatus();
}

absl::StatusOr<trainer::RanksForecast> TraceHelper::Ranks(const trainer::RanksRequest& request) {
  GEMINI_RETURN_IF_ERROR(Start());
  GEMINI_ASSIGN_OR_RETURN(const size_t end, AskForLine(trainer::EncodeRanksRequest(request)));
  const std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return trainer::ParseRanksReply(line);
}

absl::StatusOr<size_t> TraceHelper::AskForLine(const std::string& line) {
  deadline_ = MonotonicNow() + limit_;
  GEMINI_RETURN_IF_ERROR(Send(line + "\n"));
  size_t end = 0;
  for (size_t seen = 0; (end = buffer_.find('\n', seen)) == std::string::npos;) {
    seen = buffer_.size();
    if (seen > kMaxLineBytes) return End(absl::InternalError("it wrote no line"));
    GEMINI_RETURN_IF_ERROR(Fill(seen + 1));
  }
  return end;
}

absl::StatusOr<trainer::NamedTrace> TraceHelper::Ask(const std::string& line) {
  GEMINI_ASSIGN_OR_RETURN(const size_t end, AskForLine(line));
  absl::StatusOr<trainer::TraceReplyHeader> header =
      trainer::ParseReplyHeader(absl::string_view(buffer_).substr(0, end));
  if (!header.ok()) return End(header.status());
  if (!header->refused.ok()) {
    buffer_.erase(0, end + 1);
    return header->refused;
  }
  if (header->version != GEMINI_VERSION) {
    return End(absl::FailedPreconditionError(absl::StrCat("it is of Gemini ", header->version,
                                                          ", and this is ", GEMINI_VERSION,
                                                          ": install both of one build")));
  }
  const auto rest_bytes = static_cast<size_t>(header->trace_bytes + header->names_bytes);
  GEMINI_RETURN_IF_ERROR(Fill(end + 1 + rest_bytes));
  absl::StatusOr<trainer::TraceReply> reply =
      trainer::ParseReply(*header, absl::string_view(buffer_).substr(end + 1, rest_bytes));
  buffer_.erase(0, end + 1 + rest_bytes);
  if (!reply.ok()) return End(reply.status());
  return std::move(reply->made);
}

absl::Status TraceHelper::Await(short events) {
  for (;;) {
    const absl::Duration left = deadline_ - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      return End(absl::DeadlineExceededError(
          absl::StrCat("it did not answer within ", absl::FormatDuration(limit_),
                       ": --trace-limit SECONDS lets it take longer")));
    }
    pollfd entry = {.fd = socket_.get(), .events = events, .revents = 0};
    const int64_t left_ms = std::min(absl::ToInt64Milliseconds(left), kMostWaitMs) + 1;
    const int count = ::poll(&entry, 1, static_cast<int>(left_ms));
    if (count > 0) return absl::OkStatus();
    if (count < 0 && errno != EINTR) return End(ErrnoStatus(errno, "poll"));
  }
}

absl::Status TraceHelper::Send(absl::string_view text) {
  while (!text.empty()) {
    GEMINI_RETURN_IF_ERROR(Await(POLLOUT));
    const ssize_t sent =
        ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return Ended();
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::Status TraceHelper::Fill(size_t size_bytes) {
  while (buffer_.size() < size_bytes) {
    GEMINI_RETURN_IF_ERROR(Await(POLLIN));
    const size_t before = buffer_.size();
    buffer_.resize(before + kReadBytes);
    const ssize_t read = ::recv(socket_.get(), buffer_.data() + before, kReadBytes, 0);
    buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(read, 0)));
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return Ended();
  }
  return absl::OkStatus();
}

int TraceHelper::Reap() {
  socket_.Reset();
  // It may not listen, or have closed its end and live on. The status of one that ends stays.
  if (process_ > 0) ::kill(process_, SIGKILL);
  int status = 0;
  while (process_ > 0 && ::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = 0;
  return status;
}

absl::Status TraceHelper::End(const absl::Status& why) {
  Reap();
  ended_ = absl::Status(why.code(), absl::StrCat(program_, ": ", why.message()));
  return ended_;
}

absl::Status TraceHelper::Ended() {
  const int status = Reap();
  ended_ = absl::FailedPreconditionError(
      absl::StrCat(program_, ", which foretells a model's steps, ",
                   WIFSIGNALED(status) ? "was ended by signal " : "ended with exit status ",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
  return ended_;
}

}  // namespace gemini::tools
