// SPDX-License-Identifier: Apache-2.0
#include "server/machine_costs.h"

#include <unistd.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/server_log.h"
#include "server/state_file.h"

namespace gemini::server {
namespace {

// Far beyond any machine on both sides; what is outside is a mistake, and NaN is never inside.
constexpr double kMinRate = 1e3;
constexpr double kMaxRate = 1e14;
constexpr int64_t kMaxLatencyNs = 1'000'000'000;
constexpr int64_t kMaxFileBytes = 4096;

bool IsRate(double rate) { return rate >= kMinRate && rate <= kMaxRate; }

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

// The directory may be one that machines share.
std::string FileName(bool device_is_gpu) {
  char name[256] = {};
  // Those of a GPU in "gpu-costs" have a rate of updates there that nobody measured.
  std::string safe = device_is_gpu ? "gpu-costs2" : "costs";
  if (::gethostname(name, sizeof(name) - 1) != 0) return safe;
  safe += '.';
  for (const char* c = name; *c != '\0'; ++c) safe += absl::ascii_isalnum(*c) ? *c : '-';
  return safe;
}

}  // namespace

std::string CostsText(const CostModel& costs) {
  std::string text;
  for (const Field& field : kRates) {
    absl::StrAppendFormat(&text, "%s %.17g\n", field.name, costs.*field.rate);
  }
  absl::StrAppend(&text, kLatency, " ", costs.copy_latency_ns, "\n");
  return text;
}

std::optional<CostModel> ParseCosts(absl::string_view text) {
  CostModel costs;
  std::set<absl::string_view> seen;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, ' ');
    if (!seen.insert(parts.first).second) return std::nullopt;
    if (parts.first == kLatency) {
      if (!absl::SimpleAtoi(parts.second, &costs.copy_latency_ns) || costs.copy_latency_ns < 0 ||
          costs.copy_latency_ns > kMaxLatencyNs) {
        return std::nullopt;
      }
      continue;
    }
    bool known = false;
    for (const Field& field : kRates) {
      if (parts.first != field.name) continue;
      known = absl::SimpleAtod(parts.second, &(costs.*field.rate)) && IsRate(costs.*field.rate);
    }
    if (!known) return std::nullopt;
  }
  // Kept by a server that knew of updates in HOST alone.
  if (seen.insert(kDeviceUpdates).second) {
    costs.device_update_elements_per_second = costs.update_elements_per_second;
  }
  if (seen.size() != kRates.size() + 1) return std::nullopt;
  return costs;
}

bool MachineCosts::Load() {
  if (directory_.empty()) return false;
  const absl::StatusOr<std::string> text =
      ReadStateFile(directory_, FileName(device_is_gpu_), kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return false;
  const std::optional<CostModel> costs = text.ok() ? ParseCosts(*text) : std::nullopt;
  if (!costs.has_value()) {
    ServerLog().warn("left out the kept cost model {}/{}: {}: it is measured anew", directory_,
                     FileName(device_is_gpu_),
                     text.ok() ? "it is damaged" : text.status().ToString());
    return false;
  }
  MutexLock lock(mutex_);
  costs_ = *costs;
  return true;
}

void MachineCosts::Set(const CostModel& costs) {
  {
    MutexLock lock(mutex_);
    costs_ = costs;
  }
  Keep();
}

void MachineCosts::Refresh(const MeasuredRates& measured) {
  const std::array<double, kRates.size()> rates = {
      measured.host_to_device, measured.device_to_host,  measured.nvme_read,
      measured.nvme_write,     measured.update_elements, measured.device_update_elements};
  bool any = false;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < rates.size(); ++i) {
      if (!IsRate(rates[i])) continue;
      double& rate = costs_.*kRates[i].rate;
      rate += (rates[i] - rate) / 2;
      any = true;
    }
  }
  if (any) Keep();
}

CostModel MachineCosts::costs() const {
  MutexLock lock(mutex_);
  return costs_;
}

void MachineCosts::Keep() const {
  if (directory_.empty()) return;
  const absl::Status written =
      WriteStateFile(directory_, FileName(device_is_gpu_), CostsText(costs()));
  if (!written.ok()) ServerLog().warn("{}", written.ToString());
}

}  // namespace gemini::server
