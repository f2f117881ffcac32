// SPDX-License-Identifier: Apache-2.0
// Defines the layers that a model is made of, and the set that makes them: a model asks a LayerSet
// for each, so that another set can split or adapt them in one place.
// Shapes: those below are of the whole model. What a set that splits layers returns from one and
//         takes in the next is its own: it may have fewer heads, or fewer elements between the
//         matrices of a feed-forward part; and what is [batch, sequence, width] may be a part of
//         that (hidden_part), but ids and labels are whole. A model takes sizes of tensors from
//         them alone.
// Names:  a layer's tensors are "weight" and "bias". A table of the vocabulary that is cut into
//         blocks has "weight_0", "weight_1", ... (trainer/families/vocabulary_cut.h).
// Memory: parameters are empty tensors of the set's options; nothing is initialised.
// Thread: one at a time.
// Errors: Torch's exceptions pass through.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// A module whose tensors others may stand in for, for a while: it computes with those that it has
// when it is called.
class LayerModule : public torch::nn::Module {
 public:
  // Puts `tensor` in the place of the parameter `name` (no dots), which must be there.
  virtual void Replace(const std::string& name, torch::Tensor tensor) {
    parameters_[name] = std::move(tensor);
  }

 protected:
  // Returns what stands at `name`, or an undefined tensor if there is none.
  torch::Tensor Own(const std::string& name) const {
    const torch::Tensor* const found = parameters_.find(name);
    return found == nullptr ? torch::Tensor() : *found;
  }
};

// Forward takes a contiguous tensor [..., in] of the parameters' dtype and returns [..., out] of
// it.
class Layer : public LayerModule {
 public:
  virtual torch::Tensor Forward(const torch::Tensor& x) const = 0;
};

// The table of the token embedding. Forward takes int64 ids of any shape, each in [0, vocabulary),
// and returns [..., width].
class VocabularyTable : public Layer {
 public:
  // Its tensors, for a head that is tied to it.
  virtual std::vector<torch::Tensor> blocks() const = 0;
};

// The head of a language model, and the loss that is computed with it.
class HeadAndLoss : public LayerModule {
 public:
  // Returns logits [..., vocabulary] for hidden states [..., width].
  virtual torch::Tensor Logits(const torch::Tensor& hidden) const = 0;
  // Returns the sum of the cross entropies of labels, int64 [batch, sequence], for hidden states
  // [batch, sequence, width], as fp32 of no dimension. A negative label counts for nothing.
  // `gradient`: what backward will be given for the sum (trainer/models/head_loss.h).
  virtual torch::Tensor SumOfLosses(const torch::Tensor& hidden, const torch::Tensor& labels,
                                    double gradient) const = 0;
  // Returns the sums of what routers did with all tokens of a batch (trainer/models/stream.h), for
  // those that this rank's blocks have added up.
  virtual torch::Tensor RouterSums(const torch::Tensor& sums) const { return sums; }
};

struct HeadAngles;           // trainer/models/batch_context.h
struct RowAttentionOptions;  // trainer/models/row_attention.h

// Attention among heads, between the linear layers. It has no parameters.
class HeadAttention {
 public:
  virtual ~HeadAttention() = default;
  // As SelfAttention (trainer/models/attention.h), for what the layers before returned.
  virtual torch::Tensor Forward(const torch::Tensor& query, const torch::Tensor& key,
                                const torch::Tensor& value, const HeadAngles& angles,
                                const RowAttentionOptions& options) const = 0;
};

// What a linear layer does in the model, by which a set can tell how to split it.
enum class Role : uint8_t {
  kProjectIn,
  kQueryKeyValue,  // All three in one matrix, or one of them.
  kAttentionOut,
  kFeedIn,  // Also the gate.
  kFeedOut,
  kExpertIn,   // As the two before, of an expert among those that a router chooses. It reads some
  kExpertOut,  // rows, in another order.
  kRouter,     // Its output says through which experts a token goes, or how much of one it gets.
  kProjectOut,
  kOfSequence,  // It reads what was made of whole sequences (LayerSet::WholeSequences).
};

struct LinearShape {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  MatrixLayout layout = MatrixLayout::kOutIn;
  // The output is so many elements, then so many, ..., which are used apart. Empty: it is one.
  std::vector<int64_t> sections = {};
  // So many equal parts of each section are never split, as heads are not. 0: there are none.
  int64_t heads = 0;
};

