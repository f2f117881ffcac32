// SPDX-License-Identifier: Apache-2.0
// The trace of a training step of a made-up model: a round too large to be counted by hand.
// Model:  equal blocks of a norm and four matrices, one after the other. The head is the table of
//         tokens. So that is used first and last in forward, and its gradient leaves last.
// Memory: forward keeps each layer's output for backward; with RoundShape::recompute, each block's.
// Times:  of each operator the larger of its arithmetic and its bytes, by the rate.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::policies {

// All are >= 1.
struct BlockModel {
  int32_t blocks = 12;
  int64_t width = 768;        // Elements of a token between blocks.
  int64_t inner = 3072;       // And between the last two matrices of a block.
  int64_t vocabulary = 8192;  // Rows of the table.
};

// A layer has one tensor, and maps `in` elements of a token to `out`.
struct BlockLayer {
  std::string name;
  int64_t tensor_elements, in, out;
};

// The head comes first, and then the blocks.
constexpr int32_t kLayersOfBlock = 5;
inline std::vector<BlockLayer> LayersOf(const BlockModel& model) {
  const int64_t width = model.width;
  std::vector<BlockLayer> layers = {{"tokens", width * model.vocabulary, width, model.vocabulary}};
  const auto add_matrix = [&](std::string name, int64_t in, int64_t out) {
    layers.push_back({std::move(name), in * out, in, out});
  };
  for (int32_t i = 0; i < model.blocks; ++i) {
    const std::string block = absl::StrCat("block.", i, ".");
    layers.push_back({block + "norm", width, width, width});
    add_matrix(block + "heads", width, 3 * width);
    add_matrix(block + "merge", width, width);
    add_matrix(block + "in", width, model.inner);
    add_matrix(block + "out", model.inner, width);
  }
  return layers;
}

// `round` is one of training.
inline trainer::NamedTrace BlockTrace(const BlockModel& model, const trainer::RoundShape& round,
                                      const trainer::ComputeRate& rate) {
  trainer::NamedTrace out;
  Trace& trace = out.trace;
  trace.phase = "train";
  const std::vector<BlockLayer> layers = LayersOf(model);
  const auto num_layers = static_cast<int32_t>(layers.size());
  const int64_t element_bytes = ElementBytes(round.element);
  const int64_t tokens = round.batch * round.sequence;
  const auto bytes_of = [&](int64_t elements) { return tokens * elements * element_bytes; };
  const auto ns_of = [&](int64_t flops, int64_t bytes) {
    const double seconds = std::max(static_cast<double>(flops) / rate.flops_per_second,
                                    static_cast<double>(bytes) / rate.memory_bytes_per_second);
    return rate.kernel_ns + std::llround(seconds * 1e9);
  };
  const auto size_of = [&](int32_t i) { return trace.tensors[i].size_bytes; };
  const auto forward_ns = [&](int32_t i) {
    return ns_of(2 * tokens * layers[i].tensor_elements,
                 bytes_of(layers[i].in + layers[i].out) + size_of(i));
  };
  // What an operator has beside the live bytes: while its tensors are pinned, and behind that.
  int64_t live_bytes = 0;
  const auto add = [&](std::string name, const std::vector<TensorUse>& uses, int64_t compute_ns,
                       int64_t pinned_bytes, int64_t gradient_bytes = 0) {
    const int64_t peak_bytes = live_bytes + pinned_bytes;
    trace.operators.push_back({static_cast<int32_t>(trace.uses.size()),
                               static_cast<int32_t>(uses.size()), compute_ns,
                               peak_bytes + gradient_bytes});
    trace.uses.insert(trace.uses.end(), uses.begin(), uses.end());
    out.operator_names.push_back(std::move(name));
    out.needs.push_back({peak_bytes, peak_bytes + gradient_bytes});
  };
  // Adds the forward operators of the block that begins with layer `first`. Its output stays live,
  // and with `keeps` every layer's does.
  const auto forward = [&](const char* pass, int32_t first, bool keeps) {
    const int32_t last = first + kLayersOfBlock - 1;
    for (int32_t i = first; i <= last; ++i) {
      const int64_t in_bytes = keeps ? 0 : bytes_of(layers[i].in);  // Kept ones are live.
      add(pass + layers[i].name, {{i}}, forward_ns(i), in_bytes + bytes_of(layers[i].out));
      if (keeps || i == last) live_bytes += bytes_of(layers[i].out);
    }
  };
  // A tensor's first gradient leaves; an operator of its own adds a later one to it.
  const auto finish_gradient = [&](int32_t i, bool is_first) {
    if (is_first) return trace.gradient_outs.push_back({trace.num_positions() - 1, i});
    add("accumulation of " + layers[i].name, {{i, ChunkKind::kGrad, /*written=*/true}},
        ns_of(0, 3 * size_of(i)), size_of(i));
  };

  for (int32_t i = 0; i < num_layers; ++i) {
    out.tensor_names.push_back(layers[i].name);
    trace.tensors.push_back({.size_bytes = layers[i].tensor_elements * element_bytes,
                             .format = round.format(),
                             .states_on_nvme = round.states_on_nvme});
    trace.updated.push_back(i);
  }
  const int64_t stream_bytes = bytes_of(model.width), logit_bytes = bytes_of(model.vocabulary);
  for (int64_t batch = 0; batch < round.micro_batches; ++batch) {
    add("forward of tokens", {{0}}, ns_of(0, 2 * stream_bytes), stream_bytes);
    live_bytes += stream_bytes;
    for (int32_t first = 1; first < num_layers; first += kLayersOfBlock) {
      forward("forward of ", first, /*keeps=*/!round.recompute);
    }
    // The logits are there twice: with their logarithms, and then with their gradients.
    add("forward of head", {{0}}, forward_ns(0), 2 * logit_bytes);
    add("backward of head", {{0}}, 2 * forward_ns(0), 2 * logit_bytes + stream_bytes, size_of(0));
    live_bytes += size_of(0);  // The gradient waits for that of the table's first use.
    for (int32_t first = num_layers - kLayersOfBlock; first > 0; first -= kLayersOfBlock) {
      if (round.recompute) {
        live_bytes -= stream_bytes;  // The block's output.
        forward("recomputation of ", first, /*keeps=*/true);
      }
      for (int32_t i = first + kLayersOfBlock - 1; i >= first; --i) {
        live_bytes -= bytes_of(layers[i].out);  // The layer above has read it.
        add("backward of " + layers[i].name, {{i}}, 2 * forward_ns(i),
            bytes_of(layers[i].in + layers[i].out), size_of(i));
        finish_gradient(i, /*is_first=*/batch == 0);
      }
    }
    live_bytes -= size_of(0) + stream_bytes;
    finish_gradient(0, /*is_first=*/batch == 0);
  }
  add("update", {}, 0, 0);
  return out;
}

}  // namespace gemini::policies
