// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/update_loops.h"

#include <array>
#include <cstdint>

#include "gemini/system/check.h"

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

}  // namespace

StoreKind StoresOf(const UpdateStreams& s) {
  StoreKind stores;
  // The fp16 parameter is not read.
  const bool is_param_read = s.param_type != ElementType::kFp16;
  stores.param_past_caches = !(is_param_read && s.new_param == s.param) &&
                             (s.new_master == nullptr || s.new_master != s.master);
  stores.moments_past_caches = s.new_exp_avg != s.exp_avg &&
                               (s.new_exp_avg_sq == nullptr || s.new_exp_avg_sq != s.exp_avg_sq);
  const int64_t param_bytes = ElementBytes(s.param_type);
  const int64_t master_bytes = MasterBytes(s.param_type);
  const auto when = [](bool condition, const void* stream) { return condition ? stream : nullptr; };
  const int64_t head = CommonHead({{{when(stores.param_past_caches, s.new_param), param_bytes},
                                    {when(stores.param_past_caches, s.new_master), master_bytes},
                                    {when(stores.moments_past_caches, s.new_exp_avg), 4},
                                    {when(stores.moments_past_caches, s.new_exp_avg_sq), 4}}});
  if (head < 0) return {};
  stores.head_elements = head;
  return stores;
}

const UpdateLoops& LoopsOf(VectorPath path) {
  GEMINI_CHECK(VectorPathAvailable(path));
#if defined(__x86_64__)
  if (path == VectorPath::kAvx512) return kUpdateLoopsAvx512;
  if (path == VectorPath::kAvx2) return kUpdateLoopsAvx2;
#endif
  return kUpdateLoopsPortable;
}

}  // namespace gemini::client
