// SPDX-License-Identifier: Apache-2.0
// Derives from an operator's schema which tensors the operator writes.
#pragma once
#include <cstdint>

#include "ATen/core/function_schema.h"

namespace gemini::client::hooks {

struct OperatorTraits {
  // The operator is not one of Torch's own. Its schema is not trusted, all its managed inputs count
  // as written, and its backward may use a raw pointer again.
  bool custom = true;
  // The operator is one of Torch's own that writes nothing and whose result may share its input's
  // storage, such as detach or transpose; or it is detach_. It reads no bytes itself: to copy, it
  // calls another operator.
  bool is_view = false;
  // Bit i: argument i is written. Bit 63 stands for all arguments from 63 on.
  uint64_t written_arguments = 0;
  bool Writes(int64_t argument) const {
    return (written_arguments >> (argument < 63 ? argument : 63) & 1) != 0;
  }
};

// Returns the traits of the schema. If it is null, returns those of an event that has only a name:
// the default, except for detach and detach_. Each thread keeps a table of traits by the schema's
// address, so a call is O(1), takes no lock, and allocates only for a thread's first call with a
// schema.
const OperatorTraits& TraitsOf(const c10::FunctionSchema* schema, const char* name);

}  // namespace gemini::client::hooks
