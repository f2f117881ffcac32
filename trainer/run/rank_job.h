// SPDX-License-Identifier: Apache-2.0
// The ranks that a run was launched as, and what each of them must have alike.
// Owner: one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/run_config.h"
#include "trainer/parallel/communicator_host.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_environment.h"

namespace gemini::trainer {

struct RankJob {
  RankEnvironment where;
  std::unique_ptr<CommunicatorHost> communicator;  // Null: one rank, and no launcher's library.
  RankAgreement agreement() const {
    return communicator == nullptr ? RankAgreement() : RankAgreement(*communicator);
  }
};

// Reads what the launcher says, and begins MPI where there are several ranks. INVALID_ARGUMENT: the
// launchers disagree. UNIMPLEMENTED: torchrun, which is for GPUs. NOT_FOUND: there is no MPI, or
// gemini_mpi.so is not where it was looked for. Others: as MakeMpiTransport.
absl::StatusOr<RankJob> JoinRanks(const RankEnvironment& where);

// COLLECTIVE. Compares what must be alike in all ranks: the build, the configuration, and what they
// read, which `files` describes in lines. INVALID_ARGUMENT, in all ranks: names the rank, and what
// differs there.
absl::Status CheckSameRun(const RankAgreement& ranks, const RunConfig& config,
                          const std::string& files);

// Returns the threads of an operator where a machine of `processors`, of which this process may use
// `usable`, has so many ranks: at least one.
int64_t ThreadsOfRank(int64_t processors, int64_t usable, int64_t num_local_ranks);

}  // namespace gemini::trainer
