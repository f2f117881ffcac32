// SPDX-License-Identifier: Apache-2.0
// Holds what all blocks read of a batch, such as positions and masks. It is made once for the
// batch, and is no buffer of the model: buffers would be moved and saved with it.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/models/dropout_mask.h"
#include "trainer/models/row_documents.h"

namespace gemini::trainer {

// The cosine and sine of the angles by which heads are rotated: [sequence, elements of a head that
// are rotated], or of rows with documents [batch, 1, sequence, ...], in the hidden state's dtype
// and on its device. Undefined where heads are not.
struct HeadAngles {
  torch::Tensor cosine = {};
  torch::Tensor sine = {};
  bool interleaved = false;  // This and the next are RotarySpec's.
  bool in_fp32 = false;
};

class ExpertCache;

// How the experts of a block run. Planned: all of them, in their order, so that each forward has
// the same operators. Routed: those alone that a token chose. The bits are the same.
struct ExpertRouting {
  bool routed = false;           // Only without gradients.
  ExpertCache* cache = nullptr;  // Where routed experts lie. Null: where the parameters lie.
  // On the meta device, where nobody knows what a router chooses, all tokens go to the first
  // experts. If false, all experts get as many.
  bool crowds_first = false;
};

struct BatchContext {
  std::vector<HeadAngles> angles = {};  // One for each of ModelSpec::kinds.
  ExpertRouting experts = {};
  std::optional<DropoutDraw> dropout = {};  // Absent in evaluation, where nothing is dropped.
  int64_t sequence = 0;                     // Tokens of a row; a part of them may be here.
  SharedDocuments documents = {};           // Of the rows that attention has here.
};

// Makes the context of rows of `sequence` tokens. `longest` counts the tokens of the longest
// document of the micro-batch, of which other ranks may have rows, too. `options` are those of the
// hidden state.
BatchContext MakeBatchContext(absl::Span<const BlockKind> kinds, int64_t head_size,
                              int64_t sequence, int64_t longest,
                              const torch::TensorOptions& options, SharedDocuments documents = {});

}  // namespace gemini::trainer
