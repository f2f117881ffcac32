// SPDX-License-Identifier: Apache-2.0
// Defines what a server may grant to its clients. geminid and a server embedded in a process have
// the same options.
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
  // The capacities of DEVICE and HOST. That of NVME is the sum of the directories, and its field
  // here is ignored.
  TierMap<int64_t> capacity_bytes;
  // Makes the store of DEVICE with that capacity, for a GPU (tier_store_cuda.h). Empty: DEVICE is
  // an arena in host memory.
  std::function<absl::StatusOr<std::unique_ptr<TierStore>>(int64_t capacity_bytes)> make_device;
  // With make_device: the speed of the GPU's own memory in bytes a second. 0: not known.
  double gpu_memory_rate = 0;
  std::vector<NvmeDirectory> nvme_directories;
  NvmeEngine nvme_engine = NvmeEngine::kAuto;
  // The log warns when more is written to a directory on a UTC day. 0: it never warns.
  int64_t nvme_daily_write_budget_bytes = 0;
  // The directory where traces and the cost model outlive the server. Empty: they do not.
  std::string state_directory;
  // Whether to measure the machine at the start if no cost model is stored. If false, it is
  // measured before the first plan.
  bool calibrate_at_start = false;
  // How long a new job waits for others that were asked to shrink.
  absl::Duration epoch_timeout = absl::Seconds(10);
  // How long a plan may wait for those of others, until it begins: for six that take the longest.
  absl::Duration max_plan_wait = absl::Seconds(30);
  // How long a peer has to read a plan, or a trace that was found for it.
  absl::Duration answer_life = absl::Minutes(1);
  std::string build = "gemini 0.1.0";  // Shown to peers and by memstat.
  // If not empty, it gets the engine of the NVMe I/O and returns the one to use instead.
  std::function<std::unique_ptr<NvmeIo>(std::unique_ptr<NvmeIo>)> TESTING_ONLY_wrap_nvme_io;
};

}  // namespace gemini::server
