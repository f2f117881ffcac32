// SPDX-License-Identifier: Apache-2.0
// Ranks that train a model in shards, each with a server, leases and plans of its own, take the
// steps of one process that has the whole model in plain memory, bit for bit.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/torch/training_fixture.h"
#include "tests/trainer/parallel/mpi_rank.h"
#include "tests/trainer/parallel/whole_values.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/rank_step_exchange.h"

namespace gemini::trainer {
namespace {

using client::OptimizerSpec;
using client::hooks::ReferenceAdamW;
using torch::Tensor;

constexpr int kSteps = 4;
constexpr int64_t kBlock = client::kNormBlockElements;
constexpr int64_t kSequences = 2, kTokens = 16;
constexpr int64_t kFewLabels = 6;  // Of a row.
constexpr double kClip = 0.05;     // Below the norm of each step.

struct Case {
  const char* name;
  const char* json;
  torch::ScalarType type;
  int64_t micro_batches;
  bool recompute;
  UnitDivision division = UnitDivision::kShards;
  GradientSync sync = GradientSync::kEach;
};

constexpr char kTied[] =
    R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":4,"n_head":4,
        "n_inner":256,"resid_pdrop":0.1,"embd_pdrop":0.1,"attn_pdrop":0.1})";
constexpr char kOpt[] =
    R"({"model_type":"opt","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,
        "num_hidden_layers":4,"num_attention_heads":4,"ffn_dim":256,"dropout":0.1,
        "tie_word_embeddings":false})";
constexpr Case kCases[] = {{"gpt2_fp32", kTied, torch::kFloat32, 1, false},
                           {"gpt2_recomputed_accumulated_fp32", kTied, torch::kFloat32, 3, true},
                           {"opt_accumulated_fp32", kOpt, torch::kFloat32, 3, false},
                           {"opt_recomputed_bf16", kOpt, torch::kBFloat16, 1, true},
                           {"gpt2_accumulated_bf16", kTied, torch::kBFloat16, 3, false},
                           {"gpt2_replicas_added_last_fp32", kTied, torch::kFloat32, 3, false,
                            UnitDivision::kReplicas, GradientSync::kLast},
                           {"opt_whole_added_last_bf16", kOpt, torch::kBFloat16, 3, true,
                            UnitDivision::kShardsAndWhole, GradientSync::kLast}};

class RanksTrainingTest : public client::hooks::TrainingTest,
                          public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    spec_ = ParseHfConfig(case_.json, "config")->spec;
    whole_ = *MakeStagedModel(spec_, case_.type);
    at::Generator generator = at::detail::createCPUGenerator(7);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : whole_->named_parameters()) {
      Tensor value = parameter.value();
      value.copy_(torch::randn(value.sizes(), generator) * 0.1);
      names_.push_back(parameter.key());
      values_[parameter.key()] = value.detach().clone();
    }
  }

  Tensor TokensOf(int64_t rank, int step, int64_t micro_batch) const {
    at::Generator generator = at::detail::createCPUGenerator(
        static_cast<uint64_t>(1000 * step + 10 * rank + micro_batch));
    return torch::randint(0, 301, {kSequences, kTokens}, generator, torch::dtype(torch::kInt64));
  }
  DropoutDraw DrawOf(int64_t rank, int step, int64_t micro_batch) const {
    return {.seed = 5, .step = step, .micro_batch = rank * case_.micro_batches + micro_batch};
  }
  // What a rank is to predict: one of them less than half of it.
  Labels LabelsOf(int64_t rank, const Tensor& tokens) const {
    Labels labels = Labels::AllOf(tokens);
    if (rank != me_.num_ranks() - 1) return labels;
    labels.values = tokens.clone();
    labels.values.slice(1, kFewLabels + 1).fill_(-1);
    labels.count = tokens.size(0) * kFewLabels;
    return labels;
  }
  // Those of the mean over all labels of the ranks' micro-batches.
  LossFactors factors() const {
    const int64_t rows = kSequences * case_.micro_batches;
    return LossFactors::OfStep(1, rows * ((me_.num_ranks() - 1) * (kTokens - 1) + kFewLabels),
                               me_.num_ranks() * case_.micro_batches);
  }

  // Gives the whole model the gradients of a step, folded as ranks do: of each micro-batch, or of a
  // rank's sum of them, over the ranks in fp32 and rounded once. Returns this rank's losses.
  std::vector<double> WholeBackward(int step) {
    std::vector<double> losses;
    std::map<std::string, Tensor> all;
    const int64_t together = case_.sync == GradientSync::kLast ? case_.micro_batches : 1;
    for (int64_t first = 0; first < case_.micro_batches; first += together) {
      std::map<std::string, Tensor> sums;
      for (int64_t rank = 0; rank < me_.num_ranks(); ++rank) {
        std::map<std::string, Tensor> own;
        for (int64_t i = first; i < first + together; ++i) {
          whole_->zero_grad();
          whole_->set_dropout_draw(DrawOf(rank, step, i));
          const Tensor tokens = TokensOf(rank, step, i);
          const BatchLoss loss = whole_->Losses(tokens, LabelsOf(rank, tokens), factors());
          if (rank == me_.rank()) losses.push_back(loss.Values().total);
          loss.Backward(factors());
          for (const auto& parameter : whole_->named_parameters()) {
            AddTo(own[parameter.key()], parameter.value().grad());
          }
        }
        for (const auto& [name, gradient] : own) AddTo(sums[name], gradient.to(torch::kFloat32));
      }
      for (const auto& [name, sum] : sums) AddTo(all[name], sum.to(case_.type));
    }
    for (const auto& parameter : whole_->named_parameters()) {
      Tensor value = parameter.value();
      value.mutable_grad() = all.at(parameter.key());
    }
    return losses;
  }
  double NormOfWhole() const {
    std::vector<double> squares;
    for (const Tensor& parameter : whole_->parameters()) {
      const Tensor gradient = parameter.grad().contiguous();
      client::AppendBlockSquares(*client::hooks::ElementTypeOf(gradient.scalar_type()),
                                 gradient.const_data_ptr(), gradient.numel(), squares);
    }
    return client::NormOf(squares);
  }

  const Case case_ = GetParam();
  Communicator& me_ = ThisRank();
  ModelSpec spec_;
  std::unique_ptr<StagedModel> whole_;
  std::vector<std::string> names_;  // In the order of the whole model's parameters.
  std::map<std::string, Tensor> values_;
};

