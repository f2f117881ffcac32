// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/build_scope.h"

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/strings/string_view.h"
#include "c10/core/DefaultDtype.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "torch/library.h"

namespace gemini::client::hooks {
namespace {

// A key that Torch keeps for modes of tests and uses nowhere else. Included by the thread that is
// in a scope, it sends every operator of that thread through the fallback below.
constexpr c10::DispatchKey kScopeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Whether a factory that got no dtype makes a floating tensor. Most take the default dtype, which
// is floating; two go by the numbers that they get, the last `arguments.size()` of the stack.
bool DefaultsToFloating(const c10::FunctionSchema& schema, const c10::IValue* values) {
  if (schema.name() != "aten::arange" && schema.name() != "aten::full") return true;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const absl::string_view name = schema.arguments()[i].name();
    const bool is_number =
        name == "start" || name == "end" || name == "step" || name == "fill_value";
    if (is_number && values[i].isDouble()) return true;
  }
  return false;
}

// Sets `device` to meta where an operator with the arguments of a factory got none.
void RedirectFactory(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  size_t device = arguments.size();
  size_t dtype = arguments.size();
  bool has_tensor = false;  // A tensor's device is what empty_like and its like go by.
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[base + i];
    if (arguments[i].name() == "device" && value.isNone()) device = i;
    if (arguments[i].name() == "dtype") dtype = i;
    has_tensor = has_tensor || value.isTensor() || value.isTensorList();
  }
  const auto is_floating = [&](const c10::IValue& value) {
    return value.isNone() ? DefaultsToFloating(op.schema(), stack->data() + base)
                          : c10::isFloatingType(value.toScalarType());
  };
  if (device < arguments.size() && dtype < arguments.size() && !has_tensor &&
      is_floating((*stack)[base + dtype])) {
    (*stack)[base + device] = c10::Device(c10::DeviceType::Meta);
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kScopeKey);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&RedirectFactory>());
}

}  // namespace

BuildScope::BuildScope() : was_included_(c10::impl::tls_is_dispatch_key_included(kScopeKey)) {
  c10::impl::tls_set_dispatch_key_included(kScopeKey, true);
}

BuildScope::~BuildScope() { c10::impl::tls_set_dispatch_key_included(kScopeKey, was_included_); }

}  // namespace gemini::client::hooks
