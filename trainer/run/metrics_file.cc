// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/files/durable_file.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/checkpoint/replace_file.h"

namespace gemini::trainer {
namespace {

// nlohmann writes the shortest text that reads back the same, and null for NaN and infinities.
using Json = nlohmann::ordered_json;

// How each line of a run begins: ToJson writes the step first.
constexpr absl::string_view kBeginningOfALine = "{\"step\":";
// A line of a run is some kilobytes long.
constexpr int64_t kMaxLineBytes = 1 << 20;

struct Line {
  int64_t step = 0;
  bool is_evaluation = false;
};

// Nothing: it is no line of metrics, or was cut short.
std::optional<Line> ParseLine(const std::string& text) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return Line{step->get<int64_t>(), object.contains("eval_loss")};
}

// Whether a run wrote it: all of a line, or the beginning of one whose end could not be written,
// as when the run was killed or the disk was full. The next line stands after it.
bool IsOfARun(absl::string_view text) {
  if (absl::StartsWith(kBeginningOfALine, text)) return true;
  if (!absl::StartsWith(text, kBeginningOfALine)) return false;
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return true;
  return object.contains("eval_loss") || (object.contains("loss") && object.contains("lr"));
}

// Checks that a run wrote each line of `path`, for the file is about to be replaced.
absl::Status CheckIsOfARun(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxLineBytes, '\0');
  for (int64_t number = 1; file.getline(text.data(), kMaxLineBytes) || file.gcount() > 0;
       ++number) {
    const auto length = static_cast<size_t>(file.gcount() - (file.eof() ? 0 : 1));
    if (!file.fail() && IsOfARun(absl::string_view(text).substr(0, length))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics ", path, ": no run wrote its line ", number,
                     ", and the file would be replaced: name another file, or move it elsewhere"));
  }
  if (file.eof()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--metrics ", path, " would be replaced, and cannot be read to see whether a ",
                   "run wrote it: name another file, or move it elsewhere"));
}

// Whether the last line of `path` has no end.
bool EndsInsideALine(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.seekg(-1, std::ios::end) && file.get() != '\n';
}

// Rewrites `path` with those of its lines that a run resumed behind `last` keeps.
absl::Status DropLaterLines(const std::string& path, const MetricsFile::Last& last) {
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  std::string text;
  while (std::getline(file, text)) {
    const std::optional<Line> line = ParseLine(text);
    if (!line) continue;
    const int64_t last_step = line->is_evaluation ? last.evaluated_step : last.step;
    if (line->step <= last_step) absl::StrAppend(&kept, text, "\n");
  }
  // What could not be read would be lost.
  if (!file.eof()) return absl::UnavailableError(absl::StrCat(path, " cannot be read"));
  return ReplaceFile(path, kept);
}

// Whether it is a regular file, by a name of its own. /dev/stdout and the like stand for one that
// somebody else has open, who would go on writing to it when it is replaced.
bool IsNamedFile(const std::string& path) {
  for (const absl::string_view open : {"/dev/std", "/dev/fd/", "/proc/"}) {
    if (absl::StartsWith(path, open)) return false;
  }
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

absl::Status IsThere(const std::string& path) {
  return absl::AlreadyExistsError(absl::StrCat(
      path, " is there already: give another --metrics, or --overwrite to replace it"));
}

}  // namespace

std::string ToJson(const StepMetrics& metrics) {
  Json stalls = Json::object();
  for (int i = 0; i < kNumStallCauses; ++i) {
    stalls[std::string(StallCauseName(static_cast<StallCause>(i)))] =
        metrics.memory.stall_seconds_by_cause[i];
  }
  Json divergences = Json::object();
  for (int i = 0; i < kNumDivergences; ++i) {
    divergences[std::string(DivergenceName(static_cast<Divergence>(i)))] =
        metrics.memory.phases.divergences[i];
  }
  Json line = {{"step", metrics.step}, {"loss", metrics.loss}};
  if (metrics.router_loss.has_value()) line["router_loss"] = *metrics.router_loss;
  line.update(Json{{"lr", metrics.lr},
                   {"grad_norm", metrics.update.grad_norm},
                   {"clip_coefficient", metrics.update.clip_coefficient},
                   {"loss_scale", metrics.loss_scale},
                   {"skipped", metrics.update.skipped},
                   {"seconds", metrics.seconds},
                   {metrics.item_name + "_per_second", metrics.items_per_second},
                   {"device_budget_bytes", metrics.memory.device_budget_bytes},
                   {"device_peak_bytes", metrics.memory.device_peak_bytes},
                   {"non_model_peak_bytes", metrics.memory.non_model_peak_bytes},
                   {"pinned_peak_bytes", metrics.memory.pinned_peak_bytes},
                   {"host_bytes", metrics.memory.host_bytes},
                   {"registered_host_bytes", metrics.memory.registered_host_bytes},
                   {"nvme_bytes", metrics.memory.nvme_bytes},
                   {"fetch_bytes", metrics.memory.fetch_bytes},
                   {"evict_bytes", metrics.memory.evict_bytes},
                   {"stall_seconds", metrics.memory.stall_seconds},
                   {"stall_seconds_by_cause", stalls},
                   {"planned_rounds", metrics.memory.phases.planned_rounds},
                   {"divergences", divergences}});
  for (const auto& [kind, sent] : metrics.sent) {
    line["sent"][kind] = Json{{"operations", sent.operations}, {"bytes", sent.bytes}};
  }
  return line.dump();
}