struct HeadShape {
  int64_t vocabulary = 0;
  int64_t width = 0;
  bool bias = false;       // The logits have one, "bias" [vocabulary], of the head's own.
  double logit_scale = 1;  // This and the next are ModelSpec's.
  double logit_soft_cap = 0;
};

// The `index`-th of `count` equal parts of a dimension.
struct EqualPart {
  int64_t index = 0;
  int64_t count = 1;
};

// Which elements of [batch, sequence, width] are in the hidden states between blocks.
struct HiddenPart {
  EqualPart sequences = {};
  // The sequences that attention has: as many as those, and in a cube others.
  EqualPart inner_sequences = {};
  EqualPart tokens = {};  // Of each sequence.
  // A sequence is cut into twice as many slices as it has parts. A part has two of them: the one of
  // its index, and the one that is as far from the end.
  bool zigzag = false;
  EqualPart width = {};
};

// Its layers may outlive it.
class LayerSet {
 public:
  virtual ~LayerSet() = default;
  virtual HiddenPart hidden_part() const { return {}; }
  // The row of `padding_token` gets no gradient from a look-up; -1 for none.
  virtual std::shared_ptr<VocabularyTable> TokenEmbedding(int64_t vocabulary, int64_t width,
                                                          int64_t padding_token) = 0;
  // Forward takes int64 ids of any shape, each in [0, rows), and returns [..., width].
  virtual std::shared_ptr<Layer> PositionEmbedding(int64_t rows, int64_t width) = 0;
  // These two make tokens of images. Forward of the first takes pixels [batch, channels, height,
  // width] of any floating type, and returns a token for each patch, [batch, patches, width]; its
  // weight is [width, channels, patch height, patch width], as that of a convolution. Forward of
  // the second puts the class token before these, and adds the table of positions: [batch,
  // 1 + patches, width]. Its tensors are "cls_token" [1, 1, width] and "position_embeddings"
  // [1, 1 + patches, width].
  virtual std::shared_ptr<Layer> Patches(const ImageSpec& image, int64_t width) = 0;
  virtual std::shared_ptr<Layer> ImageTokens(const ImageSpec& image, int64_t width) = 0;
  virtual std::shared_ptr<Layer> Norm(const NormSpec& norm, int64_t width) = 0;
  // Norms each of `heads` heads by attention.head_norm, which is there. Forward takes [..., heads,
  // head size]. Weights are [head size], or of heads that are normed apart [heads, head size] and
  // without a bias.
  virtual std::shared_ptr<Layer> HeadNorm(const AttentionSpec& attention, int64_t heads) = 0;
  // Returns what goes before linear layers of roles kQueryKeyValue and kFeedIn, once for all that
  // read the same tensor; null where there is nothing to do.
  virtual std::shared_ptr<Layer> SharedInput() = 0;
  virtual std::shared_ptr<Layer> Linear(const LinearShape& shape, Role role) = 0;
  // These go around experts; each is null where there is nothing to do. RouterOutput takes a
  // router's logits [rows, experts] and returns those of the rows that SharedInput returns.
  // ExpertWeights takes what the experts' results are multiplied by. ExpertsOutput takes the sums
  // of the products, and returns those of this rank's rows.
  virtual std::shared_ptr<Layer> RouterOutput() { return nullptr; }
  virtual std::shared_ptr<Layer> ExpertWeights() { return nullptr; }
  virtual std::shared_ptr<Layer> ExpertsOutput() { return nullptr; }
  virtual std::shared_ptr<HeadAttention> Attention(const AttentionSpec& attention) = 0;
  // Returns what makes hidden states of all tokens out of those that leave the last block, for
  // layers of role kOfSequence; null where there is nothing to do.
  virtual std::shared_ptr<Layer> WholeSequences() { return nullptr; }
  // A head whose table is that of `tied`, or its own if that is null. With a bias it has a
  // parameter of its own in both cases.
  virtual std::shared_ptr<HeadAndLoss> Head(const HeadShape& shape,
                                            std::shared_ptr<VocabularyTable> tied) = 0;
};

}  // namespace gemini::trainer
