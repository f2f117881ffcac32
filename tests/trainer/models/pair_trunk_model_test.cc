// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/pair_trunk_model.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/forecast/traced_step.h"
#include "trainer/models/vertical_schedule.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kBatch = 2, kSequences = 3, kResidues = 6;

std::string Config(const std::string& task) {
  return absl::StrCat(R"({"model_type":"pair_trunk","vocab_size":11,"num_sequences":3,
      "max_position_embeddings":8,"msa_width":12,"pair_width":8,"num_hidden_layers":2,
      "msa_num_heads":3,"msa_head_size":4,"triangle_num_heads":2,"triangle_head_size":5,
      "triangle_width":10,"outer_width":3,"transition_factor":2,"num_bins":7,
      "relative_positions":2,"architectures":["PairTrunkFor)",
                      task, R"("]})");
}

ModelSpec SpecOf(const std::string& task) { return ParseHfConfig(Config(task), "config")->spec; }

std::unique_ptr<StagedModel> MakeModel(const ModelSpec& spec,
                                       torch::ScalarType type = torch::kFloat32) {
  auto model = *MakeStagedModel(spec, type);
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : model->parameters()) parameter.normal_(0, 0.3);
  return model;
}

// The labels of the i-th are unknown for the first i residues of a row.
std::vector<Batch> MicroBatches(const ModelSpec& spec, int count) {
  torch::manual_seed(2);
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    const Tensor tokens = torch::randint(0, 11, {kBatch, kSequences, kResidues}, torch::kInt64);
    Labels labels = Labels::OfTask(spec.task, tokens);
    labels.values = labels.values.clone();
    if (spec.task.kind == TaskKind::kDistogram) labels.values.random_(0, 7);
    labels.values.slice(/*dim=*/-1, 0, i).fill_(-1);
    labels.count = labels.values.ge(0).sum().item<int64_t>();
    batches.push_back({.inputs = tokens, .labels = labels});
  }
  return batches;
}

using Gradients = std::vector<std::pair<std::string, Tensor>>;

Gradients TakeGradients(StagedModel& model) {
  Gradients gradients;
  for (auto& item : model.named_parameters()) {
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
    gradients.emplace_back(item.key(), item.value().grad().clone());
    item.value().mutable_grad().reset();
  }
  return gradients;
}

void ExpectEqual(const Gradients& ours, const Gradients& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::equal(ours[i].second, theirs[i].second)) << ours[i].first;
  }
}

Gradients Train(StagedModel& model, const std::vector<Batch>& batches) {
  for (const Batch& batch : batches) {
    model.Losses(batch, LossFactors()).Backward(LossFactors());
  }
  return TakeGradients(model);
}

TEST(PairTrunkModelTest, TheEmbeddingIsTheSumOfItsTables) {
  const auto model = MakeModel(SpecOf("MaskedMsa"), torch::kFloat64);
  const torch::NoGradGuard no_grad;
  auto tables = model->named_parameters();
  const auto row = [&](const char* table, const Tensor& id) {
    return tables[absl::StrCat("embedder.", table, ".weight")][id.item<int64_t>()];
  };
  const Tensor tokens = torch::randint(0, 11, {kBatch, kSequences, kResidues}, torch::kInt64);
  const Stream stream = model->Embed({.inputs = tokens});
  ASSERT_EQ(stream.hidden.sizes(), at::IntArrayRef({kBatch, kSequences, kResidues, 12}));
  ASSERT_EQ(stream.pair.sizes(), at::IntArrayRef({kBatch, kResidues, kResidues, 8}));
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kResidues; ++i) {
      for (int64_t s = 0; s < kSequences; ++s) {
        const Tensor expected =
            row("residues", tokens[b][s][i]) + row("first_sequence", tokens[b][0][i]);
        EXPECT_TRUE(torch::allclose(stream.hidden[b][s][i], expected, 1e-12));
      }
      for (int64_t j = 0; j < kResidues; ++j) {
        const Tensor place = torch::tensor(std::clamp<int64_t>(i - j, -2, 2) + 2);
        const Tensor expected = row("left", tokens[b][0][i]) + row("right", tokens[b][0][j]) +
                                row("relative_positions", place);
        EXPECT_TRUE(torch::allclose(stream.pair[b][i][j], expected, 1e-12)) << i << ", " << j;
      }
    }
  }
}