std::string ToJson(const EvalMetrics& metrics) {
  Json line = {{"step", metrics.step}, {"eval_loss", metrics.eval_loss}};
  if (metrics.eval_router_loss.has_value()) line["eval_router_loss"] = *metrics.eval_router_loss;
  for (const TaskMetric& metric : metrics.of_task) {
    line[absl::StrCat("eval_", metric.name)] = metric.value;
  }
  if (metrics.expert_fetch_bytes.has_value()) {
    line["expert_fetch_bytes"] = *metrics.expert_fetch_bytes;
  }
  return line.dump();
}

absl::Status MetricsFile::Check(const std::string& path, Mode mode) {
  if (::access(path.c_str(), F_OK) == 0) {
    if (std::error_code error; std::filesystem::is_directory(path, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--metrics ", path, " is a directory: name a file"));
    }
    const bool is_named = IsNamedFile(path);
    if (mode == Mode::kNew && is_named) return IsThere(path);
    if (::access(path.c_str(), W_OK) != 0) {
      return ErrnoStatus(errno, absl::StrCat("--metrics ", path, " is not writable"));
    }
    if (!is_named) return absl::OkStatus();
    GEMINI_RETURN_IF_ERROR(CheckIsOfARun(path));
    if (mode != Mode::kResume) return absl::OkStatus();
    // The file that ReplaceFile writes before it renames it.
    std::error_code error;
    const std::string partial = std::filesystem::canonical(path, error).string() + ".partial";
    return IsNamedFile(partial) ? CheckIsOfARun(partial) : absl::OkStatus();
  }
  const std::string directory = DirectoryOf(path);
  if (::access(directory.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("--metrics ", path, " cannot be made in ", directory));
}

int64_t MetricsFile::LastEvaluatedStep(const std::string& path, int64_t step) {
  int64_t last_step = 0;
  if (!IsNamedFile(path)) return last_step;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  while (std::getline(file, text)) {
    const std::optional<Line> line = ParseLine(text);
    if (line && line->is_evaluation && line->step <= step) {
      last_step = std::max(last_step, line->step);
    }
  }
  return last_step;
}

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path, Mode mode,
                                              const Last& last) {
  MetricsFile metrics;
  metrics.path_ = path;
  const bool is_there = ::access(path.c_str(), F_OK) == 0;
  if (is_there && !IsNamedFile(path)) {
    // A run waits neither for a pipe to be read from, nor later for room in it.
    metrics.fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK));
    if (!metrics.fd_ && errno == ENXIO) {
      return absl::UnavailableError(
          absl::StrCat("--metrics ", path, " is a pipe that nobody reads: start its reader first"));
    }
    if (!metrics.fd_) return ErrnoStatus(errno, absl::StrCat("open ", path));
    return metrics;
  }
  int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
  if (mode == Mode::kNew) flags |= O_EXCL;
  if (mode == Mode::kOverwrite) flags |= O_TRUNC;
  if (mode == Mode::kResume && is_there) {
    // Behind a link: the file that it leads to is replaced, and not the link.
    std::error_code error;
    const std::string file = std::filesystem::canonical(path, error).string();
    if (error) return ErrnoStatus(error.value(), absl::StrCat("find ", path));
    metrics.rewritten_ = DropLaterLines(file, last);
    metrics.line_is_torn_ = EndsInsideALine(file);
  }
  metrics.fd_ = UniqueFd(::open(path.c_str(), flags, 0666));
  if (!metrics.fd_ && errno == EEXIST) return IsThere(path);
  if (!metrics.fd_) return ErrnoStatus(errno, absl::StrCat("open ", path));
  return metrics;
}

absl::Status MetricsFile::AppendLine(std::string line) {
  if (line_is_torn_) line.insert(0, 1, '\n');
  line += '\n';
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(fd_.get(), line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      return absl::UnavailableError(absl::StrCat(path_, " is full, for its reader is slow"));
    }
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", path_));
    done += static_cast<size_t>(written);
    line_is_torn_ = done < line.size();
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
