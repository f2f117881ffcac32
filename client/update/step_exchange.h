// SPDX-License-Identifier: Apache-2.0
// Declares what processes that train one model together agree on in each optimizer step. Each of
// them manages a part of the model, in a session of its own; either all take a step, or none does.
// Order: a step calls AgreeOnNorm once, whatever happens before, as long as it has changed nothing.
// With LAMB or LARS it calls CompleteTrustSquares behind that. If a step fails behind an agreement
// to take it, this process is no longer at the step of the others: the error is latched in the
// session, and whoever called Step must end the job.
// Thread: the one that steps. Both calls may wait for other processes.
#pragma once
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/kernels/trust_ratio.h"

namespace gemini::client {

// By tensor, in the order of ManagedModel::tensors(): the sum of squares of each block
// (client/kernels/grad_norm.h) of its gradient. A tensor without a gradient has no blocks.
using SquaresByTensor = std::vector<std::vector<double>>;

class StepExchange {
 public:
  virtual ~StepExchange() = default;

  // Takes this process's squares, or why it cannot take the step: OUT_OF_RANGE if a gradient holds
  // a NaN or an infinity (named in the message), else another error. Returns the norm of the
  // gradients of all processes, with the same bits in each, or nothing if no process has a
  // gradient. If one of them cannot take the step, all get an error: OUT_OF_RANGE if nothing worse
  // was wrong in any.
  virtual absl::StatusOr<std::optional<double>> AgreeOnNorm(
      const absl::StatusOr<SquaresByTensor>& own) = 0;

  // Replaces the squares of this process's part of each tensor by those of the whole tensor, in the
  // order of its blocks. `squares` are in the order of ManagedModel::tensors().
  virtual absl::Status CompleteTrustSquares(absl::Span<TrustSquares> squares) = 0;
};

// One process has the whole model.
class NoExchange final : public StepExchange {
 public:
  absl::StatusOr<std::optional<double>> AgreeOnNorm(
      const absl::StatusOr<SquaresByTensor>& own) override;
  absl::Status CompleteTrustSquares(absl::Span<TrustSquares>) override { return absl::OkStatus(); }
};

// Returns the norm of gradients whose block squares add up to `sum`. OUT_OF_RANGE: it is not
// finite.
absl::StatusOr<double> NormOfSum(double sum);

// Tells the other processes that this one cannot take the step, for an error that is `own`. Returns
// the error of all. Without an exchange that is `own`.
absl::Status RefuseStep(StepExchange* exchange, const absl::Status& own);

}  // namespace gemini::client
