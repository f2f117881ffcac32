// SPDX-License-Identifier: Apache-2.0
// Computes how much arithmetic an operator of Torch does and how many bytes it moves, by its name
// and the sizes of its tensors, which may be on the meta device.
#pragma once
#include <cstdint>

#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "c10/util/ArrayRef.h"

namespace gemini::trainer {

struct KernelWork {
  bool is_kernel = false;  // False: it only allocates, or changes sizes. A view is not asked for.
  bool writes_input = false;  // Its results are inputs, which are counted once each way.
  double flops = 0;           // Of products; a multiply-add is two.
  bool is_attention = false;  // They are those of fused attention.
  double bytes = 0;           // Read and written; of a look-up, those of the rows it finds.
  // What a product in 16 bits takes on a CPU beside its result: its sums, which are in fp32, with
  // two small blocks, and at most the second matrix packed anew where the processor has tiles.
  int64_t sum_bytes = 0;
  int64_t packed_bytes = 0;
};

// What is known when the operator begins. `inputs` may begin with what is its caller's.
KernelWork WorkOfInputs(const c10::FunctionSchema& schema, c10::ArrayRef<const c10::IValue> inputs);
// Returns the work of a dropout event (trainer/models/counter_dropout.h), which is no operator of
// Torch's: each element is read and written in fp32. The arithmetic of its factor is not counted.
KernelWork WorkOfDropout(c10::ArrayRef<const c10::IValue> inputs);
// Adds the bytes of the results.
void AddOutputs(c10::ArrayRef<c10::IValue> outputs, KernelWork& work);

}  // namespace gemini::trainer
