// SPDX-License-Identifier: Apache-2.0
// Compares what ranks that share layers compute with what one rank computes that has all of them,
// in plain Torch: the loss, logits, each gradient, and their norm. Ranks are threads.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "torch/torch.h"
#include "trainer/families/model_spec.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/parameter_boxes.h"
#include "trainer/parallel/tensor_exchange.h"
#include "trainer/parallel/tensor_layers.h"

namespace gemini::trainer {

// A small model of a family: blocks of width 64 and 4 heads, 2 of keys and values, for rows of 16
// tokens of 301.
struct SmallModel {
  const char* name;
  const char* json;
  ModelSpec spec() const;
};

// All families whose matrices of query, key and value are apart, or have equal heads.
const std::vector<SmallModel>& SmallModels();
SmallModel SmallModelOf(const std::string& name);
// One matrix for query, key and value, of which a key's head is that of two, and one for the gate
// and what it multiplies.
extern const SmallModel kSmallPhi3;
// Its heads are turned by the one frequencies where no document has more than 8 tokens, and else by
// the others.
extern const SmallModel kSmallLongRope;
// Models of other tasks: masked tokens, labels of texts and pairs that a pooler reads, and numbers
// that the last token gives.
const std::vector<SmallModel>& TaskModels();

struct RankLayers {
  std::unique_ptr<TensorLayers> layers;
  int64_t place = 0;  // In its boxes' grid.
  // The ranks that have the same boxes and other tokens, whose gradients are added up. Absent where
  // there are none.
  RankLine sums = {};
};

struct LayersCase {
  SmallModel model;
  int64_t num_ranks = 1;
  torch::ScalarType type = torch::kFloat64;
  bool recompute = false;
  // Makes those of a rank.
  std::function<RankLayers(Communicator&, const LayersCase&)> make;
  // Of three parameters each, the one of this number is frozen, and a layer is there that is not
  // used; -1 stands for none.
  int64_t frozen = -1;
  bool packed = false;  // Rows have several documents each, of other lengths, and padding.

  // Returns the bar of losses, and of each gradient beside its tensor's largest value.
  double tolerance() const { return type == torch::kFloat64 ? 1e-12 : 2e-5; }
};

// A step's forward and backward, and the logits of an evaluation.
struct TrainResults {
  LossValues loss;
  torch::Tensor logits;
  std::map<std::string, torch::Tensor> values;
  std::map<std::string, torch::Tensor> gradients;
};

TrainResults TrainOnOneRank(const LayersCase& c);
// Says in which ways ranks differ from one, when all skip the collectives of a site. `sites`: gets
// those of the collectives.
std::vector<std::string> Differences(const LayersCase& c, const TrainResults& one_rank,
                                     const std::string& skipped = "",
                                     std::set<std::string>* sites = nullptr);

// Returns a box of the whole tensor.
torch::Tensor OfWhole(torch::Tensor whole, const Box& box);
// Returns the box in a rank's tensor.
torch::Tensor OfRank(const torch::Tensor& tensor, const Box& box);
double Largest(const torch::Tensor& x);

}  // namespace gemini::trainer
