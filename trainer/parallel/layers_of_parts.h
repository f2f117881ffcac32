// SPDX-License-Identifier: Apache-2.0
// These layers stand between those whose matrices ranks share, and work on a rank's part of a
// tensor. They put a tensor together for several linear layers, compute attention among some heads
// of some sequences, and add up the gradients of a layer that each rank has whole.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/types.h"
#include "trainer/layer_set.h"
#include "trainer/parallel/part_functions.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

// Where the parts of a tensor are that are put together, or added up.
struct PartsAlong {
  RankLine line = {};  // Without a group there is one part.
  int64_t dimension = 0;
};

// Puts together what several linear layers read.
class InputOfParts : public Layer {
 public:
  InputOfParts(const PartsAlong& along, std::string site) : along_(along), site_(std::move(site)) {}
  torch::Tensor Forward(const torch::Tensor& x) const override;
  // Returns the parts of the last Forward. It returns null if no graph keeps them.
  std::shared_ptr<GatheredParts> parts() const { return parts_.lock(); }

 private:
  const PartsAlong along_;
  const std::string site_;
  mutable std::weak_ptr<GatheredParts> parts_;
};

// Another layer, whose parameters' gradients are added over lines, one after the other: each rank
// has a part of what they come of.
class SummedLayer : public Layer {
 public:
  SummedLayer(std::shared_ptr<Layer> layer, std::vector<RankLine> lines);
  torch::Tensor Forward(const torch::Tensor& x) const override;

 private:
  const std::shared_ptr<Layer> layer_;  // No child: its parameters are this one's.
  const std::vector<RankLine> lines_;
  std::vector<std::string> names_;
};

// Returns `parameter`, which a layer has whole, so that its gradients are added over lines. It may
// be undefined.
torch::Tensor WithSums(torch::Tensor parameter, const std::vector<RankLine>& lines);

// Attention among the heads that this rank has, of its sequences.
class HeadsOfPart : public HeadAttention {
 public:
  HeadsOfPart(const EqualPart& heads, const EqualPart& sequences, int64_t all_heads)
      : heads_(heads), sequences_(sequences), all_heads_(all_heads) {}
  torch::Tensor Forward(const torch::Tensor& query, const torch::Tensor& key,
                        const torch::Tensor& value, const HeadAngles& angles,
                        const RowAttentionOptions& options) const override;

 private:
  const EqualPart heads_;
  const EqualPart sequences_;
  const int64_t all_heads_;
};

}  // namespace gemini::trainer
