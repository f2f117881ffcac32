// SPDX-License-Identifier: Apache-2.0
// Keeps parameters in plain memory: ordinary tensors, no session and no hook. A managed run must
// equal it bit by bit.
// Bits: math libraries choose kernels by alignment, so parameters start at 256-byte boundaries as
// they do inside chunks. The update and the norm are the client's own.
// Owner: one thread. The module must live as long.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/kernels/update_kernel.h"
#include "gemini/element_type.h"
#include "torch/nn/module.h"
#include "trainer/config/decay_exemptions.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

class ReferenceParameterStore final : public ParameterStore {
 public:
  // Gives every parameter of the module aligned memory, without values. INVALID_ARGUMENT: a
  // parameter that is not fp32, bf16 or fp16 on the CPU. RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<std::unique_ptr<ReferenceParameterStore>> Create(
      torch::nn::Module& module, const client::OptimizerSpec& optimizer,
      const DecayExemptions& no_decay);

  absl::StatusOr<client::StepResult> Update(const client::StepOptions& options) override;
  OptimizerKind optimizer() const override { return optimizer_.kind; }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override;
  absl::Status Write(absl::string_view name, ChunkKind kind, Source source) override;
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override;
  absl::Status SetStep(int64_t step) override;
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override;
  absl::Status status() const override { return absl::OkStatus(); }
  client::TrainingStats usage() const override { return {}; }
  void ResetPeaks() override {}

 private:
  struct Parameter {
    int64_t count() const { return tensor.numel(); }
    // The fp32 values of its elements.
    float* values() {
      return element == ElementType::kFp32 ? tensor.data_ptr<float>() : master.data();
    }
    // Rounds the values into the tensor, if it has 16-bit elements.
    void RoundValues();
    // Rounds the moments to 8 bits and back.
    void RoundMoments();

    std::string name;
    at::Tensor tensor;
    ElementType element = ElementType::kFp32;
    std::vector<float> master;   // Empty in fp32.
    std::vector<float> exp_avg;  // Empty before the first update, which stands for zeros.
    std::vector<float> exp_avg_sq;
    int64_t step = 0;
  };
  ReferenceParameterStore(const client::OptimizerSpec& optimizer, const DecayExemptions& no_decay)
      : optimizer_(optimizer), no_decay_(no_decay) {}
  absl::StatusOr<int64_t> Find(absl::string_view name) const;
  // Returns the settings of its next update, without the trust ratio.
  client::UpdateSettings SettingsOf(const Parameter& parameter, const client::StepOptions& options,
                                    double clip_coefficient) const;

  const client::OptimizerSpec optimizer_;
  const DecayExemptions no_decay_;
  std::vector<Parameter> parameters_;  // In the module's order.
  std::unordered_map<std::string, int64_t> index_;
};

}  // namespace gemini::trainer
