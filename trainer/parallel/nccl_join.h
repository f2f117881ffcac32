// SPDX-License-Identifier: Apache-2.0
// Joins ranks that exchange by NCCL: they find each other in a store, see that no two of them have
// one GPU, and make a communicator by an id of the first one's.
// Errors: what one rank cannot do all of them return, at once (IsAgreed). A rank that does not come
//         is named behind the limit. What fails between the ranks behind that may end as an error
//         of this rank alone: the others may wait for it, so the process must end.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/torch/hook/session_device.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/exchange_device.h"
#include "trainer/parallel/gpu_of_rank.h"
#include "trainer/parallel/nccl_library.h"
#include "trainer/parallel/rank_store.h"

namespace gemini::trainer {

struct NcclJoinOptions {
  int64_t rank = 0;
  int64_t num_ranks = 1;
  GpuWish gpu = {};
  bool exact = false;
  absl::Duration limit = absl::Seconds(120);
};

struct JoinedByNccl {
  std::optional<RankGpu> gpu = {};  // None: the CPU, which a library for tests can do.
  std::shared_ptr<client::hooks::SessionDevice> device = {};  // Of the GPU.
  std::unique_ptr<Communicator> communicator = {};
};

// NCCL, and a device that has been opened.
struct OpenedNccl {
  NcclLibrary nccl;
  std::shared_ptr<client::hooks::SessionDevice> device;
  std::shared_ptr<ExchangeDevice> exchange;
};

// What a rank brings to the others. Nothing is opened before it is agreed who has which GPU.
struct NcclParts {
  std::optional<RankGpu> gpu;
  std::function<absl::StatusOr<OpenedNccl>()> open;
};

// Whether the variable GEMINI_NCCL_LIBRARY names a library in NCCL's place, by which tests exchange
// between CPUs. Else NCCL is what the linker finds (kNcclName).
bool HasNcclForCpus();

// Chooses this rank's GPU, if it has one. Errors: as VisibleGpus and GpuOfRank. Those of `open`: as
// LoadNccl, OpenGpu and MakeGpuExchange.
absl::StatusOr<NcclParts> FindNcclParts(const GpuWish& wish);

// COLLECTIVE. `parts`: this rank's, or why it has none, which the others are then told. Errors: as
// the store's; INVALID_ARGUMENT: two ranks have one GPU, or NCCL of two versions; names them.
absl::StatusOr<JoinedByNccl> JoinByNccl(RankStore& store, const NcclJoinOptions& options,
                                        absl::StatusOr<NcclParts> parts);

}  // namespace gemini::trainer
