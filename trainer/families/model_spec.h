// SPDX-License-Identifier: Apache-2.0
// Describes what a model computes and what its tensors are called: all that the model, its
// checkpoint and its forecast have to know about a family. A family makes one from config.json
// (hf_config.h). One module runs all that are transformers (trainer/models/transformer.h), and one
// those that have a pair trunk (trainer/models/pair_trunk_model.h). No Torch.
// Names:  of layers, from the model's root: a layer "transformer.ln_f" has the tensors
//         "transformer.ln_f.weight" and "transformer.ln_f.bias".
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/families/classifier_spec.h"
#include "trainer/families/image_spec.h"
#include "trainer/families/pair_trunk_spec.h"
#include "trainer/families/task_spec.h"
#include "trainer/families/weight_names.h"

namespace gemini::trainer {

enum class Activation : uint8_t { kRelu, kGelu, kGeluTanh, kSilu };

// How a block puts its two parts and its norms together.
enum class BlockOrder : uint8_t {
  kNormsBefore,       // x + attention(norm(x)), and then x + feed(norm(x)).
  kNormsAfter,        // norm(x + attention(x)), and then norm(x + feed(x)).
  kSandwich,          // x + norm(attention(norm(x))), and then x + norm(feed(norm(x))).
  kParallel,          // x + attention(norm(x)) + feed(norm(x)), with one norm for both.
  kParallelTwoNorms,  // feed(norm(x)) + attention(norm(x)) + x, with a norm for each.
};

// In how many matrices query, key and value are.
enum class QueryKeyValueLayout : uint8_t {
  kApart,   // Three.
  kJoined,  // One, whose output is the query of all heads, then their keys, then their values.
  kByHead,  // One, whose output is query, key and value of the first head, then of the second, ...
};

// How a linear layer's matrix lies in the files, and in memory.
enum class MatrixLayout : uint8_t { kOutIn, kInOut };

enum class NormKind : uint8_t {
  kLayer,
  kRms,  // x / rms(x), which never has a bias (Zhang and Sennrich, arXiv:1910.07467).
};

// A norm over the last dimension.
struct NormSpec {
  NormKind kind = NormKind::kLayer;
  double epsilon = 1e-5;
  bool affine = true;     // It has a weight.
  bool bias = true;       // An affine layer norm has a bias, too.
  bool adds_one = false;  // The factor is 1 + weight, in fp32.
};

// A learned table with one row for each position.
struct PositionSpec {
  int64_t rows = 0;
  int64_t first_row = 0;  // The row of position 0. Rows before it are not looked up.
  // The positions of every sequence are looked up. If false, those of one are, and serve all. The
  // table's gradient is then summed in another order, which gives other bits.
  bool for_each_sequence = false;
};

// Rotary positions: pair i of a query's or key's head is turned by its position times
// theta^(-2 i / size), where `size` is that of the part that is rotated (Su et al.,
// arXiv:2104.09864).
struct RotarySpec {
  enum class Scaling : uint8_t {
    kNone,
    kLinear,  // All frequencies are divided by `factor`.
    // Low frequencies are divided, high ones are kept. Between the two bounds kLlama3 interpolates
    // by the turns that a frequency makes, and kYarn by the number of the pair (Peng et al.,
    // arXiv:2309.00071).
    kLlama3,
    kYarn,
    // Each frequency is divided by a number of its own (Ding et al., arXiv:2402.13753).
    kLongRope,
  };
  double theta = 10000;
  // From above 0 to 1: of each head the first SizeOf(head size) elements are rotated.
  double rotated_fraction = 1;
  bool interleaved = false;  // Pair i is (2 i, 2 i + 1). If false, it is (i, i + size / 2).
  bool in_fp32 = false;      // Heads are rotated in fp32, and rounded once.
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  // A frequency is low if it makes fewer than `low_turns` turns over `original_positions`, and high
  // if it makes more than `high_turns`.
  double low_turns = 1;
  double high_turns = 4;
  int64_t original_positions = 1;
  // The divisors of kLongRope, one for each pair: of sequences of up to `original_positions`, and
  // of longer ones.
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};
  double amplitude = 1;     // kYarn and kLongRope multiply cosine and sine by it.
  bool whole_pairs = true;  // kYarn moves its two bounds outwards to whole pairs.

