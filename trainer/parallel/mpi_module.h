// SPDX-License-Identifier: Apache-2.0
// Declares the one function of the module that contains MPI (rank_transport_mpi.h). It is found by
// its name.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "trainer/parallel/rank_transport.h"

inline constexpr char kMakeMpiTransport[] = "gemini_make_mpi_transport";
extern "C" void gemini_make_mpi_transport(
    int64_t rank, int64_t num_ranks,
    absl::StatusOr<std::unique_ptr<gemini::trainer::RankTransport>>& made);
