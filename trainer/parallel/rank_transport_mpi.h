// SPDX-License-Identifier: Apache-2.0
// Moves bytes between ranks by MPI (MPI: A Message-Passing Interface Standard, version 3.1). MPI is
// in a module that is loaded when there are several ranks, so that a program runs where MPI is not
// installed.
// Thread: MPI is begun, used and ended by the thread that makes the transport.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/parallel/rank_transport.h"

namespace gemini::trainer {

// Loads the module at `path`, gemini_mpi.so, and begins MPI, once a process. NOT_FOUND: there is no
// such module, or not the MPI that it was built with; the message says what to install. INTERNAL: a
// call of MPI fails. But if MPI cannot begin at all, it ends the process. INVALID_ARGUMENT: MPI
// knows this process as another rank than its launcher does.
absl::StatusOr<std::unique_ptr<RankTransport>> MakeMpiTransport(const std::string& path,
                                                                int64_t rank, int64_t num_ranks);

}  // namespace gemini::trainer
