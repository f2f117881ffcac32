// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process and exchange by CommunicatorNccl, over the library in
// NCCL's place (fake_nccl.h).
#pragma once
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "tests/trainer/parallel/exchange_device_host.h"
#include "tests/trainer/parallel/fake_nccl.h"
#include "trainer/parallel/communicator_nccl.h"

namespace gemini::trainer {

// The library, which is loaded as NCCL would be, and how tests control it.
const NcclLibrary& FakeNcclLibrary();
FakeNccl& TheFakeNccl();

// Forgets what was before, and runs `rank_main` in `num_ranks` threads. Expects that at the end no
// communicator is left, and no violation was noted.
void RunNcclThreads(int64_t num_ranks, CallersMemory callers,
                    const std::function<void(int64_t rank, const NcclId& id)>& rank_main,
                    const std::function<void(FakeNccl&)>& prepare = nullptr);

// The same, each thread with what Make returned for it.
using MadeCommunicator = absl::StatusOr<std::unique_ptr<CommunicatorNccl>>;
void RunNcclRanks(int64_t num_ranks, CallersMemory callers, const NcclOptions& options,
                  const std::function<void(int64_t rank, MadeCommunicator made)>& rank_main,
                  const std::function<void(FakeNccl&)>& prepare = nullptr);

}  // namespace gemini::trainer
