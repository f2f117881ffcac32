// SPDX-License-Identifier: Apache-2.0
// What the hook costs an operator: a forward pass with its graph, of GPT-2's shape with a
// projection for each of query, key and value, so small that operators are cheap, all chunks
// resident. Three states take turns on one thread: no callback, an empty callback, and the hook on
// managed parameters; the medians of their times are compared.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/record_function.h"
#include "client/torch/hook/operator_hook.h"
#include "client/torch/model/training_session.h"
#include "gemini/byte_size.h"
#include "server/embedded_server.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace gemini::client::hooks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 32;
constexpr int64_t kLayers = 4;
constexpr int64_t kVocabulary = 64;
constexpr int64_t kSequence = 8;
constexpr double kLeastFractionWithChunks = 0.15;

struct Transformer : torch::nn::Module {
  Transformer() {
    const auto add = [this](const std::string& name, at::IntArrayRef sizes) {
      return register_parameter(name, at::randn(sizes) * 0.05);
    };
    wte = add("wte", {kVocabulary, kWidth});
    wpe = add("wpe", {kSequence, kWidth});
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = "h" + std::to_string(i);
      layers.push_back(
          {add(layer + "ln_1_w", {kWidth}), add(layer + "ln_1_b", {kWidth}),
           add(layer + "q_w", {kWidth, kWidth}), add(layer + "q_b", {kWidth}),
           add(layer + "k_w", {kWidth, kWidth}), add(layer + "k_b", {kWidth}),
           add(layer + "v_w", {kWidth, kWidth}), add(layer + "v_b", {kWidth}),
           add(layer + "proj_w", {kWidth, kWidth}), add(layer + "proj_b", {kWidth}),
           add(layer + "ln_2_w", {kWidth}), add(layer + "ln_2_b", {kWidth}),
           add(layer + "fc_w", {kWidth, 4 * kWidth}), add(layer + "fc_b", {4 * kWidth}),
           add(layer + "out_w", {4 * kWidth, kWidth}), add(layer + "out_b", {kWidth})});
    }
  }
  at::Tensor Forward(const at::Tensor& tokens) const {
    at::Tensor x = at::embedding(wte, tokens) + wpe;
    for (const std::vector<at::Tensor>& p : layers) {
      const at::Tensor normed = at::layer_norm(x, {kWidth}, p[0], p[1]).view({-1, kWidth});
      std::vector<at::Tensor> qkv;
      for (size_t i = 2; i < 8; i += 2) {
        qkv.push_back(
            at::addmm(p[i + 1], normed, p[i]).view({1, kSequence, 4, kWidth / 4}).transpose(1, 2));
      }
      const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, true)
                                   .transpose(1, 2)
                                   .reshape({-1, kWidth});
      x = x + at::addmm(p[9], mixed, p[8]).view(x.sizes());
      const at::Tensor inner = at::layer_norm(x, {kWidth}, p[10], p[11]).view({-1, kWidth});
      x = x +
          at::addmm(p[15], at::gelu(at::addmm(p[13], inner, p[12]), "tanh"), p[14]).view(x.sizes());
    }
    return x.matmul(wte.t());
  }
  at::Tensor wte, wpe;
  std::vector<std::vector<at::Tensor>> layers;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Workload {
  std::unique_ptr<server::EmbeddedServer> server;
  std::unique_ptr<TrainingSession> session;
  Transformer plain, managed;
  at::Tensor tokens = at::arange(kSequence, at::kLong).unsqueeze(0);

  absl::Status Start() {
    TrainingOptions options;
    options.device_memory = 64 * kMiB;
    options.host_memory = 128 * kMiB;
    options.label = "gemini-bench";
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = options.device_memory;
    server_options.capacity_bytes[Tier::kHost] = options.host_memory;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < plain.parameters().size(); ++i) {
      managed.parameters()[i].copy_(plain.parameters()[i]);
    }
    auto started = server::EmbeddedServer::Start(server_options);
    if (!started.ok()) return started.status();
    server = *std::move(started);
    auto socket = server->Connect();
    if (!socket.ok()) return socket.status();
    auto opened = TrainingSession::Open(*std::move(socket), options);
    if (!opened.ok()) return opened.status();
    session = *std::move(opened);
    return session->Manage(managed, {}, {}).status();
  }
};

std::unique_ptr<at::ObserverContext> DoNothing(const at::RecordFunction&) { return nullptr; }
void DoNothingAtEnd(const at::RecordFunction&, at::ObserverContext*) {}

struct Nanoseconds {
  std::vector<double> bare, empty, hooked;
};

