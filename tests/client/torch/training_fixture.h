// SPDX-License-Identifier: Apache-2.0
// An embedded server with a training session on it, for the tests of the hook.
#pragma once
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "client/kernels/update_kernel.h"
#include "client/torch/device/counting_allocator.h"
#include "client/torch/model/element_types.h"
#include "client/torch/model/training_session.h"
#include "gemini/byte_size.h"
#include "gemini/half_float.h"
#include "gemini/split_float.h"
#include "gtest/gtest.h"
#include "server/embedded_server.h"
#include "tests/server/nvme/nvme_io_faulty.h"
#include "tests/status_matchers.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace gemini::client::hooks {

class TrainingTest : public ::testing::Test {
 protected:
  // Budgets that hold the small models of these tests, with chunks of 64 KiB.
  static TrainingOptions SmallOptions() {
    TrainingOptions options;
    options.device_memory = 8 * kMiB;
    options.host_memory = 32 * kMiB;
    options.chunk_bytes = 64 * kKiB;
    options.label = "test";
    return options;
  }

  // Starts a server that has what the options want, and opens the session. `faults`, of its NVMe,
  // may be null, and outlives both.
  void Open(const TrainingOptions& options, server::NvmeFaults* faults = nullptr) {
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = options.device_memory;
    server_options.capacity_bytes[Tier::kHost] = options.host_memory;
    if (options.nvme_memory > 0) {
      std::string pattern = ::testing::TempDir() + "nvmeXXXXXX";
      ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
      nvme_directory_ = pattern;
      server_options.nvme_directories = {{nvme_directory_, options.nvme_memory}};
    }
    if (faults != nullptr) server_options = server::WithFaults(server_options, *faults);
    ASSERT_OK_AND_ASSIGN(server_, server::EmbeddedServer::Start(server_options));
    ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
    ASSERT_OK_AND_ASSIGN(session_, TrainingSession::Open(std::move(socket), options));
  }

  // Manages the module in the open session.
  ManagedModel* Manage(torch::nn::Module& module, const OptimizerSpec& optimizer = {},
                       const std::string& space_name = "model") {
    ManageOptions options;
    options.space_name = space_name;
    absl::StatusOr<ManagedModel*> model = session_->Manage(module, optimizer, options);
    EXPECT_OK(model);
    return model.ok() ? *model : nullptr;
  }

  // Sends every chunk that no operator uses off DEVICE.
  void EvictAll() {
    session_->session().residency().MakeRoom(session_->session().device_budget().budget_bytes());
  }

  // The parameter's bytes as Read gives them.
  static std::vector<float> ReadAll(ManagedModel& model, const std::string& name,
                                    ChunkKind kind = ChunkKind::kParam) {
    std::vector<float> values;
    EXPECT_OK(model.Read(name, kind, [&](int64_t offset, absl::Span<const std::byte> bytes) {
      values.resize((offset + bytes.size()) / sizeof(float));
      std::memcpy(reinterpret_cast<std::byte*>(values.data()) + offset, bytes.data(), bytes.size());
      return absl::OkStatus();
    }));
    return values;
  }

  ~TrainingTest() override {
    if (session_ != nullptr) {
      EXPECT_EQ(GetAllocationStats().over_budget, 0);
      EXPECT_LE(session_->stats().device_peak_bytes, session_->stats().device_budget_bytes);
    }
    session_.reset();
    server_.reset();
    if (!nvme_directory_.empty()) std::filesystem::remove_all(nvme_directory_);
  }

  std::string nvme_directory_;
  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<TrainingSession> session_;
};

// Plain training with the same update, for bit-equality: moments and step counts by parameter.
class ReferenceAdamW {
 public:
  ReferenceAdamW(std::vector<at::Tensor> parameters, OptimizerSpec spec)
      : parameters_(std::move(parameters)), spec_(spec), state_(parameters_.size()) {}

  void Step(double max_grad_norm = 0) {
    std::vector<double> squares;
    for (const at::Tensor& parameter : parameters_) {
      if (!parameter.grad().defined()) continue;
      const at::Tensor gradient = parameter.grad().contiguous();
      AppendBlockSquares(*ElementTypeOf(gradient.scalar_type()), gradient.const_data_ptr(),
                         gradient.numel(), squares);
    }
    const double clip = ClipCoefficient(NormOf(squares), max_grad_norm);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& parameter = parameters_[i];
      if (!parameter.grad().defined()) continue;
      State& state = state_[i];
      const auto count = static_cast<size_t>(parameter.numel());
      state.exp_avg.resize(count);
      state.exp_avg_sq.resize(count);
      UpdateSettings settings;
      settings.learning_rate = spec_.learning_rate;
      settings.beta1 = spec_.beta1;
      settings.beta2 = spec_.beta2;
      settings.epsilon = spec_.epsilon;
      settings.weight_decay =
          parameter.dim() >= spec_.decay_min_dimensions ? spec_.weight_decay : 0;
      settings.step = ++state.step;
      settings.gradient_scale = clip;
      const at::Tensor gradient = parameter.grad().contiguous();
      const ElementType element = *ElementTypeOf(parameter.scalar_type());
      AdoptEdits(element, parameter, state.values);
      float* const values = state.values.data();
      UpdateElements(settings,
                     {.grad_type = element,
                      .param = values,
                      .grad = gradient.const_data_ptr(),
                      .exp_avg = state.exp_avg.data(),
                      .exp_avg_sq = state.exp_avg_sq.data(),
                      .new_param = values,
                      .new_exp_avg = state.exp_avg.data(),
                      .new_exp_avg_sq = state.exp_avg_sq.data()},
                     parameter.numel());
      StoreRounded(element, state.values, parameter.mutable_data_ptr());
    }
  }

  // Of one parameter; empty before its first update.
  struct State {
    std::vector<float> values;  // Of the parameter, whatever its type.
    std::vector<float> exp_avg, exp_avg_sq;
    int64_t step = 0;
  };
  const std::vector<State>& states() const { return state_; }  // In the order of the parameters.

 private:
  // Elements that show another number than their value's have it as their value: at first all.
  static void AdoptEdits(ElementType element, const at::Tensor& parameter,
                         std::vector<float>& values) {
    const at::Tensor numbers = parameter.detach().to(at::kFloat);
    const auto count = static_cast<size_t>(parameter.numel());
    std::vector<float> shown(count), rounded(count);
    std::memcpy(shown.data(), numbers.const_data_ptr(), count * sizeof(float));
    if (values.empty()) values = shown;
    const at::Tensor as_shown = at::empty_like(parameter);
    StoreRounded(element, values, as_shown.mutable_data_ptr());
    std::memcpy(rounded.data(), as_shown.to(at::kFloat).const_data_ptr(), count * sizeof(float));
    for (size_t i = 0; i < count; ++i) {
      if (shown[i] != rounded[i]) values[i] = shown[i];
    }
  }
  // What a model computes with: bf16 is the high half (gemini/split_float.h), fp16 the nearest
  // number.
  static void StoreRounded(ElementType element, const std::vector<float>& values, void* to) {
    auto* const bits = static_cast<uint16_t*>(to);
    switch (element) {
      case ElementType::kFp32:
        std::memcpy(to, values.data(), values.size() * sizeof(float));
        return;
      case ElementType::kBf16:
        std::ranges::transform(values, bits, [](float value) { return SplitOf(value).high; });
        return;
      case ElementType::kFp16:
        std::ranges::transform(values, bits, Fp16Of);
        return;
    }
  }

  std::vector<at::Tensor> parameters_;
  OptimizerSpec spec_;
  std::vector<State> state_;
};

}  // namespace gemini::client::hooks
