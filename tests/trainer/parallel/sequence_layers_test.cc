// SPDX-License-Identifier: Apache-2.0
// Ranks that share sequences compute what one rank computes that has whole ones.
#include "trainer/parallel/sequence_layers.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/parallel/layers_beside_one_rank.h"
#include "torch/torch.h"
#include "trainer/parallel/tensor_layers_1d.h"

namespace gemini::trainer {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr SequenceLayout kUlysses = {SequenceSharing::kUlysses};
constexpr SequenceLayout kRing = {SequenceSharing::kRing};
constexpr SequenceLayout kZigzag = {SequenceSharing::kRing, /*zigzag=*/true};

struct Case {
  LayersCase layers;
  const char* name;
};

// `num_tensor` neighbours share layers in 1d, and others have the same of them.
Case In(const char* name, const SequenceLayout& sequence, const SmallModel& model,
        int64_t num_ranks, torch::ScalarType type = torch::kFloat64, bool recompute = false,
        int64_t num_tensor = 1) {
  const auto make = [sequence, num_tensor](Communicator& me, const LayersCase& c) -> RankLayers {
    std::vector<std::vector<int64_t>> lines, sequences(static_cast<size_t>(num_tensor)), alone;
    for (int64_t rank = 0; rank < me.num_ranks(); ++rank) {
      if (rank % num_tensor == 0) lines.emplace_back();
      lines.back().push_back(rank);
      sequences[static_cast<size_t>(rank % num_tensor)].push_back(rank);
      alone.push_back({rank});
    }
    const RankLine tensor = {&me, *me.MakeGroup("tensor", lines)};
    const RankLine line = {&me, *me.MakeGroup("sequence", sequences)};
    const RankLine copies = {&me, *me.MakeGroup("alone", alone)};
    if (num_tensor == 1) {
      return {.layers = std::make_unique<SequenceLayers>(c.type, line, sequence), .sums = line};
    }
    return {.layers = std::make_unique<SequenceLayers>(
                std::make_unique<TensorLayers1d>(c.type, tensor, copies, /*parts=*/false),
                EqualPart{tensor.place(), num_tensor}, line, sequence),
            .place = tensor.place(),
            .sums = line};
  };
  return {{model, num_ranks, type, recompute, make}, name};
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const LayersCase& c = info.param.layers;
  return absl::StrCat(info.param.name, "_", c.model.name, "_", c.num_ranks,
                      c.type == torch::kFloat64 ? "_fp64" : "_fp32",
                      c.recompute ? "_recomputed" : "",
                      c.frozen >= 0 ? absl::StrCat("_frozen_", c.frozen) : "");
}

class SequenceLayersTest : public ::testing::TestWithParam<Case> {};

TEST_P(SequenceLayersTest, LossGradientsAndNormAreThoseOfOneRank) {
  torch::set_num_threads(1);
  const LayersCase& c = GetParam().layers;
  EXPECT_THAT(Differences(c, TrainOnOneRank(c)), IsEmpty());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  std::vector<SmallModel> models = SmallModels();
  models.push_back(kSmallPhi3);
  for (const SmallModel& model : models) {
    cases.push_back(In("ulysses", kUlysses, model, 2));
    cases.push_back(In("zigzag", kZigzag, model, 4, torch::kFloat64, /*recompute=*/true));
  }
  for (const char* const model : {"gpt2_tied", "opt", "llama", "gemma2", "qwen2_moe"}) {
    const SmallModel small = SmallModelOf(model);
    cases.push_back(In("ulysses", kUlysses, small, 4));
    cases.push_back(In("ring", kRing, small, 4));
    cases.push_back(In("zigzag", kZigzag, small, 2));
    cases.push_back(In("ulysses", kUlysses, small, 2, torch::kFloat32, /*recompute=*/true));
    cases.push_back(In("ring", kRing, small, 2, torch::kFloat32));
    cases.push_back(In("zigzag", kZigzag, small, 4, torch::kFloat32));
    for (int64_t frozen = 0; frozen < 3; ++frozen) {
      cases.push_back(In("ulysses", kUlysses, small, 2));
      cases.back().layers.frozen = frozen;
      cases.push_back(In("zigzag", kZigzag, small, 2));
      cases.back().layers.frozen = frozen;
    }
  }
  for (const char* const model : {"gpt2_tied", "llama", "gemma2", "qwen2_moe"}) {
    cases.push_back(In("ulysses_1d", kUlysses, SmallModelOf(model), 4, torch::kFloat64, false, 2));
    cases.push_back(In("zigzag_1d", kZigzag, SmallModelOf(model), 4, torch::kFloat64, true, 2));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, SequenceLayersTest, ::testing::ValuesIn(Cases()), NameOf);

TEST(SequenceSitesTest, EachCollectiveMatters) {
  torch::set_num_threads(1);
  for (const Case& one : {In("ulysses", kUlysses, SmallModelOf("gpt2_tied"), 2),
                          In("ring", kRing, SmallModelOf("qwen2_moe"), 2),
                          In("zigzag", kZigzag, SmallModelOf("llama"), 2)}) {
    SCOPED_TRACE(one.name);
    const LayersCase& c = one.layers;
    const TrainResults one_rank = TrainOnOneRank(c);
    std::set<std::string> sites;
    EXPECT_THAT(Differences(c, one_rank, "none", &sites), IsEmpty());
    // Two of attention, the loss, what is gathered of logits, gradients; and of routers' sums.
    EXPECT_EQ(sites.size(), c.model.name == std::string("qwen2_moe") ? 6u : 5u);
    for (const std::string& site : sites) {
      EXPECT_THAT(Differences(c, one_rank, site), Not(IsEmpty())) << site;
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
