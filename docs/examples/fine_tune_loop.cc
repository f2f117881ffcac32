// SPDX-License-Identifier: Apache-2.0
// An ordinary LibTorch training loop under a memory budget. The lines marked (1), (2) and (3) are
// all that changed; docs/examples/README.md says what becomes of p.grad, zero_grad and clipping.
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "client/torch/model/training_session.h"
#include "gemini/byte_size.h"
#include "server/embedded_server.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/types.h"

using gemini::client::hooks::ManagedModel;
using gemini::client::hooks::ManageOptions;
using gemini::client::hooks::OptimizerSpec;
using gemini::client::hooks::StepResult;
using gemini::client::hooks::TrainingOptions;
using gemini::client::hooks::TrainingSession;

namespace {

struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < 12; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(128, 128)));
    }
    out = register_module("out", torch::nn::Linear(128, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (torch::nn::Linear& layer : layers) x = x + 0.1 * torch::gelu(layer->forward(x));
    return out->forward(x);
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear out{nullptr};
};

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  return 1;
}

int Train() {
  Net net;

  // (1) A session: here with a server in this process; TrainingSession::Open also takes the path of
  // a daemon's socket. DEVICE holds about half of the parameters at a time, beside the activations.
  TrainingOptions options;
  options.device_memory = 700 * gemini::kKiB;
  options.host_memory = 32 * gemini::kMiB;
  options.label = "fine_tune_loop";
  gemini::server::ServerOptions capacity;
  capacity.capacity_bytes[gemini::Tier::kDevice] = options.device_memory;
  capacity.capacity_bytes[gemini::Tier::kHost] = options.host_memory;
  auto server = gemini::server::EmbeddedServer::Start(capacity);
  if (!server.ok()) return Fail("server", server.status());
  auto socket = (*server)->Connect();
  if (!socket.ok()) return Fail("server", socket.status());
  auto session = TrainingSession::Open(*std::move(socket), options);
  if (!session.ok()) return Fail("session", session.status());

  // (2) The parameters and an optimizer specification, in place of torch::optim::AdamW.
  OptimizerSpec adamw;
  adamw.learning_rate = 1e-3;
  absl::StatusOr<ManagedModel*> model = (*session)->Manage(net, adamw, ManageOptions{});
  if (!model.ok()) return Fail("model", model.status());

  float first_loss = 0;
  float loss_value = 0;
  for (int step = 0; step < 20; ++step) {
    net.zero_grad();
    const torch::Tensor x = torch::randn({8, 128});
    const torch::Tensor loss = (net.forward(x) - x.mean(1, true)).square().mean();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 10.0);
    // (3) In place of optimizer.step().
    const absl::StatusOr<StepResult> result = (*model)->Step({});
    if (!result.ok()) return Fail("step", result.status());
    loss_value = loss.item<float>();
    if (step == 0) first_loss = loss_value;
  }
  const auto stats = (*session)->stats();
  std::printf("loss %.3f -> %.3f, DEVICE peak %s of %s, fetched %s\n", first_loss, loss_value,
              gemini::FormatByteSize(stats.device_peak_bytes).c_str(),
              gemini::FormatByteSize(stats.device_budget_bytes).c_str(),
              gemini::FormatByteSize(stats.fetch_bytes).c_str());
  return loss_value < first_loss ? 0 : 1;
}

}  // namespace

int main() {
  torch::manual_seed(1);
  try {
    return Train();
  } catch (const std::exception& error) {  // Torch's.
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
