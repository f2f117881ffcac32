// SPDX-License-Identifier: Apache-2.0
// What a head costs whose logits never exist whole, forward and backward: the shape of Llama 3 8B's
// and 8,192 tokens in fp32, which takes 17 GiB of memory with whole logits.
// Value:    the time by that of a linear layer and Torch's cross entropy, in the same process.
// Checked:  the loss is that of whole logits to 2e-7 of it, the gradients to 2e-6 of the largest.
// Managed:  the table is in 16 blocks, which are fetched on demand, as in a first round that nobody
//           foretold. DEVICE has room for the hidden states and their gradient, which are there
//           without a head, too, and for 0.75 GiB more.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/linear.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/torch/model/training_session.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "gemini/system/unique_fd.h"
#include "gemini/tier.h"
#include "server/embedded_server.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/vocabulary_cut.h"
#include "trainer/models/head_loss.h"

namespace gemini::trainer {
namespace {

using Clock = std::chrono::steady_clock;
using torch::Tensor;

constexpr int64_t kTokens = 8192, kVocabulary = 128256, kWidth = 4096;
constexpr int64_t kAddedBytes = 768 * kMiB;
constexpr int64_t kManagedBlocks = 16;
constexpr double kMostLossError = 2e-7, kMostGradientError = 2e-6;

struct Inputs {
  Tensor hidden;
  Tensor labels;
  std::vector<Tensor> blocks;
};

struct Outputs {
  double loss = 0;
  double seconds = 0;
  Tensor hidden_gradient;
};

// The same values however many blocks there are.
Inputs Make(const VocabularyCut& cut) {
  torch::manual_seed(1);
  Inputs in;
  in.hidden = torch::randn({kTokens, kWidth}).set_requires_grad(true);
  in.labels = torch::randint(0, kVocabulary, {kTokens}, torch::kInt64);
  for (int64_t i = 0; i < cut.num_blocks(); ++i) {
    in.blocks.push_back(torch::empty({cut.first_row(i + 1) - cut.first_row(i), kWidth}));
    // Row by row, so that no row's values depend on the cut.
    for (int64_t row = 0; row < in.blocks[i].size(0); ++row) in.blocks[i][row].normal_(0, 0.02);
    in.blocks[i].set_requires_grad(true);
  }
  return in;
}

template <typename Loss>
Outputs Run(const Inputs& in, Loss loss) {
  Outputs out;
  const Clock::time_point begin = Clock::now();
  Tensor mean = loss(in);
  mean.backward();
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  out.loss = mean.item<double>();
  out.hidden_gradient = in.hidden.grad();
  return out;
}

Tensor WholeLogits(const Inputs& in) {
  return at::cross_entropy_loss(at::linear(in.hidden, in.blocks[0]), in.labels);
}

// The largest differences of gradients from those of whole logits, by the largest of these. NaN if
// any gradient is.
class GradientErrors {
 public:
  GradientErrors(const Outputs& ours, const Outputs& whole, const Tensor& whole_table_gradient)
      : table_scale_(whole_table_gradient.abs().max().item<double>()) {
    Keep(Difference(ours.hidden_gradient, whole.hidden_gradient) /
         whole.hidden_gradient.abs().max().item<double>());
  }
  void Add(const Tensor& block, const Tensor& expected) {
    Keep(Difference(block, expected) / table_scale_);
  }
  double largest() const { return largest_; }

 private:
  static double Difference(const Tensor& a, const Tensor& b) {
    return (a - b).abs().max().item<double>();  // NaN if one is.
  }
  void Keep(double error) {
    if (!std::isnan(largest_) && !(error <= largest_)) largest_ = error;
  }

  const double table_scale_;
  double largest_ = 0;
};

void Report(benchmark::State& state, const Outputs& ours, const Outputs& whole,
            double gradient_error) {
  const double loss_error = std::abs(ours.loss - whole.loss) / whole.loss;
  state.SetIterationTime(ours.seconds);
  state.counters["value"] = ours.seconds / whole.seconds;
  state.counters["baseline"] = whole.seconds;
  state.counters["checked"] =
      loss_error <= kMostLossError && gradient_error <= kMostGradientError ? 1 : 0;
  state.counters["seconds"] = ours.seconds;
  state.counters["loss_error"] = loss_error;
  state.counters["gradient_error"] = gradient_error;
}

void RunHead(benchmark::State& state, int64_t num_blocks) {
  const VocabularyCut pieces = CutIntoPieces(kVocabulary, kWidth, /*on_cpu=*/true);
  const VocabularyCut cut = CutIntoBlocks(pieces, num_blocks);
  for (auto _ : state) {
    Inputs in = Make(cut);
    const Outputs ours = Run(in, [&](const Inputs& of) {
      return HeadLoss(of.hidden, of.labels, of.blocks, {.cut = cut}, 1.0 / kTokens) / kTokens;
    });
    std::vector<Tensor> gradients;
    for (const Tensor& block : in.blocks) gradients.push_back(block.grad());
    in = Inputs();
    const Inputs plain = Make(pieces);
    const Outputs whole = Run(plain, WholeLogits);
    GradientErrors errors(ours, whole, plain.blocks[0].grad());
    for (int64_t i = 0; i < cut.num_blocks(); ++i) {
      errors.Add(gradients[i],
                 plain.blocks[0].grad().slice(0, cut.first_row(i), cut.first_row(i + 1)));
    }
    Report(state, ours, whole, errors.largest());
  }
}

// Makes the session and its server; both end with it.
struct ManagedHead {
  std::unique_ptr<server::EmbeddedServer> server;
  std::unique_ptr<client::hooks::TrainingSession> session;
  torch::nn::Module module;
  client::hooks::ManagedModel* managed = nullptr;

