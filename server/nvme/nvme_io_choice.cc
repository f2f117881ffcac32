// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_io_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/loop/server_log.h"
#include "server/nvme/nvme_io_pread.h"
#include "server/nvme/nvme_io_uring.h"

namespace gemini::server {
namespace {

// Each has one piece in the kernel: so many keep a disk busy, and fewer were seen to leave a fifth
// of it.
constexpr int kPreadThreads = 4;

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeIo>> ChooseNvmeIo(NvmeEngine wanted, EventLoop& loop) {
  absl::Status why_not = absl::UnavailableError("asked for by --nvme-io");
  if (wanted != NvmeEngine::kPread) {
    absl::StatusOr<std::unique_ptr<NvmeIo>> uring = MakeUringNvmeIo(loop);
    if (uring.ok()) {
      ServerLog().info("NVMe I/O by io_uring: a page went through a ring and back");
      return uring;
    }
    why_not = uring.status();
  }
  if (wanted == NvmeEngine::kUring) {
    return absl::FailedPreconditionError(
        absl::StrCat("io_uring does not work here: ", why_not.message(),
                     "; allow it (kernel.io_uring_disabled, seccomp) or pass --nvme-io auto"));
  }
  ServerLog().info("NVMe I/O by {} threads with pread and pwrite: {}", kPreadThreads,
                   std::string(why_not.message()));
  return MakePreadNvmeIo(kPreadThreads);
}

}  // namespace gemini::server
