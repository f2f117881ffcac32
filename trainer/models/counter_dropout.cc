// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/counter_dropout.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ATen/Dispatch.h"
#include "ATen/OpMathType.h"
#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "ATen/record_function.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/dropout_gpu.h"
#include "trainer/models/saved_state.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 14;  // Elements that are worth a thread.
constexpr int64_t kBuffer = 256;     // Factors that stay in the processor's nearest cache.

std::vector<c10::IValue> EventInputs(const DropoutMask& mask, const MaskBox& box) {
  return {mask.probability, static_cast<int64_t>(mask.key),
          std::vector<int64_t>{box.first, box.planes, box.plane_stride, box.rows, box.row_stride,
                               box.row_size}};
}

// Writes the factors of `count` elements from place `first` on.
void FillRun(const MaskFactors& factors, int64_t first, int64_t count, float* out) {
  const int64_t end = first + count;
  const auto part_of_quad = [&](int64_t begin, int64_t stop) {
    const std::array<float, 4> quad = factors.Quad(static_cast<uint64_t>(begin / 4));
    std::copy(quad.begin() + begin % 4, quad.begin() + begin % 4 + (stop - begin), out);
    out += stop - begin;
  };
  if (first % 4 != 0) {
    const int64_t stop = std::min(first + 4 - first % 4, end);
    part_of_quad(first, stop);
    first = stop;
  }
  for (; first + 4 <= end; first += 4, out += 4) {
    const std::array<float, 4> quad = factors.Quad(static_cast<uint64_t>(first / 4));
    std::copy(quad.begin(), quad.end(), out);
  }
  if (first < end) part_of_quad(first, end);
}

void FillOnCpu(const MaskFactors& factors, const MaskBox& box, float* out) {
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(box.row_size, 1), 1);
  at::parallel_for(0, box.planes * box.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      FillRun(factors, box.RowAt(row), box.row_size, out + row * box.row_size);
    }
  });
}

void DropOnCpu(const MaskFactors& factors, const MaskBox& box, const Tensor& in,
               const Tensor& out) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, in.scalar_type(), "gemini::dropout", [&] {
        const auto* const from = in.const_data_ptr<scalar_t>();
        auto* const to = out.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, in.numel(), kGrain, [&](int64_t begin, int64_t end) {
          float buffer[kBuffer];
          while (begin < end) {
            const int64_t in_row = begin % box.row_size;
            const int64_t count = std::min({kBuffer, end - begin, box.row_size - in_row});
            FillRun(factors, box.RowAt(begin / box.row_size) + in_row, count, buffer);
            for (int64_t i = 0; i < count; ++i) {
              to[begin + i] = static_cast<scalar_t>(
                  static_cast<at::opmath_type<scalar_t>>(from[begin + i]) * buffer[i]);
            }
            begin += count;
          }
        });
      });
}

Tensor Dropped(const Tensor& x, const DropoutMask& mask, const MaskBox& box) {
  const c10::MaybeOwned<Tensor> in = x.expect_contiguous();
  Tensor out = at::empty(in->sizes(), in->options());
  RECORD_FUNCTION(kDropoutEvent, EventInputs(mask, box));
  if (in->is_meta() || in->numel() == 0) return out;
  if (in->is_cuda()) {
    TORCH_CHECK(box.row_size == in->numel() && box.first == 0, "dropout of a part on a GPU");
    DropOnGpu(MaskFactors(mask), *in, out);
  } else {
    TORCH_CHECK(in->is_cpu(), "dropout on ", in->device());
    DropOnCpu(MaskFactors(mask), box, *in, out);
  }
  return out;
}

struct SavedMask : torch::CustomClassHolder {
  SavedMask(const DropoutMask& the_mask, const MaskBox& the_box) : mask(the_mask), box(the_box) {}
  const DropoutMask mask;
  const MaskBox box;
};

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const DropoutMask& mask,
                          const MaskBox& box) {
    SaveState(context, c10::make_intrusive<SavedMask>(mask, box));
    return Dropped(x, mask, box);
  }

  static variable_list backward(AutogradContext* context, variable_list output_grads) {
    const auto saved = SavedState<SavedMask>(context);
    return {DropOut(output_grads[0], saved->mask, saved->box), Variable(), Variable()};
  }
};

}  // namespace

Tensor DropOut(const Tensor& x, const DropoutMask& mask) {
  return DropOut(x, mask, {.row_size = x.numel()});
}

Tensor DropOut(const Tensor& x, const DropoutMask& mask, const MaskBox& box) {
  if (mask.probability == 0) return x;
  return DropoutFunction::apply(x, mask, box);
}

void FillFactors(const DropoutMask& mask, const MaskBox& box, const Tensor& factors) {
  RECORD_FUNCTION(kDropoutEvent, EventInputs(mask, box));
  TORCH_CHECK(factors.scalar_type() == torch::kFloat32 && factors.is_contiguous() &&
                  factors.numel() == box.planes * box.rows * box.row_size,
              "factors of another shape or type than the box's");
  if (factors.is_meta() || factors.numel() == 0) return;
  if (factors.is_cuda()) {
    FillOnGpu(MaskFactors(mask), box, factors);
  } else {
    TORCH_CHECK(factors.is_cpu(), "dropout on ", factors.device());
    FillOnCpu(MaskFactors(mask), box, factors.mutable_data_ptr<float>());
  }
}

}  // namespace gemini::trainer
