// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/adam_baseline.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini::bench {
namespace {

// Both from CMake: folders of this clone and of its build.
constexpr char kPython[] = GEMINI_ADAM_BASELINE_VENV "/bin/python3";
constexpr char kComplete[] = GEMINI_ADAM_BASELINE_VENV "/.complete";
constexpr char kScript[] = GEMINI_SOURCE_DIR "/tools/bench/adam_baseline.py";

}  // namespace

absl::StatusOr<std::unique_ptr<AdamBaseline>> AdamBaseline::Start(int64_t elements,
                                                                  int num_threads) {
  if (::access(kComplete, F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("there is no baseline in ", GEMINI_ADAM_BASELINE_VENV,
                                            ": run tools/adam-baseline-setup"));
  }
  // A process that ended is an answer that does not come, not a signal.
  ::signal(SIGPIPE, SIG_IGN);
  int to_child[2], from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  if (::pipe2(from_child, O_CLOEXEC) != 0) {
    const int error = errno;
    ::close(to_child[0]);
    ::close(to_child[1]);
    return ErrnoStatus(error, "making a pipe");
  }
  std::unique_ptr<AdamBaseline> baseline(new AdamBaseline());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  std::array<char*, 3> arguments = {const_cast<char*>(kPython), const_cast<char*>(kScript),
                                    nullptr};
  const int error =
      ::posix_spawn(&baseline->process_, kPython, &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(to_child[0]);
  ::close(from_child[1]);
  baseline->requests_ = ::fdopen(to_child[1], "w");
  baseline->answers_ = ::fdopen(from_child[0], "r");
  if (error != 0) {
    baseline->process_ = -1;
    return ErrnoStatus(error, absl::StrCat("starting ", kPython));
  }
  GEMINI_RETURN_IF_ERROR(
      baseline->Ask({{"op", "setup"}, {"elements", elements}, {"threads", num_threads}}).status());
  return baseline;
}

AdamBaseline::~AdamBaseline() {
  // At the end of its requests the process ends.
  if (requests_ != nullptr) std::fclose(requests_);
  if (answers_ != nullptr) std::fclose(answers_);
  if (process_ > 0) ::waitpid(process_, nullptr, 0);
}

absl::StatusOr<nlohmann::json> AdamBaseline::Ask(const nlohmann::json& request) {
  std::fprintf(requests_, "%s\n", request.dump().c_str());
  std::fflush(requests_);
  std::string line;
  for (int c = std::fgetc(answers_); c != EOF && c != '\n'; c = std::fgetc(answers_)) {
    line.push_back(static_cast<char>(c));
  }
  const nlohmann::json answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || answer.contains("error")) {
    return absl::UnavailableError(absl::StrCat("the baseline answered '", line, "' to ",
                                               request.dump(), ": see what it wrote to stderr"));
  }
  return answer;
}

absl::StatusOr<AdamBaseline::Times> AdamBaseline::Step(absl::string_view engine) {
  GEMINI_ASSIGN_OR_RETURN(const nlohmann::json answer, Ask({{"op", std::string(engine)}}));
  return Times{.seconds = answer.value("seconds", 0.0),
               .kernel_seconds = answer.value("kernel_seconds", 0.0),
               .norm = answer.value("norm", 0.0)};
}

}  // namespace gemini::bench
