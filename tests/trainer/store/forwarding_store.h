// SPDX-License-Identifier: Apache-2.0
// A ParameterStore that does what another one does, for tests that change a part of it.
#pragma once
#include <memory>
#include <utility>

#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

class ForwardingStore : public ParameterStore {
 public:
  explicit ForwardingStore(std::unique_ptr<ParameterStore> store) : store_(std::move(store)) {}

  absl::StatusOr<client::StepResult> Update(const client::StepOptions& options) override {
    return store_->Update(options);
  }
  OptimizerKind optimizer() const override { return store_->optimizer(); }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override {
    return store_->ReadRange(name, kind, range, sink);
  }
  absl::Status Write(absl::string_view name, ChunkKind kind, Source source) override {
    return store_->Write(name, kind, source);
  }
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override {
    return store_->TensorStep(name);
  }
  absl::Status SetStep(int64_t step) override { return store_->SetStep(step); }
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override {
    return store_->SetTensorStep(name, step);
  }
  absl::Status status() const override { return store_->status(); }
  client::TrainingStats usage() const override { return store_->usage(); }
  void ResetPeaks() override { store_->ResetPeaks(); }

 private:
  const std::unique_ptr<ParameterStore> store_;
};

}  // namespace gemini::trainer