  absl::Status Manage(Inputs& in) {
    client::hooks::TrainingOptions options;
    options.device_memory =
        2 * kTokens * kWidth * static_cast<int64_t>(sizeof(float)) + kAddedBytes;
    // Parameters, gradients, two moments and spare chunks.
    options.host_memory = 5 * kVocabulary * kWidth * static_cast<int64_t>(sizeof(float));
    options.chunk_bytes = in.blocks[0].nbytes();
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = options.device_memory;
    server_options.capacity_bytes[Tier::kHost] = options.host_memory;
    GEMINI_ASSIGN_OR_RETURN(server, server::EmbeddedServer::Start(server_options));
    GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, server->Connect());
    GEMINI_ASSIGN_OR_RETURN(session,
                            client::hooks::TrainingSession::Open(std::move(socket), options));
    for (size_t i = 0; i < in.blocks.size(); ++i) {
      in.blocks[i] = module.register_parameter(absl::StrCat("block_", i), in.blocks[i]);
    }
    GEMINI_ASSIGN_OR_RETURN(managed, session->Manage(module, {.kind = OptimizerKind::kSgd}, {}));
    return absl::OkStatus();
  }

  // Copies a block's gradient to `to`, which has as many elements.
  absl::Status ReadGradient(size_t block, std::vector<float>& to) const {
    auto* const values = reinterpret_cast<std::byte*>(to.data());
    return managed->Read(absl::StrCat("block_", block), ChunkKind::kGrad,
                         [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
                           std::memcpy(values + offset_bytes, bytes.data(), bytes.size());
                           return absl::OkStatus();
                         });
  }
};

absl::Status RunManagedHead(benchmark::State& state) {
  const VocabularyCut pieces = CutIntoPieces(kVocabulary, kWidth, /*on_cpu=*/true);
  const VocabularyCut cut = CutIntoBlocks(pieces, kManagedBlocks);
  // Whole logits first: both at once would take more memory than most machines have.
  Inputs plain = Make(pieces);
  const Outputs whole = Run(plain, WholeLogits);
  const Tensor gradient = plain.blocks[0].grad();
  plain = Inputs();
  std::vector<std::vector<float>> gradients;
  Outputs ours;
  int64_t device_peak_bytes = 0;
  {
    Inputs in = Make(cut);
    ManagedHead head;
    GEMINI_RETURN_IF_ERROR(head.Manage(in));
    // What was there before is not on DEVICE.
    in.hidden = in.hidden.detach().clone().set_requires_grad(true);
    ours = Run(in, [&](const Inputs& of) {
      return HeadLoss(of.hidden, of.labels, of.blocks, {.cut = cut}, 1.0 / kTokens) / kTokens;
    });
    GEMINI_RETURN_IF_ERROR(head.session->status());
    device_peak_bytes = head.session->stats().device_peak_bytes;
    for (int64_t i = 0; i < cut.num_blocks(); ++i) {
      gradients.emplace_back(static_cast<size_t>(in.blocks[i].numel()),
                             std::numeric_limits<float>::quiet_NaN());
      GEMINI_RETURN_IF_ERROR(head.ReadGradient(i, gradients.back()));
    }
  }
  // Compared without the session, for that takes memory, too.
  GradientErrors errors(ours, whole, gradient);
  for (int64_t i = 0; i < cut.num_blocks(); ++i) {
    const Tensor expected = gradient.slice(0, cut.first_row(i), cut.first_row(i + 1));
    errors.Add(torch::from_blob(gradients[i].data(), expected.sizes(), torch::kFloat32), expected);
  }
  Report(state, ours, whole, errors.largest());
  state.counters["device_peak_bytes"] = static_cast<double>(device_peak_bytes);
  return absl::OkStatus();
}

void head_time_managed(benchmark::State& state) {
  for (auto _ : state) {
    const absl::Status status = RunManagedHead(state);
    if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  }
}
BENCHMARK(head_time_managed)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);

void head_time_whole(benchmark::State& state) { RunHead(state, 1); }
void head_time_blocks(benchmark::State& state) { RunHead(state, 16); }
BENCHMARK(head_time_whole)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(head_time_blocks)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace gemini::trainer
