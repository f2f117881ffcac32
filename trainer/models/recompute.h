// SPDX-License-Identifier: Apache-2.0
// Recomputes a block in backward, so that only its input is kept and not its activations.
// Bits: gradients are equal to those without recomputation. Of what a block computes, all that may
// change between forward and backward is in the context, dropout's masks too.
// Errors: an exception of the block passes through, in forward and in backward.
// Limits: no double backward. Gradients are accumulated into .grad, so torch::autograd::grad for a
// parameter of the block does not see them.
// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
#pragma once
#include <memory>

#include "torch/nn/module.h"
#include "trainer/models/batch_context.h"
#include "trainer/models/stream.h"

namespace gemini::trainer {

// A part of a model. The hidden tensor that it returns has the shape of the one that it took, and
// it returns a pair of the same shape if it took one. It adds what its router did to the router
// sums, or passes them on. It computes the same of the same arguments and parameters, whatever the
// module's training flag says.
class Block : public torch::nn::Module {
 public:
  virtual Stream Forward(const Stream& stream, const BatchContext& context) = 0;
  // The same in backward, with a graph of which the backward follows at once.
  virtual Stream ForwardAgain(const Stream& stream, const BatchContext& context) {
    return Forward(stream, context);
  }
};

// Returns block->Forward(stream, context). With grad mode off it is exactly that; else the block
// runs without a graph, now, and with one in backward. The graph keeps the block, the stream's
// tensors and the context, which gets no gradient, alive.
Stream ForwardRecomputed(const std::shared_ptr<Block>& block, const Stream& stream,
                         const BatchContext& context);

}  // namespace gemini::trainer
