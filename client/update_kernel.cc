// SPDX-License-Identifier: Apache-2.0
#include "client/update_kernel.h"

#include <array>
#include <cmath>
#include <cstdint>

#include "client/default_rounding.h"
#include "client/update_loops.h"
#include "client/update_scalars.h"
#include "gemini/check.h"

namespace gemini::client {
namespace {

constexpr uintptr_t kStoreAlignment = 64;

struct Output {
  const void* address;
  int64_t element_bytes;
};

// The first element that lies at a multiple of 64 bytes in all outputs; -1: there is none.
int64_t CommonHead(const std::array<Output, 4>& outputs) {
  for (int64_t head = 0; head < kUpdateStepElements; ++head) {
    bool is_common = true;
    for (const Output& output : outputs) {
      if (output.address == nullptr) continue;
      const auto at = reinterpret_cast<uintptr_t>(output.address) +
                      static_cast<uintptr_t>(head * output.element_bytes);
      is_common = is_common && at % kStoreAlignment == 0;
    }
    if (is_common) return head;
  }
  return -1;
}

// A group of outputs goes past the caches when none of it is its input, which lies in the caches already.
StoreKind StoresOf(const UpdateStreams& s) {
  StoreKind stores;
  // The fp16 parameter is not read.
  const bool is_param_read = s.param_type != ElementType::kFp16;
  stores.param_past_caches = !(is_param_read && s.new_param == s.param) &&
                             (s.new_master == nullptr || s.new_master != s.master);
  stores.moments_past_caches = s.new_exp_avg != s.exp_avg &&
                               (s.new_exp_avg_sq == nullptr || s.new_exp_avg_sq != s.exp_avg_sq);
  const int64_t param_bytes = ElementBytes(s.param_type);
  const int64_t master_bytes = s.param_type == ElementType::kBf16 ? 2 : 4;
  const auto when = [](bool condition, const void* stream) { return condition ? stream : nullptr; };
  const int64_t head = CommonHead({{{when(stores.param_past_caches, s.new_param), param_bytes},
                                    {when(stores.param_past_caches, s.new_master), master_bytes},
                                    {when(stores.moments_past_caches, s.new_exp_avg), 4},
                                    {when(stores.moments_past_caches, s.new_exp_avg_sq), 4}}});
  if (head < 0) return {};
  stores.head_elements = head;
  return stores;
}

}  // namespace

UpdateScalars ScalarsOf(const UpdateSettings& settings) {
  const double step = static_cast<double>(settings.step);
  const double correction1 = 1 - std::pow(settings.beta1, step);
  const double correction2 = 1 - std::pow(settings.beta2, step);
  const auto f = [](double value) { return static_cast<float>(value); };
  return {
      .gradient_scale = f(settings.gradient_scale),
      .beta1 = f(settings.beta1),
      .one_minus_beta1 = f(1 - settings.beta1),
      .beta2 = f(settings.beta2),
      .one_minus_beta2 = f(1 - settings.beta2),
      .sqrt_correction2 = f(std::sqrt(correction2)),
      .epsilon = f(settings.epsilon),
      .minus_step_size = f(-settings.learning_rate / correction1),
      .decay = f(1 - settings.learning_rate * settings.weight_decay),
      .weight_decay = f(settings.weight_decay),
      .momentum = f(settings.momentum),
      .minus_learning_rate = f(-settings.learning_rate),
      .inverse_correction1 = f(1 / correction1),
      .layer_rate = f(settings.learning_rate * settings.trust_ratio),
      .is_first = settings.step == 1,
  };
}

void UpdateElements(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count) {
  UpdateElementsThrough(WidestVectorPath(), settings, streams, count);
}

void UpdateElementsThrough(VectorPath path, const UpdateSettings& settings,
                           const UpdateStreams& streams, int64_t count) {
  const bool has_master = streams.param_type != ElementType::kFp32;
  GEMINI_CHECK(has_master == (streams.master != nullptr) || count == 0);
  GEMINI_CHECK(has_master == (streams.new_master != nullptr) || count == 0);
  UpdateStreams used = streams;
  if (!HasSecondMoment(settings.kind)) {
    used.exp_avg_sq = nullptr;
    used.new_exp_avg_sq = nullptr;
  }
  const DefaultRounding rounding;
  LoopsOf(path).update(settings.kind, ScalarsOf(settings), used, StoresOf(used), count);
}

}  // namespace gemini::client
