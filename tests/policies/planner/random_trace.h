// SPDX-License-Identifier: Apache-2.0
// Rounds of many shapes, drawn at random: what planners and simulators are tested on.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "gemini/layout.h"
#include "gemini/plan/trace.h"

namespace gemini::policies {

inline constexpr int64_t kTestChunkBytes = kPageBytes;

struct RandomTraceOptions {
  int num_tensors = 12;
  int max_chunks = 1;       // Of one tensor; 1: no tensor spans.
  bool one_a_chunk = true;  // Tensors fill their chunks; otherwise small ones share.
  double frozen = 0.1;      // Fraction of the tensors, each.
  double buffers = 0.1;
  bool with_update = true;
  int micro_batches = 1;  // > 1: later ones read and write gradients on DEVICE.
  int max_non_model_chunks = 4;
  enum class Shape { kLayers, kBranches, kRepeated, kExperts, kIrregular } shape = Shape::kLayers;
  int max_operators = 1 << 20;
  StateFormat format = {};
};

class RandomTrace {
 public:
  RandomTrace(const RandomTraceOptions& options, uint64_t seed)
      : options_(options), random_(seed) {}

  Trace Make() {
    trace_ = {};
    trace_.phase = options_.with_update ? "train" : "eval";
    for (int i = 0; i < options_.num_tensors; ++i) trace_.tensors.push_back(Tensor());
    const std::vector<int32_t> forward = Forward();
    for (int batch = 0; batch < options_.micro_batches; ++batch) {
      for (size_t i = 0; i < forward.size(); ++i) {
        std::vector<TensorUse> uses = {Use(forward[i])};
        // A bias, or a tied weight.
        if (Below(4) == 0) uses.push_back(Use(forward[Below(forward.size())]));
        Operator(uses);
      }
      if (options_.with_update) Backward(forward, batch);
    }
    while (static_cast<int>(trace_.operators.size()) > options_.max_operators) {
      trace_.operators.pop_back();
    }
    trace_.uses.resize(trace_.operators.back().first_use + trace_.operators.back().num_uses);
    std::erase_if(trace_.gradient_outs,
                  [&](const GradientOut& out) { return out.position >= trace_.num_positions(); });
    if (options_.with_update) {
      Operator({});
      std::vector<bool> seen(trace_.tensors.size());
      for (const TensorUse& use : trace_.uses) {
        if (trace_.tensors[use.tensor].group != TensorGroup::kTrainable || seen[use.tensor])
          continue;
        seen[use.tensor] = true;
        trace_.updated.push_back(use.tensor);
      }
    }
    return trace_;
  }

 private:
  using Shape = RandomTraceOptions::Shape;

  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_() % bound); }
  bool Chance(double probability) {
    return static_cast<double>(random_() % 1'000'000) < probability * 1e6;
  }

  TracedTensor Tensor() {
    TracedTensor tensor;
    tensor.format = options_.format;
    const int64_t chunks = 1 + (Below(3) == 0 ? Below(options_.max_chunks) : 0);
    tensor.size_bytes = chunks * kTestChunkBytes;
    if (!options_.one_a_chunk) tensor.size_bytes -= Below(kTestChunkBytes);
    if (Chance(options_.frozen)) {
      tensor.group = TensorGroup::kFrozen;
    } else if (Chance(options_.buffers)) {
      tensor.group = TensorGroup::kBuffer;
    }
    return tensor;
  }

  std::vector<int32_t> Forward() {
    const int32_t n = options_.num_tensors;
    std::vector<int32_t> order;
    switch (options_.shape) {
      case Shape::kLayers:
        for (int32_t i = 0; i < n; ++i) order.push_back(i);
        order.push_back(0);  // A tied head.
        break;
      case Shape::kBranches:  // Two ways through the layers, in turns.
        for (int32_t i = 0; i < n; i += 2) order.push_back(i);
        for (int32_t i = 1; i < n; i += 2) order.push_back(i);
        break;
      case Shape::kRepeated:
        for (int repeat = 0; repeat < 3; ++repeat) {
          for (int32_t i = 0; i < n; ++i) order.push_back(i % std::max(1, n / 2 + repeat));
        }
        break;
      case Shape::kExperts:  // Shared layers, and some of many experts behind each.
        for (int32_t i = 0; i < n; ++i) {
          order.push_back(i % std::max(1, n / 3));
          order.push_back(static_cast<int32_t>(n / 3 + Below(n - n / 3)));
        }
        break;
      case Shape::kIrregular:
        for (int32_t i = 0; i < 2 * n; ++i) order.push_back(static_cast<int32_t>(Below(n)));
        break;
    }
    return order;
  }

  void Backward(const std::vector<int32_t>& forward, int batch) {
    std::vector<int> left(trace_.tensors.size(), 0);
    for (const int32_t tensor : forward) ++left[tensor];
    for (auto at = forward.rbegin(); at != forward.rend(); ++at) {
      std::vector<TensorUse> uses = {Use(*at)};
      uses[0].written = false;
      Operator(uses);
      if (--left[*at] > 0 || trace_.tensors[*at].group != TensorGroup::kTrainable) continue;
      if (batch == 0) {
        trace_.gradient_outs.push_back({trace_.num_positions() - 1, *at});
      } else {
        Operator({{.tensor = *at, .kind = ChunkKind::kGrad, .written = true}});
      }
    }
  }

  TensorUse Use(int32_t tensor) {
    return {.tensor = tensor,
            .written = trace_.tensors[tensor].group == TensorGroup::kBuffer && Below(2) == 0};
  }

  void Operator(const std::vector<TensorUse>& uses) {
    non_model_chunks_ += Below(3) - 1;  // It grows and shrinks.
    if (non_model_chunks_ < 0) non_model_chunks_ = 0;
    if (non_model_chunks_ > options_.max_non_model_chunks) non_model_chunks_ = 0;
    trace_.operators.push_back(
        {.first_use = static_cast<int32_t>(trace_.uses.size()),
         .num_uses = static_cast<int32_t>(uses.size()),
         .compute_ns = 1000 + Below(20'000),
         .non_model_peak_bytes = non_model_chunks_ * kTestChunkBytes + Below(kTestChunkBytes)});
    trace_.uses.insert(trace_.uses.end(), uses.begin(), uses.end());
  }

  const RandomTraceOptions options_;
  std::mt19937_64 random_;
  Trace trace_;
  int64_t non_model_chunks_ = 1;
};

// One of all shapes and sizes, by seed. `spans`: some tensors are larger than a chunk.
inline RandomTraceOptions DrawOptions(uint64_t seed, bool spans) {
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15);
  RandomTraceOptions options;
  options.num_tensors = static_cast<int>(3 + random() % 30);
  options.max_chunks = spans ? 4 : 1;
  options.one_a_chunk = random() % 2 == 0;
  options.frozen = random() % 3 == 0 ? 0.7 : 0.05;
  options.with_update = random() % 4 != 0;
  options.micro_batches = options.with_update ? static_cast<int>(1 + random() % 3) : 1;
  options.max_non_model_chunks = static_cast<int>(1 + random() % 6);
  options.shape = static_cast<RandomTraceOptions::Shape>(random() % 5);
  options.format.element = kAllElementTypes[seed / 2 % kAllElementTypes.size()];
  options.format.optimizer = seed % 7 < 2 ? OptimizerKind::kSgd : OptimizerKind::kAdamW;
  return options;
}

}  // namespace gemini::policies
