// SPDX-License-Identifier: Apache-2.0
// Shows the blocks of a table of the vocabulary (trainer/families/vocabulary_cut.h) as the one
// tensor that files have: whoever loads and saves knows no blocks. Other parameters pass through.
// Owner: one thread, as the store below.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

// Returns the tensors that files have for a model's parameters, in their order: the blocks of a
// table, which follow one another, are one.
std::vector<ParameterShape> ShapesInFiles(absl::Span<const ParameterShape> parameters);

class JoinedParameterStore final : public ParameterStore {
 public:
  // `parameters` are those of `store`.
  JoinedParameterStore(std::unique_ptr<ParameterStore> store,
                       absl::Span<const ParameterShape> parameters);

  absl::StatusOr<client::StepResult> Update(const client::StepOptions& options) override {
    return store_->Update(options);
  }
  OptimizerKind optimizer() const override { return store_->optimizer(); }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override;
  absl::Status Write(absl::string_view name, ChunkKind kind, Source source) override;
  // A table's blocks have had the same updates: a backward pass gives all of them gradients.
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override;
  absl::Status SetStep(int64_t step) override { return store_->SetStep(step); }
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override;
  absl::Status OnFirstRank(absl::FunctionRef<absl::Status()> work) override {
    return store_->OnFirstRank(work);
  }
  void BeginPhase(absl::string_view name) override { store_->BeginPhase(name); }
  void EndPhase() override { store_->EndPhase(); }
  absl::Status status() const override { return store_->status(); }
  bool GiveWay() override { return store_->GiveWay(); }
  void ForgetGradients() override { store_->ForgetGradients(); }
  client::TrainingStats usage() const override { return store_->usage(); }
  void ResetPeaks() override { store_->ResetPeaks(); }

 private:
  struct Block {
    std::string name;
    int64_t offset_bytes = 0;  // In the tensor of the files, in fp32.
  };
  // Those of a table in their order, or a parameter that is no table.
  std::vector<Block> BlocksOf(absl::string_view name) const;

  const std::unique_ptr<ParameterStore> store_;
  absl::flat_hash_map<std::string, std::vector<Block>> tables_;
};

}  // namespace gemini::trainer
