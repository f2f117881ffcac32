// SPDX-License-Identifier: Apache-2.0
// Implements an activation store whose older activations a session moves to HOST.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "client/torch/model/offloaded_tensors.h"
#include "trainer/models/activation_store.h"

namespace gemini::trainer {

class ManagedActivations final : public ActivationStore {
 public:
  explicit ManagedActivations(std::unique_ptr<client::hooks::OffloadedTensors> tensors)
      : tensors_(std::move(tensors)) {}
  absl::StatusOr<int64_t> Put(torch::Tensor tensor) override {
    return tensors_->Put(std::move(tensor));
  }
  absl::Status Prefetch(int64_t key) override { return tensors_->Prefetch(key); }
  absl::StatusOr<torch::Tensor> Take(int64_t key) override { return tensors_->Take(key); }
  void Clear() override { tensors_->Clear(); }

 private:
  const std::unique_ptr<client::hooks::OffloadedTensors> tensors_;
};

}  // namespace gemini::trainer