TEST(PairTrunkModelTest, AnotherNumberOfSequencesIsRefused) {
  const auto model = MakeModel(SpecOf("MaskedMsa"));
  EXPECT_THAT(
      [&] {
        model->Forward(torch::zeros({1, 2, 4}, torch::kInt64));
      },
      ::testing::ThrowsMessage<c10::Error>(HasSubstr("residues of sizes [1, 2, 4] where")));
}

class PairTrunkTaskTest : public ::testing::TestWithParam<const char*> {
 protected:
  const ModelSpec spec_ = SpecOf(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Tasks, PairTrunkTaskTest, ::testing::Values("MaskedMsa", "Distogram"),
                         [](const auto& task) { return task.param; });

TEST_P(PairTrunkTaskTest, LogitsGiveTheLoss) {
  const auto model = MakeModel(spec_, torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (const Batch& batch : MicroBatches(spec_, 2)) {
    const Tensor each = torch::log_softmax(model->Forward(batch), -1);
    const Tensor& labels = batch.labels.values;
    ASSERT_EQ(each.sizes().slice(0, 3), labels.sizes());
    const Tensor chosen = each.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
    const BatchLoss loss = model->Losses(batch, LossFactors());
    EXPECT_TRUE(torch::allclose(loss.sum, -(chosen * labels.ge(0)).sum(), 1e-9));
  }
}

// What the task does not read of the last block gets zeros.
TEST_P(PairTrunkTaskTest, AllParametersHaveAGradient) {
  const auto model = MakeModel(spec_);
  const bool is_masked = spec_.task.kind == TaskKind::kMasked;
  for (const bool recompute : {false, true}) {
    model->set_recompute(recompute);
    for (const auto& [name, gradient] : Train(*model, MicroBatches(spec_, 1))) {
      const bool is_unread = is_masked && (name.starts_with("trunk.blocks.1.outer") ||
                                           name.starts_with("trunk.blocks.1.tri") ||
                                           name.starts_with("trunk.blocks.1.mlp_pair"));
      // This adds the same to all scores of a head.
      if (name.ends_with("layer_norm_z.bias")) continue;
      EXPECT_EQ(gradient.abs().sum().item<double>() == 0, is_unread) << name;
    }
  }
}

TEST_P(PairTrunkTaskTest, SchedulesChangeNoBit) {
  const auto model = MakeModel(spec_);
  const std::vector<Batch> batches = MicroBatches(spec_, 3);
  const Gradients plain = Train(*model, batches);
  model->set_recompute(true);
  ExpectEqual(Train(*model, batches), plain);
  model->set_recompute(false);
  ActivationsInPlace activations;
  ASSERT_OK(RunVertically(
      *model, batches, activations, [](int64_t, double) { return absl::OkStatus(); },
      LossFactors()));
  ExpectEqual(TakeGradients(*model), plain);
}

TEST_P(PairTrunkTaskTest, ParametersAreInTheOrderOfFirstUse) {
  const RoundShape round = {.sequence = kResidues, .on_cpu = true};
  ASSERT_OK_AND_ASSIGN(const NamedTrace made, TraceAllBlocks(spec_, round, {}));
  int32_t next = 0;
  for (int32_t position = 0; position < made.trace.num_positions(); ++position) {
    // An operator has a bias before its matrix.
    std::set<int32_t> used;
    for (const TensorUse& use : made.trace.uses_of(position)) used.insert(use.tensor);
    for (const int32_t tensor : used) {
      ASSERT_LE(tensor, next) << made.tensor_names[static_cast<size_t>(next)];
      next = std::max(next, tensor + 1);
    }
  }
  EXPECT_EQ(static_cast<size_t>(next), made.tensor_names.size());
}

}  // namespace
}  // namespace gemini::trainer
