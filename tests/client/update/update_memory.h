// SPDX-License-Identifier: Apache-2.0
// Settings of an update for tests, and its streams in memory of theirs: at any alignment, and with
// guards that show what was written outside of them.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/kernels/update_kernel.h"
#include "client/kernels/update_streams.h"
#include "gemini/half_float.h"
#include "gemini/split_float.h"
#include "gtest/gtest.h"
#include "tests/client/kernels/update_elements.h"

namespace gemini::client {

// The kind, and the types of parameters and gradients.
using UpdateFormats = std::tuple<OptimizerKind, ElementType, ElementType>;

inline std::string NameOfFormats(const ::testing::TestParamInfo<UpdateFormats>& test) {
  const auto& [kind, param_type, grad_type] = test.param;
  return absl::StrCat(OptimizerKindName(kind), "_", ElementTypeName(param_type), "_",
                      ElementTypeName(grad_type));
}

// No scalar is one that a formula could lose unseen.
inline UpdateSettings SettingsOf(OptimizerKind kind, int64_t step = 7) {
  return {.kind = kind,
          .learning_rate = 3e-4,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .momentum = 0.8,
          .dampening = 0.15,
          .nesterov = true,
          .step = step,
          .gradient_scale = 0.37,
          .trust_ratio = 1.7};
}

// `count` elements behind a multiple of 256 bytes by `shift` elements.
class StreamMemory {
 public:
  StreamMemory(int64_t element_bytes, int64_t count, int64_t shift)
      : element_bytes_(element_bytes),
        count_(count),
        bytes_(static_cast<size_t>((count + shift) * element_bytes + 2 * kGuardBytes + 256),
               std::byte{0xa5}) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    begin_ =
        static_cast<int64_t>((256 - address % 256) % 256) + kGuardBytes + shift * element_bytes;
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory(StreamMemory&&) = default;
  StreamMemory& operator=(const StreamMemory&) = delete;

  std::byte* at(int64_t element) { return bytes_.data() + begin_ + element * element_bytes_; }
  template <typename T>
  void Set(int64_t element, T value) {
    std::memcpy(at(element), &value, sizeof(value));
  }
  template <typename T>
  T Get(int64_t element) {
    T value;
    std::memcpy(&value, at(element), sizeof(value));
    return value;
  }
  // The elements and the guards around them.
  std::string WithGuards() {
    return std::string(reinterpret_cast<const char*>(at(0)) - kGuardBytes,
                       static_cast<size_t>(count_ * element_bytes_ + 2 * kGuardBytes));
  }

 private:
  static constexpr int64_t kGuardBytes = 256;
  const int64_t element_bytes_;
  const int64_t count_;
  std::vector<std::byte> bytes_;
  int64_t begin_ = 0;
};

// All streams of an update, inputs and outputs apart.
class UpdateMemory {
 public:
  UpdateMemory(ElementType param_type, ElementType grad_type,
               const std::vector<ElementBits>& values, int64_t shift = 0)
      : param_type_(param_type),
        grad_type_(grad_type),
        count_(static_cast<int64_t>(values.size())),
        grad_(ElementBytes(grad_type), count_, shift),
        old_(MakeState(shift)),
        new_(MakeState(shift)) {
    for (int64_t i = 0; i < count_; ++i) {
      const ElementBits& value = values[i];
      const auto param = std::bit_cast<float>(value.param);
      switch (param_type) {
        case ElementType::kFp32:
          old_.param.Set(i, param);
          break;
        case ElementType::kBf16:
          old_.param.Set(i, SplitOf(param).high);
          old_.master.Set(i, SplitOf(param).low);
          break;
        case ElementType::kFp16:
          old_.param.Set(i, Fp16Of(param));
          old_.master.Set(i, param);
          break;
      }
      SetGrad(i, std::bit_cast<float>(value.grad));
      old_.exp_avg.Set(i, value.exp_avg);
      old_.exp_avg_sq.Set(i, value.exp_avg_sq);
    }
  }

  int64_t count() const { return count_; }
  void SetGrad(int64_t i, float grad) {
    if (grad_type_ == ElementType::kFp32) grad_.Set(i, grad);
    if (grad_type_ == ElementType::kBf16) grad_.Set(i, Bf16Of(grad));
    if (grad_type_ == ElementType::kFp16) grad_.Set(i, Fp16Of(grad));
  }

  // The streams from an element on.
  UpdateStreams OutOfPlace(int64_t from = 0) { return Streams(old_, new_, from); }
  UpdateStreams InPlace(int64_t from = 0) { return Streams(old_, old_, from); }

  // What an update wrote, and around it.
  std::string WrittenOutOfPlace(bool has_second_moment = true) {
    return new_.WithGuards(has_second_moment);
  }
  std::string WrittenInPlace(bool has_second_moment = true) {
    return old_.WithGuards(has_second_moment);
  }

  // The values as the arithmetic sees them.
  float OldParam(int64_t i) { return Param(old_, i); }
  float NewParam(int64_t i) { return Param(new_, i); }
  float Grad(int64_t i) {
    if (grad_type_ == ElementType::kBf16) return FloatOfBf16(grad_.Get<uint16_t>(i));
    if (grad_type_ == ElementType::kFp16) return FloatOfFp16(grad_.Get<uint16_t>(i));
    return grad_.Get<float>(i);
  }

 private:
  struct State {
    StreamMemory param, master, exp_avg, exp_avg_sq;
    std::string WithGuards(bool has_second_moment) {
      return absl::StrCat(param.WithGuards(), master.WithGuards(), exp_avg.WithGuards(),
                          has_second_moment ? exp_avg_sq.WithGuards() : "");
    }
  };

  State MakeState(int64_t shift) const {
    return {StreamMemory(ElementBytes(param_type_), count_, shift),
            StreamMemory(param_type_ == ElementType::kBf16 ? 2 : 4, count_, shift),
            StreamMemory(4, count_, shift), StreamMemory(4, count_, shift)};
  }
  float Param(State& state, int64_t i) const {
    if (param_type_ == ElementType::kFp16) return state.master.Get<float>(i);
    if (param_type_ == ElementType::kFp32) return state.param.Get<float>(i);
    return JoinOf({state.param.Get<uint16_t>(i), state.master.Get<int16_t>(i)});
  }
  UpdateStreams Streams(State& from_state, State& to_state, int64_t i) {
    const bool has_master = param_type_ != ElementType::kFp32;
    return {.param_type = param_type_,
            .grad_type = grad_type_,
            .param = from_state.param.at(i),
            .master = has_master ? from_state.master.at(i) : nullptr,
            .grad = grad_.at(i),
            .exp_avg = reinterpret_cast<const float*>(from_state.exp_avg.at(i)),
            .exp_avg_sq = reinterpret_cast<const float*>(from_state.exp_avg_sq.at(i)),
            .new_param = to_state.param.at(i),
            .new_master = has_master ? to_state.master.at(i) : nullptr,
            .new_exp_avg = reinterpret_cast<float*>(to_state.exp_avg.at(i)),
            .new_exp_avg_sq = reinterpret_cast<float*>(to_state.exp_avg_sq.at(i))};
  }

  const ElementType param_type_;
  const ElementType grad_type_;
  const int64_t count_;
  StreamMemory grad_;
  State old_;
  State new_;
};

}  // namespace gemini::client
