// SPDX-License-Identifier: Apache-2.0
#include "client/torch/build_scope.h"

#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/DefaultDtype.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "torch/library.h"

namespace gemini::client::hooks {
namespace {

// A key that Torch keeps for modes of tests and uses nowhere else. Included by the thread that is
// in a scope, it sends every operator of that thread through the fallback below.
constexpr c10::DispatchKey kScopeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

bool IsFloating(const c10::IValue& dtype) {
  if (dtype.isNone()) return true;  // The default dtype, which is floating.
  return c10::isFloatingType(dtype.toScalarType());
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
  if (device < arguments.size() && dtype < arguments.size() && !has_tensor &&
      IsFloating((*stack)[base + dtype])) {
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
