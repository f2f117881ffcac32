// SPDX-License-Identifier: Apache-2.0
// How much was written to each NVMe directory, by which drives wear: since the server's start, and
// on the UTC day of now.
// Owner:  the server thread.
// Units:  bytes of chunks. What file systems and drives write beside them is not known here.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/loop/server_options.h"

namespace gemini::server {

struct DirectoryWear {
  std::string path;
  int64_t written_bytes = 0;
  int64_t written_today_bytes = 0;
};

class NvmeWear {
 public:
  // `daily_budget_bytes`: for each directory; 0: there is none.
  NvmeWear(const std::vector<NvmeDirectory>& directories, int64_t daily_budget_bytes);

  // Adds a write that ended at `now`. Returns whether it is the first of its day that is above the
  // budget.
  bool Add(int64_t directory, int64_t size_bytes, absl::Time now);
  // In the order of the directories, as of `now`.
  std::vector<DirectoryWear> Read(absl::Time now) const;
  int64_t daily_budget_bytes() const { return daily_budget_bytes_; }

 private:
  struct Counted {
    DirectoryWear wear;
    int64_t day = 0;  // Since 1970, in UTC: of written_today_bytes.
  };
  const int64_t daily_budget_bytes_;
  std::vector<Counted> directories_;
};

}  // namespace gemini::server
