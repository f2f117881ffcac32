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
  uint64_t written_arguments = 0;  // Bit i: argument i is written. Arguments from 63 on: bit 63.
  bool Writes(int64_t argument) const {
    return (written_arguments >> (argument < 63 ? argument : 63) & 1) != 0;
  }
};

// Returns the traits of the schema; those of a null one are the default. Kept in a table per
// thread, by address: O(1), no lock, no allocation after the first call for an operator.
const OperatorTraits& TraitsOf(const c10::FunctionSchema* schema);

}  // namespace gemini::client::hooks