TEST_P(RanksTrainingTest, TakeTheStepsOfOneProcess) {
  const OptimizerSpec optimizer = {.learning_rate = 0.01, .weight_decay = 0.1};
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<GatheredModel> model,
      GatheredModel::Make(
          spec_, case_.type, me_, me_.world(),
          {.division = case_.division, .sync = case_.sync, .block_elements = kBlock}));
  model->set_recompute(case_.recompute);
  FillPieces(*model, values_);
  std::vector<ShardCut> cuts;
  int64_t own_bytes = 0;
  for (const auto& unit : model->units()) {
    cuts.push_back(unit->cut());
    for (const Tensor& piece : unit->parameters()) {
      own_bytes += static_cast<int64_t>(piece.nbytes());
    }
  }
  client::hooks::TrainingOptions options = SmallOptions();
  // Some of it is the reference's, which adds a rank's micro-batches up apart.
  options.device_memory = (case_.sync == GradientSync::kLast ? 5 : 4) * kMiB;
  Open(options);
  client::hooks::ManagedModel* const managed = Manage(*model, optimizer);
  ASSERT_NE(managed, nullptr);
  RankStepExchange exchange(me_, cuts);
  ReferenceAdamW reference(whole_->parameters(), optimizer);

  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    const std::vector<double> losses = WholeBackward(step);
    const double norm = NormOfWhole();
    reference.Step(kClip);
    model->zero_grad();
    for (int64_t i = 0; i < case_.micro_batches; ++i) {
      model->set_dropout_draw(DrawOf(me_.rank(), step, i));
      model->set_last_micro_batch(i + 1 == case_.micro_batches);
      const Tensor tokens = TokensOf(me_.rank(), step, i);
      const BatchLoss loss = model->Losses(tokens, LabelsOf(me_.rank(), tokens), factors());
      EXPECT_EQ(loss.Values().total, losses[static_cast<size_t>(i)]);
      loss.Backward(factors());
      EvictAll();  // So that the next micro-batch finds nothing where it was.
    }
    ASSERT_OK(session_->status());
    ASSERT_OK_AND_ASSIGN(const client::StepResult result,
                         managed->Step({.max_grad_norm = kClip, .exchange = &exchange}));
    EXPECT_EQ(result.grad_norm, norm);
    EXPECT_LT(result.clip_coefficient, 1);
    model->NoteUpdate();
  }

  for (size_t u = 0; u < model->units().size(); ++u) {
    const GatheredUnit& unit = *model->units()[u];
    for (size_t i = 0; i < unit.pieces().size(); ++i) {
      const ShardPiece& piece = unit.pieces()[i];
      const std::string& name = unit.tensors()[static_cast<size_t>(piece.tensor)].name;
      const auto place = std::ranges::find(names_, name) - names_.begin();
      const ReferenceAdamW::State& expected = reference.states()[static_cast<size_t>(place)];
      const auto part = [&](const std::vector<float>& whole) {
        return std::vector<float>(whole.begin() + piece.first,
                                  whole.begin() + piece.first + piece.count);
      };
      const std::string own = PieceName(name, piece);
      EXPECT_TRUE(ReadAll(*managed, own) == part(expected.values)) << name;
      EXPECT_TRUE(ReadAll(*managed, own, ChunkKind::kExpAvg) == part(expected.exp_avg)) << name;
      EXPECT_TRUE(ReadAll(*managed, own, ChunkKind::kExpAvgSq) == part(expected.exp_avg_sq))
          << name;
    }
  }
  // The shards moved, each step anew.
  EXPECT_GE(session_->stats().fetch_bytes, kSteps * own_bytes);
}

INSTANTIATE_TEST_SUITE_P(Cases, RanksTrainingTest, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace gemini::trainer
