// SPDX-License-Identifier: Apache-2.0
// Turns an update's kind and formats into template arguments. Loops are compiled for each
// combination, because branches inside of them cost a tenth of the speed. Always inlined, because
// sources of the instruction sets use it (client/kernels/lanes_avx512.h).
#pragma once
#include "client/kernels/update_rules.h"
#include "gemini/element_type.h"
#include "gemini/optimizer_kind.h"

namespace gemini::client {

template <ElementType kValue>
struct ElementFormat {
  static constexpr ElementType kType = kValue;
};

// Calls `function` with the ElementFormat of `type`.
template <typename Function>
[[gnu::always_inline]] inline void WithFormat(ElementType type, const Function& function) {
  switch (type) {
    case ElementType::kFp32:
      return function(ElementFormat<ElementType::kFp32>());
    case ElementType::kBf16:
      return function(ElementFormat<ElementType::kBf16>());
    case ElementType::kFp16:
      return function(ElementFormat<ElementType::kFp16>());
  }
}

// Calls `function` with both types as template arguments.
template <typename Function>
[[gnu::always_inline]] inline void WithFormats(ElementType param, ElementType grad,
                                               const Function& function) {
  WithFormat(param, [&](auto param_format) {
    WithFormat(grad, [&](auto grad_format) {
      function.template operator()<decltype(param_format)::kType, decltype(grad_format)::kType>();
    });
  });
}

// Calls `function` with the kind's rule on lanes L as template argument.
template <typename L, typename Function>
[[gnu::always_inline]] inline void WithRule(OptimizerKind kind, const Function& function) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return function.template operator()<AdamWRule<L>>();
    case OptimizerKind::kAdam:
      return function.template operator()<AdamRule<L>>();
    case OptimizerKind::kSgd:
      return function.template operator()<SgdRule<L>>();
    case OptimizerKind::kLamb:
      return function.template operator()<LambRule<L>>();
    case OptimizerKind::kLars:
      return function.template operator()<LarsRule<L>>();
  }
}

}  // namespace gemini::client
