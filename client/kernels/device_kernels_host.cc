// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/device_kernels_host.h"

#include <cstddef>
#include <type_traits>

#include "client/kernels/grad_norm.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

template <typename T>
T* After(T* stream, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  if (stream == nullptr) return nullptr;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(stream) + bytes);
}

// The same streams from element `first` on.
UpdateStreams StreamsFrom(const UpdateStreams& s, int64_t first) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  const int64_t param = first * ElementBytes(s.param_type);
  const int64_t master = first * MasterBytes(s.param_type);
  const int64_t moment = first * kFloatBytes;
  return {.param_type = s.param_type,
          .grad_type = s.grad_type,
          .param = After(s.param, param),
          .master = After(s.master, master),
          .grad = After(s.grad, first * ElementBytes(s.grad_type)),
          .exp_avg = After(s.exp_avg, moment),
          .exp_avg_sq = After(s.exp_avg_sq, moment),
          .new_param = After(s.new_param, param),
          .new_master = After(s.new_master, master),
          .new_exp_avg = After(s.new_exp_avg, moment),
          .new_exp_avg_sq = After(s.new_exp_avg_sq, moment)};
}

}  // namespace

static_assert(kUpdatePartElements % kNormBlockElements == 0);  // So that blocks stay whole.

void DeviceKernelsHost::Update(const UpdateSettings& settings, const UpdateStreams& streams,
                               int64_t count) {
  team_.Run(count, kUpdatePartElements, [&](int64_t begin, int64_t end) {
    UpdateElements(settings, StreamsFrom(streams, begin), end - begin);
  });
}

absl::Status DeviceKernelsHost::BeginBlockSquares(ElementType type, const GradientRun& run,
                                                  double* sums) {
  team_.Run(run.count, kUpdatePartElements, [&](int64_t begin, int64_t end) {
    BlockSquares(type, run.at + begin * ElementBytes(type), end - begin,
                 sums + NumNormBlocks(begin));
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> DeviceKernelsHost::BlockSquaresOf(
    ElementType type, absl::Span<const GradientRun> runs) {
  std::vector<double> squares;
  for (const GradientRun& run : runs) {
    const size_t first = squares.size();
    squares.resize(first + static_cast<size_t>(NumNormBlocks(run.count)));
    GEMINI_RETURN_IF_ERROR(BeginBlockSquares(type, run, squares.data() + first));
  }
  return squares;
}

absl::StatusOr<TrustSquares> DeviceKernelsHost::TrustSquaresOf(absl::Span<const TrustRun> runs) {
  TrustSquares squares;
  AppendRunSquares(runs, team_, squares);
  return squares;
}

}  // namespace gemini::client