  int64_t SizeOf(int64_t head_size) const {
    return static_cast<int64_t>(static_cast<double>(head_size) * rotated_fraction);
  }
  bool operator==(const RotarySpec&) const = default;
};

// What attention sees, and how heads are turned. Blocks may differ in it.
struct BlockKind {
  // A token attends to itself and the window - 1 before it. 0 means no window.
  int64_t window = 0;
  std::optional<RotarySpec> rotary = {};  // Empty where heads are not turned.
};

// Self-attention. Query and output have num_heads * head_size elements a token, key and value
// num_kv_heads * head_size: each of their heads serves num_heads / num_kv_heads of the query's.
struct AttentionSpec {
  bool causal = true;  // A token attends to itself and those before it. If false, to all.
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;  // Divides num_heads.
  int64_t head_size = 1;
  double scale = 1;  // The scores are multiplied by it.
  // Block i, from 0 on, divides the scale by i + 1.
  bool divides_scale_by_depth = false;
  // The query is multiplied by the scale and not the scores, which gives other bits.
  bool scales_query = false;
  // If it is kByHead, num_kv_heads is num_heads.
  QueryKeyValueLayout layout = QueryKeyValueLayout::kApart;
  bool bias = true;      // Query, key and value have one.
  bool out_bias = true;  // The matrix behind attention has one.
  double dropout = 0;    // With this probability a weight of the softmax is dropped.
  // Scores become soft_cap * tanh(score / soft_cap). 0 means no cap.
  double soft_cap = 0;
  // Each head of query and key is normed before it is turned. Empty where none is.
  std::optional<NormSpec> head_norm = {};
  bool norms_heads_apart = false;  // Each head has weights of its own. If false, they share them.
};

struct FeedForwardSpec {
  int64_t width = 0;  // Between its first and its last matrix.
  Activation activation = Activation::kGelu;
  // Another matrix of the same size, the gate, reads the same input. The activation is applied to
  // its output, which multiplies that of the first matrix (Shazeer, arXiv:2002.05202).
  bool gated = false;
  // The gate and the first matrix are one, whose output is the gate's before the other's. Only
  // where it is gated.
  bool joined = false;
  bool bias = true;
};

// Many feed-forward parts in place of one, of which each token goes through `chosen` (Shazeer et
// al., arXiv:1701.06538). A router, which is a linear layer without a bias, says through which: its
// softmax, in fp32, weighs what the chosen ones return.
struct ExpertsSpec {
  int64_t count = 1;
  int64_t chosen = 1;           // At most `count`.
  int64_t width = 0;            // Between the two matrices of one.
  bool normalises = true;       // The weights of those chosen are divided by their sum.
  bool rounds_weights = false;  // The weights are rounded to the hidden state's type.
  // If it has a value, the loss includes the routers' load-balancing loss times it.
  std::optional<double> router_loss_coefficient = {};
  // Every token goes through one more, of this width. A linear layer of one output, the gate, reads
  // the same, and its sigmoid weighs what that one returns. 0 means that there is none.
  int64_t shared_width = 0;
};

// The names of a feed-forward part's layers. One that is not gated, or joined, has no gate.
struct FeedNames {
  std::string gate = {};
  std::string in = {};
  std::string out = {};
};

// The names in a block's experts. Expert i is "<experts>.<i>".
struct ExpertNames {
  std::string part = {};  // All that follows is below it, and it is in the block.
  std::string router = {};
  std::string experts = {};
  FeedNames expert = {};
  std::string shared = {};  // The one for every token.
  std::string shared_gate = {};
};

// The names of the layers of a block, from the block on. A layer that is not there has none.
struct BlockNames {
  std::string attention_norm = {};   // In a kParallel block it is the norm of both parts.
  std::string query_key_value = {};  // Where it is one; otherwise the next three have names.
  std::string query = {};
  std::string key = {};
  std::string value = {};
  std::string query_norm = {};
  std::string key_norm = {};
  std::string attention_out = {};
  std::string attention_out_norm = {};  // Only a kSandwich block has it.
  std::string feed_norm = {};
  FeedNames feed = {};
  std::string feed_out_norm = {};  // Only a kSandwich block has it.
  ExpertNames experts = {};
};

