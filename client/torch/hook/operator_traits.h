// SPDX-License-Identifier: Apache-2.0
// What an operator's schema says about the tensors that it writes.
#pragma once
#include <cstdint>

#include "ATen/core/function_schema.h"

namespace gemini::client::hooks {

struct OperatorTraits {
  // Not one of Torch's own: its schema is not trusted, all its managed inputs count as written, and
  // a raw pointer may be taken again in its backward.
  bool custom = true;
  // One of Torch's own that writes nothing and whose result may share its input's storage, such as
  // detach or transpose; and detach_. It looks at no bytes itself: where it has to copy it calls an
  // operator that does.
  bool is_view = false;
  uint64_t written_arguments = 0;  // Bit i: argument i is written. Arguments from 63 on: bit 63.
  bool Writes(int64_t argument) const {
    return (written_arguments >> (argument < 63 ? argument : 63) & 1) != 0;
  }
};

// Returns the traits of the schema, or if it is null of an event that has only a name: but for
// detach, the default. Kept in a table per thread, by address: O(1), no lock, no allocation after
// the first call for an operator.
const OperatorTraits& TraitsOf(const c10::FunctionSchema* schema, const char* name);

}  // namespace gemini::client::hooks
