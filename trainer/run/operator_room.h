// SPDX-License-Identifier: Apache-2.0
// Finds memory for operators. On a GPU, work for which there is too little is begun again with more
// of it, taken from parameters, and the same numbers come out: gradients are dropped first, and
// what is random is counted and not drawn.
// Ranks:  a step that other ranks take part in cannot be begun again. So each rank rehearses a step
//         alone before the first one, while its communicator is silent (Communicator::set_silent).
//         Memory that others would have sent to holds whatever it held before.
// Owner:  one thread.
// Errors: what `compute` returns, where there is no more memory.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/models/activation_store.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/store/parameter_store.h"
#include "trainer/tasks/loss_values.h"

namespace gemini::trainer {

class OperatorRoom {
 public:
  using Compute = absl::FunctionRef<absl::StatusOr<LossSum>()>;
  using Log = std::function<void(const std::string& line)>;

  // All of it outlives this; `ranks` is copied.
  OperatorRoom(StagedModel& model, ParameterStore& store, ActivationStore& activations,
               const RankAgreement& ranks, Log log)
      : model_(model),
        store_(store),
        activations_(activations),
        ranks_(ranks),
        log_(std::move(log)) {}

  // Returns what `compute` does, the last time that it is called: again where operators had no
  // memory and there is more, unless other ranks take part. `what` names it.
  absl::StatusOr<LossSum> Run(absl::string_view what, Compute compute);
  // COLLECTIVE. Each rank runs `compute` alone, which is a step without its update, and drops its
  // gradients. The first rank logs which ranks needed more memory. If one rank fails, all ranks
  // return its error.
  absl::Status Rehearse(Compute compute);
  bool is_rehearsing() const { return is_rehearsing_; }
  // Whether no other rank waits for what this one computes.
  bool is_by_itself() const { return ranks_.is_alone() || is_rehearsing_; }

 private:
  absl::Status RehearseInSilence(Compute compute);
  // Drops what forwards and backwards have left.
  absl::Status DropGradients();

  StagedModel& model_;
  ParameterStore& store_;
  ActivationStore& activations_;
  const RankAgreement ranks_;
  const Log log_;
  bool is_rehearsing_ = false;
  int64_t num_given_ = 0;  // How often there was more memory.
};

}  // namespace gemini::trainer