// The names of all layers, from the model's root. A layer that is not there has none.
struct LayerNames {
  std::string token_embedding = {};
  std::string position_embedding = {};
  std::string type_embedding = {};
  std::string embedding_norm = {};
  // A model of images has these: the first holds the class token and the table of positions, and
  // the linear layer of patches stands below it.
  std::string image_tokens = {};
  std::string patches = {};
  std::string project_in = {};
  std::string blocks = {};  // Block i is "<blocks>.<i>".
  BlockNames block = {};
  std::string final_norm = {};
  std::string project_out = {};
  // The linear layer and the norm of a head that transforms.
  std::string head_transform = {};
  std::string head_norm = {};
  std::string head = {};  // A tied one has a name if it has a bias.
  std::string pooler = {};
  std::string classifier = {};
};

// All sizes are >= 1, but that a model of images has no vocabulary.
struct ModelSpec {
  int64_t vocab_size = 0;
  int64_t max_sequence = 0;  // Positions that a sequence may have.
  int64_t width = 0;         // Elements of a token in a block's input and output.
  int64_t num_blocks = 0;
  std::optional<ImageSpec> image = {};  // Empty: the model reads tokens.
  // What the model is if it reads alignments. Then a position is one of a residue, the width is
  // that of the alignment, and what follows here of embeddings and blocks means nothing.
  std::optional<PairTrunkSpec> pair_trunk = {};
  // The width of the token embedding. Where it is not `width`, a linear layer without a bias leads
  // from it to that, and another one from the last block's output back.
  int64_t embedding_width = 0;
  int64_t padding_token = -1;  // Its row of the embedding gets no gradient; -1: each row does.
  // The embedding is multiplied by it, as rounded to the parameters' type.
  double embedding_scale = 1;
  std::optional<PositionSpec> positions = {};  // Nothing: there is no table.
  // Rows of a table of token types, such as which of two texts a token is of. 0: there is none.
  int64_t num_token_types = 0;
  bool embedding_norm = false;  // The sum of the embeddings is normed, before its dropout.
  NormSpec norm = {};
  BlockOrder order = BlockOrder::kNormsBefore;
  std::vector<BlockKind> kinds = {{}};  // One at least.
  // The kind of each block, as an index of `kinds`. Empty: all blocks are of the first.
  std::vector<size_t> kind_of_block = {};
  bool final_norm = true;
  AttentionSpec attention = {};
  FeedForwardSpec feed_forward = {};
  std::optional<ExpertsSpec> experts = {};  // Empty where no block has any.
  // Whether each block has experts, if any has. Empty where all blocks have.
  std::vector<bool> has_experts = {};
  MatrixLayout block_matrices = MatrixLayout::kOutIn;
  double embedding_dropout = 0;
  double residual_dropout = 0;  // What each part of a block adds to the residual is dropped out.
  bool tied_head = true;        // The head is the token embedding's table.
  bool head_bias = false;       // The logits have one.
  // The head reads norm(activation(W x + b)) of the last hidden state x. Empty: it reads x.
  std::optional<Activation> head_transform = {};
  double logit_scale = 1;           // The logits are multiplied by it.
  double logit_soft_cap = 0;        // As AttentionSpec::soft_cap, of logits.
  double initial_deviation = 0.02;  // Of the normal distribution that a new head starts with.
  // Empty where the family classifies nothing.
  std::optional<ClassifierSpec> classifier = {};
  TaskSpec task = {};
  LayerNames layers = {};
  WeightNames files = {};

  // Positions of a sequence whose length nobody gives: those of an image, or at most 1,024, for
  // more is rarely meant and costs memory squared.
  int64_t default_sequence() const {
    return image.has_value() ? max_sequence : std::min<int64_t>(max_sequence, 1024);
  }
  // Elements that a row of so many positions has in each tensor between two blocks.
  std::vector<int64_t> ElementsBetweenBlocks(int64_t sequence) const {
    if (!pair_trunk.has_value()) return {sequence * width};
    return {pair_trunk->num_sequences * sequence * width,
            sequence * sequence * pair_trunk->pair_width};
  }
  bool has_projections() const { return embedding_width != width; }
  // Whether backward needs parameters of the embeddings again: a table is not needed.
  bool embeddings_need_values() const { return has_projections() || embedding_norm; }
  bool HasExperts(int64_t block) const {
    return experts.has_value() && (has_experts.empty() || has_experts[static_cast<size_t>(block)]);
  }
  size_t KindOf(int64_t block) const {
    return kind_of_block.empty() ? 0 : kind_of_block[static_cast<size_t>(block)];
  }
};

}  // namespace gemini::trainer
