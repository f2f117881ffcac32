// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/trace_writer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/check.h"

namespace gemini::policies {
namespace {

// A gradient's copy to HOST runs beside the operator after its own.
constexpr int32_t kIntervalsOfGradient = 2;

constexpr int64_t kCpuGrainBytes = 64;  // c10::gAlignment, which every block is charged by.

}  // namespace

int64_t TraceWriter::Allocated(int64_t tensor_bytes) const {
  return on_cpu_ ? RoundUp(tensor_bytes, kCpuGrainBytes) : tensor_bytes;
}

void TraceWriter::Operator(const char* pass, const LayerTensors& layer) {
  std::vector<TensorUse> uses;
  for (const int32_t tensor : {layer.weight, layer.bias}) {
    if (tensor >= 0) uses.push_back({tensor, ChunkKind::kParam, /*written=*/false});
  }
  if (uses.empty() && !out_.trace.operators.empty()) return;
  Begin(absl::StrCat(pass, layer.name), uses);
}

void TraceWriter::Update() {
  Begin("update", {});
  out_.trace.updated.resize(out_.trace.tensors.size());
  for (size_t i = 0; i < out_.trace.updated.size(); ++i) {
    out_.trace.updated[i] = static_cast<int32_t>(i);
  }
}

void TraceWriter::Run(double flops, double bytes) {
  const double seconds =
      std::max(flops / rate_.flops_per_second, bytes / rate_.memory_bytes_per_second);
  out_.trace.operators.back().compute_ns += rate_.kernel_ns + std::llround(seconds * 1e9);
  is_pinned_ = false;
}

void TraceWriter::Take(int64_t bytes) {
  live_bytes_ += bytes;
  int64_t& peak = out_.trace.operators.back().non_model_peak_bytes;
  peak = std::max(peak, live_bytes_);
  if (is_pinned_) out_.pinned_peak_bytes.back() = peak;
}

void TraceWriter::Give(int64_t bytes) {
  live_bytes_ -= bytes;
  GEMINI_CHECK(live_bytes_ >= 0);
}

void TraceWriter::FinishGradient(int32_t tensor, bool is_first) {
  if (tensor < 0) return;
  const int64_t bytes = GradientBytes(tensor);
  if (is_first) {
    const int32_t position = out_.trace.num_positions() - 1;
    out_.trace.gradient_outs.push_back({position, tensor});
    if (on_cpu_) {
      Give(bytes);
    } else {
      leaving_.push_back({position, bytes});
    }
    return;
  }
  const TensorUse use = {tensor, ChunkKind::kGrad, /*written=*/true};
  Begin(absl::StrCat("accumulation of ", out_.tensor_names[tensor]), {&use, 1});
  Run(0, 3.0 * static_cast<double>(bytes));
  Give(bytes);
}

bool TraceWriter::is_balanced() const {
  int64_t leaving_bytes = 0;
  for (const auto& [position, bytes] : leaving_) leaving_bytes += bytes;
  return live_bytes_ == leaving_bytes;
}

void TraceWriter::Begin(std::string name, absl::Span<const TensorUse> uses) {
  const int32_t position = out_.trace.num_positions();
  std::erase_if(leaving_, [&](const auto& gradient) {
    if (gradient.first + kIntervalsOfGradient > position) return false;
    live_bytes_ -= gradient.second;
    return true;
  });
  out_.trace.operators.push_back({static_cast<int32_t>(out_.trace.uses.size()),
                                  static_cast<int32_t>(uses.size()), /*compute_ns=*/0,
                                  live_bytes_});
  out_.trace.uses.insert(out_.trace.uses.end(), uses.begin(), uses.end());
  out_.operator_names.push_back(std::move(name));
  out_.pinned_peak_bytes.push_back(live_bytes_);
  is_pinned_ = true;
}

}  // namespace gemini::policies
