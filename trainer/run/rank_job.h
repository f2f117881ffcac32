// SPDX-License-Identifier: Apache-2.0
// Joins the ranks that a run was launched as, and checks what they must have alike.
// Owner: one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/torch/hook/session_device.h"
#include "trainer/config/command_line.h"
#include "trainer/config/run_config.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gpu_of_rank.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_environment.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

enum class Transport : uint8_t { kMpi, kNccl };
// Returns "mpi" or "nccl".
absl::string_view TransportName(Transport transport);

// How a rank joins the others.
struct JoinWish {
  Transport transport = Transport::kMpi;
  std::string device = "cpu";
  bool exact = false;  // Sums by NCCL are left folds.
  bool shares_gpu = false;
  absl::Duration limit = absl::Seconds(120);  // How long a rank is waited for.
};

// Whether sums must have the same bits whatever way NCCL adds: ranks that share layers compute by
// themselves what several of them have alike, and add it over at least three ranks in each of
// several groups, which NCCL may do in another order in each. Two add alike either way.
bool NeedsExactSums(const RankLayout& layout);

// Returns how ranks of such a run join, whose keys have passed CheckRunOfRanks.
// `has_nccl_for_cpus`: HasNcclForCpus. INVALID_ARGUMENT: NCCL between CPUs. UNIMPLEMENTED: torchrun
// starts ranks that compute on CPUs.
absl::StatusOr<JoinWish> JoinWishOf(const RunConfig& config, const RankLayout& layout,
                                    Launcher launcher, bool has_nccl_for_cpus);

// A rank's command line, and what it says of the ranks.
struct LineOfRank {
  CommandLine line;
  RankLayout layout;
  JoinWish wish = {};
  std::string said = {};  // For the log: what is done beyond the keys. Empty: nothing.
};

// Reads a rank's command line, and looks at all that can be refused before ranks know each other.
// The rest is as it comes where it asks for help or the version. Errors name the keys.
absl::StatusOr<LineOfRank> ParseLineOfRank(absl::Span<const std::string> arguments,
                                           const RankEnvironment& where);

struct RankJob {
  RankEnvironment where;
  Transport transport = Transport::kMpi;
  std::optional<RankGpu> gpu = {};                            // None: the CPU, or one rank.
  std::shared_ptr<client::hooks::SessionDevice> device = {};  // The GPU, where `gpu` is one.
  std::unique_ptr<Communicator> communicator = {};            // Null: one rank.
  RankAgreement agreement() const {
    return communicator == nullptr ? RankAgreement() : RankAgreement(*communicator);
  }
};

// COLLECTIVE. Reads what the launcher says, and begins MPI or NCCL where there are several ranks.
// `wish`: this rank's, or why it has none, which all ranks then return (IsAgreed). NOT_FOUND: there
// is no MPI or no NCCL, or gemini_mpi.so is not where it was looked for. INVALID_ARGUMENT: ranks
// want different transports. FAILED_PRECONDITION: nothing says where ranks find each other. Others:
// as MakeMpiTransport, RankStore and JoinByNccl.
// `say` is called with an error if this rank is to say it. What all ranks have alike the first one
// says, before any of the others returns: a launcher that sees one of them end may end it. What the
// ranks of a machine find alike, as that MPI is missing, the first of them says. Any other error is
// this rank's own, and has its number.
absl::StatusOr<RankJob> JoinRanks(
    const RankEnvironment& where, const absl::StatusOr<JoinWish>& wish,
    absl::FunctionRef<void(const absl::Status& why)> say = [](const absl::Status&) {});

// COLLECTIVE. Compares what must be alike in all ranks: the build, the configuration, and what they
// read, which `files` describes in lines. INVALID_ARGUMENT, in all ranks: names the rank, and what
// differs there.
absl::Status CheckSameRun(const RankAgreement& ranks, const RunConfig& config,
                          const std::string& files);

}  // namespace gemini::trainer
