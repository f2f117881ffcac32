// SPDX-License-Identifier: Apache-2.0
// The study behind docs/adr/0008: what a huge embedding costs with four layouts, by the planner and
// the simulator, for GPT-2-like models of 12 layers of width 768 in fp32 and vocabularies of 8k to
// 256k.
//   span   as it is: consecutive chunks that nothing else shares, fetched and evicted as one range
//   rows   split by rows into tensors of a chunk, pinned together; no slots need be adjacent
//   forced a chunk as large as the embedding
//   own    a space of its own, whose one large chunk has its place on DEVICE for good
// Budgets are fractions of the parameters' bytes. Non-model data is left out: it is there at the
// head alone, and would give the other operators room that hides what is compared.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/chunk_size_search.h"
#include "policies/planner/planner.h"
#include "policies/trace/moved_bytes.h"
#include "policies/trace/range_trace.h"
#include "trainer/forecast/transformer_trace.h"

namespace gemini::tools {
namespace {

constexpr int64_t kHidden = 768;
constexpr int64_t kElementBytes = 4;
// Copying and computing take about as long as each other, so that bytes show in the time.
constexpr double kFlopsPerSecond = 20e12;
constexpr CostModel kCosts = {.host_to_device = 10e9,
                              .device_to_host = 10e9,
                              .update_elements_per_second = 5e9,
                              .copy_latency_ns = 10'000};
constexpr int64_t kUnlimitedBytes = int64_t{1} << 50;

struct Outcome {
  int64_t chunk_bytes = 0;
  int64_t fetch_bytes = 0;
  int64_t round_ns = 0;
};

Trace Gpt2(int64_t vocabulary) {
  const policies::TransformerShape shape = {.num_layers = 12,
                                            .hidden = kHidden,
                                            .num_heads = 12,
                                            .inner = 4 * kHidden,
                                            .vocabulary = vocabulary,
                                            .num_positions = 1024,
                                            .embedding_size = kHidden};
  const policies::ComputeRate rate = {.flops_per_second = kFlopsPerSecond,
                                      .memory_bytes_per_second = 1e12};
  Trace trace = policies::MakeTransformerTrace(
                    shape, {.batch = 1, .sequence = 1024}, rate)
                    ->trace;
  for (TracedOperator& at : trace.operators) at.non_model_peak_bytes = 0;
  return trace;
}

// The trace with tensor 0 in pieces of at most `piece_bytes`, each used wherever it was.
Trace SplitByRows(const Trace& trace, int64_t piece_bytes) {
  const int64_t row_bytes = kHidden * kElementBytes;
  piece_bytes = std::max(row_bytes, piece_bytes / row_bytes * row_bytes);
  Trace split;
  split.phase = trace.phase;
  int64_t left = trace.tensors[0].size_bytes;
  while (left > 0) {
    split.tensors.push_back({std::min(left, piece_bytes), TensorGroup::kTrainable, 0});
    left -= split.tensors.back().size_bytes;
  }
  const int32_t pieces = static_cast<int32_t>(split.tensors.size());
  split.tensors.insert(split.tensors.end(), trace.tensors.begin() + 1, trace.tensors.end());
  const auto for_each_piece = [pieces](int32_t tensor, auto&& visit) {
    if (tensor > 0) return visit(tensor + pieces - 1);
    for (int32_t piece = 0; piece < pieces; ++piece) visit(piece);
  };
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    TracedOperator at = trace.operators[position];
    at.first_use = static_cast<int32_t>(split.uses.size());
    for (const TensorUse& use : trace.uses_of(position)) {
      for_each_piece(use.tensor, [&](int32_t tensor) {
        split.uses.push_back({tensor, use.kind, use.written});
      });
    }
    at.num_uses = static_cast<int32_t>(split.uses.size()) - at.first_use;
    split.operators.push_back(at);
  }
  for (const GradientOut& out : trace.gradient_outs) {
    for_each_piece(out.tensor, [&](int32_t tensor) {
      split.gradient_outs.push_back({out.position, tensor});
    });
  }
  for (const int32_t updated : trace.updated) {
    for_each_piece(updated, [&](int32_t tensor) { split.updated.push_back(tensor); });
  }
  return split;
}

// The trace without tensor 0, whose operators stay.
Trace WithoutEmbedding(const Trace& trace) {
  Trace rest = trace;
  rest.tensors.erase(rest.tensors.begin());
  rest.uses.clear();
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    TracedOperator& at = rest.operators[position];
    at.first_use = static_cast<int32_t>(rest.uses.size());
    for (const TensorUse& use : trace.uses_of(position)) {
      if (use.tensor > 0) rest.uses.push_back({use.tensor - 1, use.kind, use.written});
    }
    at.num_uses = static_cast<int32_t>(rest.uses.size()) - at.first_use;
  }
  std::erase_if(rest.gradient_outs, [](const GradientOut& out) { return out.tensor == 0; });
  for (GradientOut& out : rest.gradient_outs) --out.tensor;
  std::erase(rest.updated, 0);
  for (int32_t& updated : rest.updated) --updated;
  return rest;
}

absl::StatusOr<Outcome> Plan(const Trace& trace, int64_t chunk_bytes, int64_t device_bytes) {
  GEMINI_ASSIGN_OR_RETURN(const policies::RangeTrace packed,
                          policies::PackTrace(trace, chunk_bytes));
  GEMINI_ASSIGN_OR_RETURN(
      const gemini::Plan plan,
      policies::MakePlan({packed, {{device_bytes, kUnlimitedBytes, 0}}, kCosts, {}}));
  return Outcome{chunk_bytes, plan.prediction.fetch_bytes, plan.prediction.round_ns};
}

// Of all chunk sizes the fastest.
template <typename TraceOfChunk>
absl::StatusOr<Outcome> Best(TraceOfChunk&& trace_of_chunk, int64_t device_bytes) {
  absl::StatusOr<Outcome> best = absl::ResourceExhaustedError("no chunk size fits");
  for (int64_t chunk = 256 * kKiB; chunk <= 16 * kMiB; chunk *= 2) {
    const absl::StatusOr<Outcome> tried = Plan(trace_of_chunk(chunk), chunk, device_bytes);
    if (tried.ok() && (!best.ok() || tried->round_ns < best->round_ns)) best = tried;
  }
  return best;
}

std::string Cell(const absl::StatusOr<Outcome>& outcome) {
  if (!outcome.ok()) return absl::StrFormat("%24s", "does not fit");
  return absl::StrFormat(
      "%6.0f MiB %5.1f ms %-6s", static_cast<double>(outcome->fetch_bytes) / kMiB,
      static_cast<double>(outcome->round_ns) / 1e6, FormatByteSize(outcome->chunk_bytes));
}

int Main() {
  std::printf("bytes to DEVICE a step, predicted time, best chunk\n");
  std::printf("%7s %9s %6s  %-24s %-24s %-24s %-24s %s\n", "vocab", "of model", "budget", "span",
              "rows", "forced", "own", "fewest");
  for (const int64_t vocabulary : {8'192, 32'768, 50'257, 131'072, 262'144}) {
    const Trace trace = Gpt2(vocabulary);
    int64_t parameter_bytes = 0;
    for (const TracedTensor& tensor : trace.tensors) parameter_bytes += tensor.size_bytes;
    const int64_t embedding_bytes = trace.tensors[0].size_bytes;
    for (const double fraction : {0.15, 0.25, 0.50, 0.75}) {
      const auto device_bytes =
          static_cast<int64_t>(fraction * static_cast<double>(parameter_bytes));
      const auto span = Best([&](int64_t) -> const Trace& { return trace; }, device_bytes);
      const auto rows =
          Best([&](int64_t chunk) { return SplitByRows(trace, chunk); }, device_bytes);
      const auto forced =
          Plan(trace, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(embedding_bytes))),
               device_bytes);
      const Trace rest = WithoutEmbedding(trace);
      absl::StatusOr<Outcome> own = absl::ResourceExhaustedError("no room beside the embedding");
      if (device_bytes > embedding_bytes) {
        own = Best([&](int64_t) -> const Trace& { return rest; }, device_bytes - embedding_bytes);
        // The first operator of a round reads it and the last gradient is its own: nothing hides
        // that it leaves, is updated and comes back.
        if (own.ok()) {
          const auto bytes = static_cast<double>(embedding_bytes);
          own->fetch_bytes += embedding_bytes;
          own->round_ns += static_cast<int64_t>(
              1e9 * bytes * (1 / kCosts.device_to_host + 1 / kCosts.host_to_device) +
              1e9 * bytes / kElementBytes / kCosts.update_elements_per_second);
        }
      }
      absl::StatusOr<policies::MovedBytes> fewest = absl::ResourceExhaustedError("");
      if (const auto packed = policies::PackTrace(trace, 256 * kKiB); packed.ok()) {
        fewest = policies::FewestBytes(*packed, device_bytes);
      }
      std::printf(
          "%7ld %8.0f%% %5.0f%%  %-24s %-24s %-24s %-24s %s\n", vocabulary,
          100.0 * static_cast<double>(embedding_bytes) / static_cast<double>(parameter_bytes),
          100 * fraction, Cell(span).c_str(), Cell(rows).c_str(), Cell(forced).c_str(),
          Cell(own).c_str(),
          fewest.ok()
              ? absl::StrFormat("%.0f MiB", static_cast<double>(fewest->fetch_bytes) / kMiB).c_str()
              : "-");
    }
  }
  return 0;
}

}  // namespace
}  // namespace gemini::tools

int main() { return gemini::tools::Main(); }
