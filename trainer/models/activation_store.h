// SPDX-License-Identifier: Apache-2.0
// Declares the interface of the place where the activations between the blocks of a schedule wait.
// It is used as a stack: what was put last is taken first.
// Thread: one at a time.
// Errors: those of the place.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "torch/types.h"

namespace gemini::trainer {

class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  // Takes a tensor that is not written any more and returns its key.
  virtual absl::StatusOr<int64_t> Put(torch::Tensor tensor) = 0;
  // Begins to fetch it, if it is away.
  virtual absl::Status Prefetch(int64_t key) = 0;
  // Returns it with the same bits and removes the key.
  virtual absl::StatusOr<torch::Tensor> Take(int64_t key) = 0;
  // Drops all that was put and not taken, after a schedule was given up.
  virtual void Clear() = 0;
};

// A store in which the activations stay where they are.
class ActivationsInPlace final : public ActivationStore {
 public:
  absl::StatusOr<int64_t> Put(torch::Tensor tensor) override {
    tensors_[next_key_] = std::move(tensor);
    return next_key_++;
  }
  absl::Status Prefetch(int64_t /*key*/) override { return absl::OkStatus(); }
  absl::StatusOr<torch::Tensor> Take(int64_t key) override {
    return std::move(tensors_.extract(key).mapped());
  }
  void Clear() override { tensors_.clear(); }

 private:
  std::unordered_map<int64_t, torch::Tensor> tensors_;
  int64_t next_key_ = 0;
};

}  // namespace gemini::trainer
