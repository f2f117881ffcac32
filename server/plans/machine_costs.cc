// SPDX-License-Identifier: Apache-2.0
#include "server/plans/machine_costs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/loop/server_log.h"
#include "server/plans/state_file.h"

namespace gemini::server {
namespace {

// Far beyond any machine on both sides; what is outside is a mistake, and NaN is never inside.
constexpr int64_t kMaxLatencyNs = 1'000'000'000;
constexpr int64_t kMaxFileBytes = 4096;
// Between what calibration finds on a machine that is busy, and what a whole round has.
constexpr double kMostMoved = 4;
// Between what is guessed of a GPU that nobody measured, and what it does. The guess of an update
// there may be the rate of HOST.
constexpr double kMostGuessed = 256;

bool IsRate(double rate) { return rate >= kLeastRate && rate <= kMostRate; }

struct Field {
  absl::string_view name;
  double CostModel::*rate;
};
constexpr absl::string_view kDeviceUpdates = "device_update_elements_per_second";
// In the order of MeasuredRates.
constexpr std::array<Field, 6> kRates = {{
    {"host_to_device", &CostModel::host_to_device},
    {"device_to_host", &CostModel::device_to_host},
    {"nvme_read", &CostModel::nvme_read},
    {"nvme_write", &CostModel::nvme_write},
    {"update_elements_per_second", &CostModel::update_elements_per_second},
    {kDeviceUpdates, &CostModel::device_update_elements_per_second},
}};
constexpr absl::string_view kLatency = "copy_latency_ns";
constexpr absl::string_view kGuess = "guess";
static_assert(std::tuple_size_v<decltype(KnownCosts::calibrated)> == kRates.size());

bool ParseRate(absl::string_view word, double& rate) {
  return absl::SimpleAtod(word, &rate) && IsRate(rate);
}

// False: nothing that was measured is a rate.
bool Move(KnownCosts& known, const MeasuredRates& measured) {
  const std::array<double, kRates.size()> rates = {
      measured.host_to_device, measured.device_to_host,  measured.nvme_read,
      measured.nvme_write,     measured.update_elements, measured.device_update_elements};
  bool any = false;
  for (size_t i = 0; i < rates.size(); ++i) {
    if (!IsRate(rates[i])) continue;
    any = true;
    double& rate = known.costs.*kRates[i].rate;
    double& calibrated = known.calibrated[i];
    if (calibrated == 0) {
      // A client says so, and the first one decides from where the others may move it.
      rate = calibrated = std::clamp(rates[i], rate / kMostGuessed, rate * kMostGuessed);
    } else {
      rate += (std::clamp(rates[i], calibrated / kMostMoved, calibrated * kMostMoved) - rate) / 2;
      // What an earlier server kept may be beyond.
      rate = std::clamp(rate, kLeastRate, kMostRate);
    }
  }
  return any;
}

// The directory may be one that machines share.
std::string FileName(bool device_is_gpu) {
  char name[256] = {};
  // Those of a GPU in "gpu-costs" have a rate of updates there that nobody measured, and those in
  // "gpu-costs2" a host's latency of copies.
  std::string safe = device_is_gpu ? "gpu-costs3" : "costs";
  if (::gethostname(name, sizeof(name) - 1) != 0) return safe;
  safe += '.';
  for (const char* c = name; *c != '\0'; ++c) safe += absl::ascii_isalnum(*c) ? *c : '-';
  return safe;
}

}  // namespace

std::string CostsText(const KnownCosts& known) {
  std::string text;
  for (size_t i = 0; i < kRates.size(); ++i) {
    absl::StrAppendFormat(&text, "%s %.17g ", kRates[i].name, known.costs.*kRates[i].rate);
    if (known.calibrated[i] == 0) {
      absl::StrAppend(&text, kGuess, "\n");
    } else {
      absl::StrAppendFormat(&text, "%.17g\n", known.calibrated[i]);
    }
  }
  absl::StrAppend(&text, kLatency, " ", known.costs.copy_latency_ns, "\n");
  return text;
}

std::optional<KnownCosts> ParseCosts(absl::string_view text) {
  KnownCosts known;
  CostModel& costs = known.costs;
  std::set<absl::string_view> seen;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    if (words.size() < 2 || words.size() > 3 || !seen.insert(words[0]).second) return std::nullopt;
    if (words[0] == kLatency) {
      if (words.size() != 2 || !absl::SimpleAtoi(words[1], &costs.copy_latency_ns) ||
          costs.copy_latency_ns < 0 || costs.copy_latency_ns > kMaxLatencyNs) {
        return std::nullopt;
      }
      continue;
    }
    const auto field = std::ranges::find(kRates, words[0], &Field::name);
    if (field == kRates.end() || !ParseRate(words[1], costs.*field->rate)) return std::nullopt;
    double& calibrated = known.calibrated[static_cast<size_t>(field - kRates.begin())];
    if (words.size() == 2) {
      calibrated = costs.*field->rate;
    } else if (words[2] != kGuess && !ParseRate(words[2], calibrated)) {
      return std::nullopt;
    }
  }
  // Kept by a server that knew of updates in HOST alone.
  if (seen.insert(kDeviceUpdates).second) {
    costs.device_update_elements_per_second = costs.update_elements_per_second;
    known.calibrated.back() = costs.device_update_elements_per_second;
  }
  if (seen.size() != kRates.size() + 1) return std::nullopt;
  return known;
}

bool MachineCosts::Load() {
  if (directory_.empty()) return false;
  const absl::StatusOr<std::string> text =
      ReadStateFile(directory_, FileName(device_is_gpu_), kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return false;
  const std::optional<KnownCosts> known = text.ok() ? ParseCosts(*text) : std::nullopt;
  if (!known.has_value()) {
    ServerLog().warn("left out the kept cost model {}/{}: {}: it is measured anew", directory_,
                     FileName(device_is_gpu_),
                     text.ok() ? "it is damaged" : text.status().ToString());
    return false;
  }
  MutexLock lock(mutex_);
  known_ = *known;
  return true;
}

void MachineCosts::Set(const CostModel& costs) {
  {
    MutexLock lock(mutex_);
    known_ = {.costs = costs};
    for (size_t i = 0; i < kRates.size(); ++i) {
      const bool guessed = device_is_gpu_ && (kRates[i].rate == &CostModel::host_to_device ||
                                              kRates[i].rate == &CostModel::device_to_host ||
                                              kRates[i].name == kDeviceUpdates);
      known_.calibrated[i] = guessed ? 0 : costs.*kRates[i].rate;
    }
  }
  Keep();
}

void MachineCosts::Refresh(const MeasuredRates& measured) {
  bool moved;
  {
    MutexLock lock(mutex_);
    moved = Move(known_, measured);
  }
  if (moved) Keep();
}

CostModel MachineCosts::Refreshed(const MeasuredRates& measured) const {
  MutexLock lock(mutex_);
  KnownCosts known = known_;
  Move(known, measured);
  return known.costs;
}

CostModel MachineCosts::costs() const {
  MutexLock lock(mutex_);
  return known_.costs;
}

void MachineCosts::Keep() const {
  if (directory_.empty() || !keeps_) return;
  std::string text;
  {
    MutexLock lock(mutex_);
    text = CostsText(known_);
  }
  const absl::Status written = WriteStateFile(directory_, FileName(device_is_gpu_), text);
  if (!written.ok()) ServerLog().warn("{}", written.ToString());
}

}  // namespace gemini::server
