// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_wear.h"

namespace gemini::server {
namespace {

int64_t DayOf(absl::Time time) {
  return absl::ToInt64Hours(absl::Floor(time - absl::UnixEpoch(), absl::Hours(24))) / 24;
}

}  // namespace

NvmeWear::NvmeWear(const std::vector<NvmeDirectory>& directories, int64_t daily_budget_bytes)
    : daily_budget_bytes_(daily_budget_bytes) {
  for (const NvmeDirectory& directory : directories) {
    directories_.push_back({.wear = {.path = directory.path}});
  }
}

bool NvmeWear::Add(int64_t directory, int64_t size_bytes, absl::Time now) {
  Counted& counted = directories_[directory];
  if (const int64_t day = DayOf(now); counted.day != day) {
    counted.day = day;
    counted.wear.written_today_bytes = 0;
  }
  const int64_t before = counted.wear.written_today_bytes;
  counted.wear.written_bytes += size_bytes;
  counted.wear.written_today_bytes += size_bytes;
  return daily_budget_bytes_ > 0 && before <= daily_budget_bytes_ &&
         before + size_bytes > daily_budget_bytes_;
}

std::vector<DirectoryWear> NvmeWear::Read(absl::Time now) const {
  std::vector<DirectoryWear> read;
  for (const Counted& counted : directories_) {
    read.push_back(counted.wear);
    if (counted.day != DayOf(now)) read.back().written_today_bytes = 0;
  }
  return read;
}

}  // namespace gemini::server
