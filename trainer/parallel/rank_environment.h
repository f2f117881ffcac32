// SPDX-License-Identifier: Apache-2.0
// Finds which rank of which job this process is, as the program that launched it says in
// environment variables: torchrun, mpirun of Open MPI, or srun of Slurm. Without any of them it is
// a job of one.
// Order: torchrun comes before mpirun, and mpirun before srun: each may have been started by the
//        next, whose variables its ranks inherit. mpirun inside a Slurm allocation starts its
//        daemons by srun (docs/adr/0059-the-innermost-launcher.md).
// Pure: the variables are an argument.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

enum class Launcher : uint8_t { kNone, kTorchrun, kOpenMpi, kSrun };
// Returns "torchrun", "mpirun" or "srun"; "no launcher" for kNone.
absl::string_view LauncherName(Launcher launcher);

// Where ranks find each other that have no MPI for it.
struct Rendezvous {
  std::string host;
  int64_t port = 0;  // 1 to 65,535.
  // Whether the launcher has a TCPStore there already, else rank 0 opens it.
  bool is_served = false;
  // What keys there begin with, so that those of a run before a restart are others.
  std::string key_prefix;
};

struct RankEnvironment {
  Launcher launcher = Launcher::kNone;
  int64_t rank = 0;  // From 0 to num_ranks - 1.
  int64_t num_ranks = 1;
  // The rank's number among those of this machine, from 0 to num_local_ranks - 1.
  int64_t local_rank = 0;
  int64_t num_local_ranks = 1;
  // torchrun says one, and srun's first node is one. MASTER_ADDR and MASTER_PORT together are one
  // for every launcher. mpirun has none besides.
  std::optional<Rendezvous> rendezvous = {};
};

// Returns a variable's value, or nothing if it is not set.
using Variables = absl::FunctionRef<std::optional<std::string>(absl::string_view name)>;

// INVALID_ARGUMENT: a variable is no number or out of its range, one is missing beside others of
// its launcher, or RANK and WORLD_SIZE, which torchrun did not set, say something else than mpirun
// or srun do. The message shows the variables.
absl::StatusOr<RankEnvironment> ReadRankEnvironment(Variables variables);
// Reads the variables of this process.
absl::StatusOr<RankEnvironment> ReadRankEnvironment();

}  // namespace gemini::trainer
