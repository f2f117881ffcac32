// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/operator_room.h"

#include <exception>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gemini/byte_size.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "trainer/run/torch_failure.h"

namespace gemini::trainer {

absl::StatusOr<LossSum> OperatorRoom::Run(absl::string_view what, Compute compute) {
  absl::StatusOr<LossSum> loss = compute();
  if (!is_by_itself()) return loss;
  while (OperatorsHadNoMemory(loss.status()) && store_.status().ok()) {
    // Nothing of the attempt is worth room.
    activations_.Clear();
    GEMINI_RETURN_IF_ERROR(DropGradients());
    if (!store_.GiveWay()) break;
    ++num_given_;
    log_(absl::StrCat(what, " is begun again with more memory for operators, taken from ",
                      "parameters: ", loss.status().message()));
    loss = compute();
  }
  return loss;
}

absl::Status OperatorRoom::DropGradients() {
  try {
    model_.zero_grad();
    model_.Forget();
  } catch (const std::exception& error) {
    GEMINI_RETURN_IF_ERROR(store_.status());
    return StatusOfFailure(error, "zero_grad");
  }
  store_.ForgetGradients();
  return absl::OkStatus();
}

absl::Status OperatorRoom::RehearseInSilence(Compute compute) {
  const PhaseScope phase(store_, "rehearsal");
  const RankAgreement::Silence silence(ranks_);
  is_rehearsing_ = true;
  const absl::Cleanup end = [this] { is_rehearsing_ = false; };
  const absl::Status run = Run("the rehearsal of a step", compute).status();
  if (OperatorsHadNoMemory(run)) {
    const int64_t device_bytes = store_.usage().device_budget_bytes;
    // In front: what Torch says may be cut.
    return absl::Status(
        run.code(), absl::StrCat("a step does not fit in DEVICE of ", FormatByteSize(device_bytes),
                                 ": raise --device-memory, or lower --batch or --sequence; in its ",
                                 "rehearsal: ", run.message()));
  }
  GEMINI_RETURN_IF_ERROR(run);
  return DropGradients();
}

absl::Status OperatorRoom::Rehearse(Compute compute) {
  const absl::Duration start = MonotonicNow();
  num_given_ = 0;
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(RehearseInSilence(compute)));
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
  GEMINI_ASSIGN_OR_RETURN(const std::vector<int64_t> given,
                          ranks_.Gather(num_given_, "who needed more memory"));
  std::vector<std::string> more;
  for (size_t rank = 0; rank < given.size(); ++rank) {
    if (given[rank] > 0) more.push_back(absl::StrCat("rank ", rank, " ", given[rank], " times"));
  }
  if (ranks_.is_first()) {
    log_(absl::StrFormat("rehearsed a step in %.1f s: operators %s", seconds,
                         more.empty() ? "have the memory that they need"
                                      : absl::StrCat("got more memory, taken from parameters, in ",
                                                     absl::StrJoin(more, ", "))));
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
