// SPDX-License-Identifier: Apache-2.0
// What a server may give away: the same for geminid and for a server embedded in a process.
// Units:  bytes.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gemini/nvme_directory.h"
#include "gemini/tier.h"

namespace gemini::server {

class NvmeIo;
class TierStore;

// What moves chunks between HOST and NVME.
enum class NvmeEngine { kAuto /* io_uring where it works, else kPread */, kUring, kPread };

struct ServerOptions {
  // DEVICE and HOST. NVME is the sum of the directories; its field here is ignored.
  TierMap<int64_t> capacity_bytes;
  // Makes the store of DEVICE, of so many bytes: a GPU's (tier_store_cuda.h). Empty: an arena in
  // host memory plays it.
  std::function<absl::StatusOr<std::unique_ptr<TierStore>>(int64_t capacity_bytes)> make_device;
  // With make_device: of the GPU's own memory, bytes a second. 0: not known.
  double gpu_memory_rate = 0;
  std::vector<NvmeDirectory> nvme_directories;
  NvmeEngine nvme_engine = NvmeEngine::kAuto;
  // Of each directory, a UTC day: above it the log warns. 0: none.
  int64_t nvme_daily_write_budget_bytes = 0;
  // Where traces and the cost model outlive the server. Empty: nowhere.
  std::string state_directory;
  // Whether to measure the machine at the start, where no cost model is kept; else before the first
  // plan.
  bool calibrate_at_start = false;
  // How long a newcomer waits for jobs that were asked to give way.
  absl::Duration epoch_timeout = absl::Seconds(10);
  std::string build = "gemini 0.1.0";  // Shown to peers and by memstat.
  // Not empty: is given the engine of the NVMe I/O, and returns the one to use in its place.
  std::function<std::unique_ptr<NvmeIo>(std::unique_ptr<NvmeIo>)> TESTING_ONLY_wrap_nvme_io;
};

}  // namespace gemini::server