// Times `plain` without callbacks and with an empty one, and `managed` with the hook, in turn.
template <typename Plain, typename Managed>
Nanoseconds TakeTurns(benchmark::State& state, Plain&& plain, Managed&& managed) {
  const std::vector<at::CallbackHandle> hook = OperatorHook::Active()->callbacks();
  const auto timed = [](auto&& work) {
    constexpr int kRepeats = 5;
    const auto start = Clock::now();
    for (int i = 0; i < kRepeats; ++i) work();
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kRepeats;
  };
  Nanoseconds times;
  for (auto _ : state) {
    for (at::CallbackHandle callback : hook) at::disableCallback(callback);
    plain();
    times.bare.push_back(timed(plain));
    const at::CallbackHandle empty =
        at::addGlobalCallback(at::RecordFunctionCallback(&DoNothing, &DoNothingAtEnd)
                                  .scopes({at::RecordScope::FUNCTION}));
    plain();
    times.empty.push_back(timed(plain));
    at::removeCallback(empty);
    for (at::CallbackHandle callback : hook) at::reenableCallback(callback);
    managed();
    times.hooked.push_back(timed(managed));
    state.SetIterationTime((times.bare.back() + times.empty.back() + times.hooked.back()) * 1e-9);
  }
  return times;
}

void Report(benchmark::State& state, double value, double baseline, bool checked) {
  state.counters["value"] = value;
  state.counters["baseline"] = baseline;
  state.counters["checked"] = checked ? 1 : 0;
}

// `above_empty`: report what is beyond the empty callback instead of all. `planned`: each forward
// pass is a round that follows its plan, with everything on DEVICE in time.
void MeasureForward(benchmark::State& state, bool above_empty, bool planned) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  Workload workload;
  if (absl::Status status = workload.Start(); !status.ok()) {
    return state.SkipWithError(status.ToString().c_str());
  }
  const at::Tensor expected = workload.plain.Forward(workload.tokens);
  const auto managed_forward = [&] {
    if (!planned) return workload.managed.Forward(workload.tokens);
    workload.session->phases().BeginPhase("bench");
    at::Tensor result = workload.managed.Forward(workload.tokens);
    workload.session->phases().EndPhase();
    return result;
  };
  bool checked = managed_forward().equal(expected);
  managed_forward();  // Takes up the plan.
  const TrainingStats before = workload.session->stats();
  managed_forward();
  const TrainingStats after = workload.session->stats();
  const int64_t operators = after.operators - before.operators;
  const int64_t with_chunks = after.operators_with_chunks - before.operators_with_chunks;
  checked &=
      static_cast<double>(with_chunks) >= kLeastFractionWithChunks * static_cast<double>(operators);
  const Nanoseconds times = TakeTurns(
      state, [&] { benchmark::DoNotOptimize(workload.plain.Forward(workload.tokens)); },
      [&] { benchmark::DoNotOptimize(managed_forward()); });
  const PhaseStats rounds = workload.session->stats().phases;
  checked &= !planned || rounds.planned_rounds - after.phases.planned_rounds ==
                             rounds.rounds - after.phases.rounds;
  checked &= managed_forward().equal(expected) &&
             workload.session->stats().fetch_bytes == after.fetch_bytes &&
             workload.session->status().ok();
  const double bare = Median(times.bare);
  const double empty_ns = (Median(times.empty) - bare) / static_cast<double>(operators);
  const double hook_ns = (Median(times.hooked) - bare) / static_cast<double>(operators);
  state.counters["operators"] = static_cast<double>(operators);
  state.counters["operators_with_chunks"] = static_cast<double>(with_chunks);
  Report(state, above_empty ? hook_ns - empty_ns : hook_ns, empty_ns, checked);
}

void hook_ns_per_operator(benchmark::State& state) { MeasureForward(state, false, false); }
BENCHMARK(hook_ns_per_operator)->UseManualTime()->MinTime(0.5);

void hook_ns_above_empty_callback(benchmark::State& state) { MeasureForward(state, true, false); }
BENCHMARK(hook_ns_above_empty_callback)->UseManualTime()->MinTime(0.5);

void hook_plan_ns_per_operator(benchmark::State& state) { MeasureForward(state, false, true); }
BENCHMARK(hook_plan_ns_per_operator)->UseManualTime()->MinTime(0.5);

// One operator with 100 managed tensors.
void hook_ns_hundred_tensors(benchmark::State& state) {
  at::set_num_threads(1);
  Workload workload;
  torch::nn::Module many;
  std::vector<at::Tensor> plain, managed;
  for (int i = 0; i < 100; ++i) {
    plain.push_back(at::full({8}, i, at::kFloat));
    managed.push_back(
        many.register_parameter("p" + std::to_string(i), plain.back().clone(), false));
  }
  if (absl::Status status = workload.Start(); !status.ok()) {
    return state.SkipWithError(status.ToString().c_str());
  }
  ManageOptions options;
  options.space_name = "many";
  if (auto model = workload.session->Manage(many, {}, options); !model.ok()) {
    return state.SkipWithError(model.status().ToString().c_str());
  }
  const bool checked = at::cat(managed).equal(at::cat(plain));
  const Nanoseconds times = TakeTurns(
      state, [&] { benchmark::DoNotOptimize(at::cat(plain)); },
      [&] { benchmark::DoNotOptimize(at::cat(managed)); });
  const double bare = Median(times.bare);
  Report(state, Median(times.hooked) - bare, Median(times.empty) - bare,
         checked && workload.session->status().ok());
}
BENCHMARK(hook_ns_hundred_tensors)->UseManualTime()->MinTime(0.3);

}  // namespace
}  // namespace gemini::client::hooks
