// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_training.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "torch/utils.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchTraining>> BenchTraining::Start(const BenchShape& shape,
                                                                    int64_t device_bytes,
                                                                    int64_t chunk_bytes,
                                                                    int64_t bandwidth) {
  std::unique_ptr<BenchTraining> training(new BenchTraining);
  GEMINI_RETURN_IF_ERROR(training->Open(shape, device_bytes, chunk_bytes, bandwidth));
  return training;
}

absl::StatusOr<StepTimes> BenchTraining::Run(int warm_up, int measured) {
  StepTimes times;
  for (int i = 0; i < warm_up + measured; ++i) {
    if (i == warm_up) {
      session_->phases().AwaitPlannedMoves();
      before_ = session_->stats();
      session_->ResetPeaks();
    }
    const Clock::time_point begin = Clock::now();
    const torch::Tensor& tokens = tokens_[losses_.size() % tokens_.size()];
    const LossFactors factors = LossFactors::OfStep(1, Labels::AllOf(tokens).count, 1);
    BatchLoss loss = model_->Losses(tokens, factors);
    losses_.push_back(loss.Values().total);
    const Clock::time_point turn = Clock::now();
    loss.Backward(factors);
    loss.sum.reset();
    const Clock::time_point update = Clock::now();
    GEMINI_RETURN_IF_ERROR(managed_->Step({.learning_rate = 1e-4, .max_grad_norm = 1}).status());
    model_->zero_grad();
    const Clock::time_point end = Clock::now();
    if (i < warm_up) continue;
    times.forward.push_back(Seconds(begin, turn));
    times.backward.push_back(Seconds(turn, update));
    times.step.push_back(Seconds(begin, end));
  }
  session_->phases().AwaitPlannedMoves();
  after_ = session_->stats();
  GEMINI_RETURN_IF_ERROR(session_->status());
  return times;
}

absl::Status BenchTraining::Open(const BenchShape& shape, int64_t device_bytes, int64_t chunk_bytes,
                                 int64_t bandwidth) {
  torch::manual_seed(1);
  const std::string json = absl::StrFormat(
      R"({"model_type": "gpt2", "n_layer": %d, "n_embd": %d, "n_head": %d, "vocab_size": %d,
          "n_positions": %d, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})",
      shape.num_layers, shape.width, shape.width / 64, shape.vocab_size, shape.sequence);
  GEMINI_ASSIGN_OR_RETURN(const HfConfig config, ParseHfConfig(json, "the benchmark's config"));
  GEMINI_ASSIGN_OR_RETURN(model_, MakeStagedModel(config.spec, torch::kFloat32));
  {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : model_->named_parameters()) {
      at::Tensor value = parameter.value();
      const bool is_norm = parameter.key().find("ln_") != std::string::npos;
      if (value.dim() == 1) {
        value.fill_(is_norm && parameter.key().ends_with("weight") ? 1 : 0);
      } else {
        value.normal_(0, 0.02);
      }
      parameter_bytes_ += value.numel() * static_cast<int64_t>(sizeof(float));
    }
  }
  for (int i = 0; i < 4; ++i) {
    tokens_.push_back(torch::randint(0, shape.vocab_size, {1, shape.sequence}, torch::kInt64));
  }
  client::hooks::TrainingOptions options;
  options.device_memory = device_bytes;
  options.host_memory = parameter_bytes_ * 4 + 512 * kMiB;
  options.chunk_bytes = chunk_bytes;
  options.label = "gemini-bench overlap";
  options.device_bandwidth = bandwidth;
  server::ServerOptions server_options;
  server_options.capacity_bytes[Tier::kDevice] = options.device_memory;
  server_options.capacity_bytes[Tier::kHost] = options.host_memory;
  GEMINI_ASSIGN_OR_RETURN(server_, server::EmbeddedServer::Start(server_options));
  GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, server_->Connect());
  GEMINI_ASSIGN_OR_RETURN(session_,
                          client::hooks::TrainingSession::Open(std::move(socket), options));
  GEMINI_ASSIGN_OR_RETURN(managed_, session_->Manage(*model_, {}, {}));
  return absl::OkStatus();
}

}  // namespace gemini::trainer
