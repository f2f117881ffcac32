// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "gemini/byte_size.h"

namespace gemini::trainer {
namespace {

constexpr absl::Duration kTerminalPause = absl::Milliseconds(100);
constexpr absl::Duration kPlainPause = absl::Seconds(5);

}  // namespace

std::string DurationText(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "?";
  const int64_t seconds =
      std::max<int64_t>(0, absl::ToInt64Seconds(duration + absl::Milliseconds(500)));
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

namespace {

// "60MiB": a terminal has 80 columns.
std::string ShortSize(int64_t size_bytes) {
  return absl::StrReplaceAll(FormatByteSize(size_bytes), {{" ", ""}});
}

// `text` behind a bar in what it leaves of the columns, if that is enough.
std::string WithBar(const std::string& text, int64_t done, int64_t total, int columns) {
  // Without its brackets and the space behind.
  const int bar = std::min(20, columns - static_cast<int>(text.size()) - 3);
  if (bar < 4) return text;
  const double fraction =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 0.0;
  const int full = static_cast<int>(fraction * bar);
  std::string drawn(static_cast<size_t>(full), '=');
  if (full < bar) drawn += '>';
  drawn.resize(static_cast<size_t>(bar), ' ');
  return absl::StrCat("[", drawn, "] ", text);
}

}  // namespace

std::string ProgressLine(const ProgressState& state, int columns) {
  std::vector<std::string> parts;  // What matters most comes first: the rest may not fit.
  parts.push_back(absl::StrFormat("%d/%d", state.step, state.num_steps));
  parts.push_back(absl::StrFormat("loss %.4f", state.loss));
  // Short, so that all of it fits into 80 columns.
  const char* const unit = state.item_name == "images" ? "img" : "tok";
  parts.push_back(absl::StrFormat("%.0f %s/s", state.items_per_second, unit));
  parts.push_back(absl::StrFormat("left %s", DurationText(state.left)));
  if (state.device_budget_bytes > 0) {
    parts.push_back(absl::StrCat("DEVICE ", ShortSize(state.device_used_bytes), "/",
                                 ShortSize(state.device_budget_bytes)));
    parts.push_back(absl::StrCat("HOST ", ShortSize(state.host_bytes)));
  }
  std::string text;
  for (const std::string& part : parts) {
    const size_t space = text.empty() ? 0 : 1;
    if (static_cast<int>(text.size() + space + part.size()) > columns) break;
    absl::StrAppend(&text, space == 0 ? "" : " ", part);
  }
  return WithBar(text, state.step, state.num_steps, columns);
}

std::string PartLine(const ProgressPart& part, int columns) {
  const auto amount = [&](int64_t value) {
    return part.is_bytes ? ShortSize(value) : absl::StrCat(value);
  };
  const std::string text = absl::StrCat(part.what, " ", amount(part.done), "/", amount(part.total));
  return WithBar(text.substr(0, static_cast<size_t>(std::max(columns, 0))), part.done, part.total,
                 columns);
}

Progress::Progress(int fd) : fd_(fd), terminal_(::isatty(fd) == 1) {}

Progress::~Progress() {
  if (drawn_) Put("\n");
}

void Progress::Put(absl::string_view text) const {
  // A progress line that cannot be written is no error of the run.
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

absl::Duration Progress::pause() const { return terminal_ ? kTerminalPause : kPlainPause; }

void Progress::Draw(absl::FunctionRef<std::string(int columns)> make) {
  if (!terminal_) {
    Put(absl::StrCat(make(200), "\n"));
    return;
  }
  struct winsize size = {};
  const bool known = ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // Erases to the end of the line: the former one may have been longer.
  Put(absl::StrCat("\r", make(known ? size.ws_col - 1 : 79), "\x1b[K"));
  drawn_ = true;
}

void Progress::Show(const ProgressState& state, absl::Duration now) {
  part_.clear();
  const bool ends = state.step == state.num_steps || last_ == -absl::InfiniteDuration();
  if (!ends && now - last_ < pause()) return;
  last_ = now;
  Draw([&](int columns) { return ProgressLine(state, columns); });
}

void Progress::ShowPart(const ProgressPart& part, absl::Duration now) {
  if (part_ != part.what) {
    part_ = part.what;
    last_part_ = now;
  }
  if (now - last_part_ < pause()) return;
  last_part_ = now;
  Draw([&](int columns) { return PartLine(part, columns); });
}

void Progress::Clear() {
  if (!drawn_) return;
  Put("\r\x1b[K");
  drawn_ = false;
}

void StepClock::Add(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  mean_seconds_ = any_ ? mean_seconds_ + kNewest * (seconds - mean_seconds_) : seconds;
  any_ = true;
}

absl::Duration StepClock::Left(int64_t steps) const {
  if (!any_) return absl::InfiniteDuration();
  return absl::Seconds(mean_seconds_ * static_cast<double>(steps));
}

}  // namespace gemini::trainer
