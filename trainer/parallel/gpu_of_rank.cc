// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/gpu_of_rank.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "gemini/device_name.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr char kEachItsOwn[] = "cuda";

std::string Gpus(int64_t count) { return count == 1 ? "1 GPU" : absl::StrCat(count, " GPUs"); }

}  // namespace

absl::StatusOr<int> GpuOfRank(const GpuWish& wish, int64_t num_visible) {
  if (num_visible < 1) {
    return absl::NotFoundError(
        absl::StrCat("--device ", wish.device,
                     ": this process sees no GPU: see what nvidia-smi lists, and whether "
                     "CUDA_VISIBLE_DEVICES hides it"));
  }
  if (wish.device != kEachItsOwn) {
    GEMINI_ASSIGN_OR_RETURN(const std::optional<int> named, ParseDeviceName(wish.device));
    const int64_t number = named.value_or(0);
    if (number < num_visible) return static_cast<int>(number);
    return absl::NotFoundError(absl::StrCat("--device ", wish.device, ": this process sees ",
                                            Gpus(num_visible),
                                            ", the last one is cuda:", num_visible - 1));
  }
  if (wish.local_rank < num_visible) return static_cast<int>(wish.local_rank);
  if (num_visible == 1) return 0;
  if (wish.shares) return static_cast<int>(wish.local_rank % num_visible);
  return absl::NotFoundError(absl::StrCat(
      "--device cuda: ", wish.num_local_ranks, " ranks of this machine see ", Gpus(num_visible),
      ": start ", num_visible, " of them here, or let them have GPUs together by --share-gpu"));
}

absl::Status CheckGpusApart(const std::vector<std::string>& by_rank) {
  std::map<std::string, size_t> first_with;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].empty()) continue;
    const auto [found, is_first] = first_with.emplace(by_rank[rank], rank);
    if (is_first) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks ", found->second, " and ", rank, " have one GPU, ", by_rank[rank],
        ": start one rank for each GPU, with --device cuda, or let them have it together by "
        "--share-gpu"));
  }
  return absl::OkStatus();
}

int64_t NumRanksOnGpu(const std::vector<std::string>& by_rank, int64_t rank) {
  return std::ranges::count(by_rank, by_rank[static_cast<size_t>(rank)]);
}

}  // namespace gemini::trainer
