// SPDX-License-Identifier: Apache-2.0
#include "client/torch/hook/operator_traits.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

namespace gemini::client::hooks {
namespace {

bool IsWritten(const c10::Argument& argument) {
  const c10::AliasInfo* alias = argument.alias_info();
  if (alias == nullptr) return false;
  if (alias->isWrite()) return true;
  // Tensor(a!)[]: the mark may be on the list's elements.
  for (const c10::AliasInfo& element : alias->containedTypes()) {
    if (element.isWrite()) return true;
  }
  return false;
}

// Tensor(a), or Tensor(a)[].
bool IsAlias(const c10::Argument& result) {
  const c10::AliasInfo* alias = result.alias_info();
  return alias != nullptr && !alias->isWrite();
}

OperatorTraits Derive(const c10::FunctionSchema& schema) {
  OperatorTraits traits;
  traits.custom = std::string_view(schema.name()).substr(0, 6) != "aten::";
  int index = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (IsWritten(argument)) traits.written_arguments |= uint64_t{1} << (index < 63 ? index : 63);
    ++index;
  }
  traits.is_view = !traits.custom && traits.written_arguments == 0 && !schema.returns().empty() &&
                   std::ranges::all_of(schema.returns(), IsAlias);
  // zero_grad calls it on each gradient: it cuts the tensor off its graph.
  if (schema.name() == "aten::detach_") traits = {.custom = false, .is_view = true};
  return traits;
}

struct Entry {
  OperatorTraits traits;
  std::string name;  // If a library is unloaded, another schema may get the address.
};

}  // namespace

const OperatorTraits& TraitsOf(const c10::FunctionSchema* schema, const char* name) {
  static const OperatorTraits kUnknown;
  static const OperatorTraits kView = {.custom = false, .is_view = true};
  // Torch's detach has a second event inside it, by hand and without a schema.
  if (schema == nullptr) {
    return std::string_view(name) == "detach" || std::string_view(name) == "detach_" ? kView
                                                                                     : kUnknown;
  }
  thread_local std::unordered_map<const c10::FunctionSchema*, Entry> traits_by_schema;
  const auto found = traits_by_schema.find(schema);
  if (found != traits_by_schema.end() && found->second.name == schema->name()) {
    return found->second.traits;
  }
  Entry& entry = traits_by_schema[schema];
  entry = {Derive(*schema), schema->name()};
  return entry.traits;
}

}  // namespace gemini::client::hooks
