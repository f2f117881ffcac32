// SPDX-License-Identifier: Apache-2.0
// Ranks of a pipeline compute what one process computes that has the whole model and runs the same
// micro-batches.
#include "trainer/parallel/pipeline_stage.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/mesh/mesh.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "tests/trainer/parallel/whole_values.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/model_of_ranks.h"

namespace gemini::trainer {
namespace {

using policies::PipelineSchedule;
using torch::Tensor;

constexpr int64_t kBlock = 1024;
constexpr int64_t kSequences = 2, kTokens = 16, kWidth = 64;

struct Family {
  const char* name;
  const char* json;
};

const Family kGpt2 = {
    "gpt2_tied", R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":4,
      "n_head":4,"n_inner":256,"resid_pdrop":0.1,"embd_pdrop":0.1,"attn_pdrop":0.1})"};
const Family kOpt = {"opt_projected",
                     R"({"model_type":"opt","vocab_size":301,"max_position_embeddings":16,
      "hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,"ffn_dim":256,"dropout":0.1,
      "word_embed_proj_dim":32,"do_layer_norm_before":false,"tie_word_embeddings":false})"};
// The first two blocks are dense.
const Family kMoe = {"qwen3_moe",
                     R"({"model_type":"qwen3_moe","vocab_size":301,"max_position_embeddings":16,
      "hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,
      "head_dim":16,"intermediate_size":96,"moe_intermediate_size":48,"num_experts":4,
      "num_experts_per_tok":2,"mlp_only_layers":[0,1],"output_router_logits":true,
      "router_aux_loss_coef":0.1,"tie_word_embeddings":false})"};

struct Case {
  Family family = kGpt2;
  int64_t ranks = 2;  // Of a pipeline.
  std::vector<int64_t> split = {2, 2};
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t micro_batches = 3;
  int64_t pipelines = 1;
  torch::ScalarType type = torch::kFloat32;
  bool recompute = false;
  UnitDivision division = UnitDivision::kReplicas;
  GradientSync sync = GradientSync::kEach;
  bool gather_ahead = false;

  policies::PipelineShape shape() const {
    return {.ranks = ranks,
            .chunks = static_cast<int64_t>(split.size()) / ranks,
            .micro_batches = micro_batches};
  }
  // Half the mean of all labels.
  LossFactors factors() const;
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrCat(
      c.family.name, "_", c.pipelines, "x", c.ranks, "x", c.split.size(), "_", c.micro_batches,
      c.schedule == PipelineSchedule::k1f1b ? "" : "_interleaved",
      c.type == torch::kFloat32 ? "_fp32" : "_bf16", c.recompute ? "_recomputed" : "",
      c.division == UnitDivision::kReplicas         ? "_replicas"
      : c.division == UnitDivision::kShardsAndWhole ? "_kept_whole"
                                                    : "_shards",
      c.sync == GradientSync::kLast ? "_added_last" : "", c.gather_ahead ? "_ahead" : "");
}

Tensor TokensOf(int64_t pipeline, int64_t micro_batch) {
  at::Generator generator = at::detail::createCPUGenerator(100 + 10 * pipeline + micro_batch);
  return torch::randint(0, 301, {kSequences, kTokens}, generator, torch::dtype(torch::kInt64));
}

// In each micro-batch of a pipeline one token less of each row is predicted.
Batch BatchOf(int64_t pipeline, int64_t micro_batch) {
  const Tensor tokens = TokensOf(pipeline, micro_batch);
  Batch batch = {tokens, {tokens.clone(), kSequences * (kTokens - 1 - micro_batch)}};
  batch.labels.values.slice(1, 0, micro_batch + 1).fill_(-1);
  return batch;
}

LossFactors Case::factors() const {
  int64_t num_labels = 0;
  for (int64_t i = 0; i < micro_batches; ++i) num_labels += pipelines * BatchOf(0, i).labels.count;
  return LossFactors::OfStep(0.5, num_labels, micro_batches * pipelines);
}

DropoutDraw DrawOf(const Case& c, int64_t pipeline, int64_t micro_batch) {
  return {.seed = 5, .step = 3, .micro_batch = pipeline * c.micro_batches + micro_batch};
}

struct Whole {
  std::map<std::string, Tensor> values;
  std::map<std::string, Tensor> gradients;      // Of all pipelines and micro-batches.
  std::vector<std::vector<LossValues>> losses;  // By pipeline and micro-batch.
  LossValues evaluated;
};

// In one process, one micro-batch after the other; of a tied table the head's gradients apart. Sums
// over pipelines are folded in fp32 and rounded once, of each micro-batch or of the sum of all.
Whole TrainWhole(const Case& c) {
  ModelSpec spec = ParseHfConfig(c.family.json, "config")->spec;
  const bool tied = std::exchange(spec.tied_head, false);
  const std::unique_ptr<StagedModel> model = *MakeStagedModel(spec, c.type);
  Whole whole;
  std::string table;
  const std::string head = absl::StrCat(spec.layers.head, ".weight");
  {
    const torch::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(7);
    for (const auto& parameter : model->named_parameters()) {
      Tensor value = parameter.value();
      if (table.empty()) table = parameter.key();  // It is the first.
      value.copy_(torch::randn(value.sizes(), generator) * 0.1);
      if (tied && parameter.key() == head) value.copy_(whole.values.at(table));
      whole.values[parameter.key()] = value.detach().clone();
    }
  }
  whole.losses.resize(static_cast<size_t>(c.pipelines));
  const int64_t together = c.sync == GradientSync::kLast ? c.micro_batches : 1;
  for (int64_t first = 0; first < c.micro_batches; first += together) {
    std::map<std::string, Tensor> sums;
    for (int64_t pipeline = 0; pipeline < c.pipelines; ++pipeline) {
      std::map<std::string, Tensor> own;
      for (int64_t i = first; i < first + together; ++i) {
        model->zero_grad();
        model->set_dropout_draw(DrawOf(c, pipeline, i));
        const Batch batch = BatchOf(pipeline, i);
        const BatchLoss loss = model->Losses(batch.inputs, batch.labels, c.factors());
        whole.losses[static_cast<size_t>(pipeline)].push_back(loss.Values());
        loss.Backward(c.factors());
        for (const auto& parameter : model->named_parameters()) {
          AddTo(own[parameter.key()], parameter.value().grad());
        }
      }
      for (const auto& [name, gradient] : own) AddTo(sums[name], gradient.to(torch::kFloat32));
    }
    for (const auto& [name, sum] : sums) AddTo(whole.gradients[name], sum.to(c.type));
  }
  if (tied) {
    const Tensor sum = whole.gradients.at(table).to(torch::kFloat32) +
                       whole.gradients.at(head).to(torch::kFloat32);
    whole.gradients[table] = sum.to(c.type);
  }
  model->eval();
  const torch::NoGradGuard no_grad;
  whole.evaluated = model->Losses(TokensOf(0, 0), LossFactors()).Values();
  return whole;
}

// How many bytes a rank has sent of hidden states, or of their gradients.
int64_t SentOf(const Communicator& me, const std::string& site) {
  int64_t bytes = 0;
  for (const SentBytes& sent : me.sent()) {
    if (sent.kind == CollectiveKind::kSend && sent.site == site) bytes += sent.bytes;
  }
  return bytes;
}

class PipelineStageTest : public ::testing::TestWithParam<Case> {
 protected:
  // By counting the blocks of the split: the i-th stage is the i-th rank's, and round again.
  static bool IsHere(size_t unit, const GatheredModel& model) {
    const Case& c = GetParam();
    const int64_t last = c.ranks - 1;
    if (unit == 0) {
      return model.place().rank == 0 || (model.spec().tied_head && model.place().rank == last);
    }
    int64_t left = static_cast<int64_t>(unit) - 1;
    for (size_t stage = 0; stage < c.split.size(); ++stage) {
      if (left < c.split[stage]) return static_cast<int64_t>(stage) % c.ranks == model.place().rank;
      left -= c.split[stage];
    }
    return model.place().rank == last;
  }
  void ExpectGradientsOf(const Whole& whole, const GatheredModel& model) {
    for (size_t u = 0; u < model.units().size(); ++u) {
      const GatheredUnit& unit = *model.units()[u];
      EXPECT_FALSE(unit.is_held()) << unit.name();
      EXPECT_EQ(!unit.parameters().empty(), IsHere(u, model)) << unit.name();
      for (size_t i = 0; i < unit.pieces().size(); ++i) {
        const ShardPiece& piece = unit.pieces()[i];
        const std::string& name = unit.tensors()[static_cast<size_t>(piece.tensor)].name;
        const Tensor gradient = unit.parameters()[i].grad();
        ASSERT_TRUE(gradient.defined()) << name;
        const Tensor expected =
            whole.gradients.at(name).flatten().narrow(0, piece.first, piece.count);
        EXPECT_TRUE(torch::equal(gradient.flatten(), expected)) << name;
      }
    }
  }
};

TEST_P(PipelineStageTest, LossAndGradientsHaveTheBitsOfTheWholeModel) {
  torch::set_num_threads(1);
  const Case& c = GetParam();
  const Whole whole = TrainWhole(c);
  const ModelSpec spec = ParseHfConfig(c.family.json, "config")->spec;
  const RankLayout layout(*policies::Mesh::Make(c.ranks * c.pipelines, {.pipeline = c.ranks}),
                          policies::TensorGrid());
  RunThreadRanks(c.ranks * c.pipelines, [&](Communicator& me) {
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredModel> model,
        MakeModelOfRank(spec, c.type, me, layout,
                        {.division = c.division, .sync = c.sync, .block_elements = kBlock},
                        ModelStages(c.ranks, c.split)));
    model->set_recompute(c.recompute);
    model->set_gather_ahead(c.gather_ahead);
    FillPieces(*model, whole.values);
    ASSERT_OK_AND_ASSIGN(const RankGroup* const line, me.MakeGroup("pipeline", layout.Pipelines()));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PipelineStage> stage,
                         PipelineStage::Make(*model, me, *line, c.schedule, c.micro_batches));
    const int64_t pipeline = layout.data(me.rank());
    std::vector<Batch> batches;
    for (int64_t i = 0; i < c.micro_batches; ++i) batches.push_back(BatchOf(pipeline, i));
    std::vector<double> checked;
    const auto draw_of = [&](int64_t i) { return DrawOf(c, pipeline, i); };
    const auto check = [&](int64_t, double loss) {
      checked.push_back(loss);
      return absl::OkStatus();
    };
    // A rehearsal leaves nothing, nor does one that is given up.
    me.set_silent(true);
    for (const bool is_given_up : {false, true}) {
      const auto draw_or_throw = [&](int64_t i) {
        if (is_given_up && i + 1 == c.micro_batches) throw std::runtime_error("given up");
        return draw_of(i);
      };
      try {
        EXPECT_OK(stage->Run({batches, c.factors(), draw_or_throw, check}));
        EXPECT_FALSE(is_given_up);
      } catch (const std::runtime_error&) {
        EXPECT_TRUE(is_given_up);
      }
      for (const Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
      model->Forget();
    }
    me.set_silent(false);
    // The second one finds nothing of the first.
    for (int step = 0; step < 2; ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step, ", rank ", me.rank()));
      checked.clear();
      for (const Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
      const int64_t sent = SentOf(me, "hidden states");
      const int64_t sent_back = SentOf(me, "gradients of hidden states");
      ASSERT_OK_AND_ASSIGN(const std::vector<LossValues> losses,
                           stage->Run({batches, c.factors(), draw_of, check}));
      const bool is_last = line->place == c.ranks - 1;
      ASSERT_EQ(losses.size(), is_last ? batches.size() : 0);
      ASSERT_EQ(checked.size(), losses.size());
      for (size_t i = 0; i < losses.size(); ++i) {
        const LossValues& expected = whole.losses[static_cast<size_t>(pipeline)][i];
        EXPECT_EQ(losses[i].total, expected.total);
        EXPECT_EQ(losses[i].labels, expected.labels);
        EXPECT_EQ(losses[i].router, expected.router);
        EXPECT_EQ(checked[i], expected.total);
      }
      ExpectGradientsOf(whole, *model);
      EXPECT_EQ(stage->run_tasks(), (*policies::PipelineLists(
                                        c.schedule, c.shape()))[static_cast<size_t>(line->place)]);
      const int64_t warm_up =
          c.schedule == PipelineSchedule::k1f1b
              ? c.ranks - line->place - 1
              : 2 * (c.ranks - line->place - 1) + (c.shape().chunks - 1) * c.ranks;
      EXPECT_EQ(stage->most_live(), std::min(warm_up + 1, c.micro_batches * c.shape().chunks));
      const int64_t hidden_bytes = kSequences * kTokens * kWidth *
                                   static_cast<int64_t>(c10::elementSize(c.type)) * c.micro_batches;
      // Two rows of four experts, behind the first block that has some.
      int64_t forward_bytes = 0, back_bytes = 0;
      for (int64_t chunk = 0; chunk < c.shape().chunks; ++chunk) {
        const int64_t number = model->place().stages.StageOf(line->place, chunk);
        const ModelStages::Blocks& blocks = model->place().stages.blocks(number);
        const auto sums_bytes = [&](int64_t boundary) {
          return spec.experts.has_value() && boundary > 2 ? c.micro_batches * 2 * 4 * 4 : 0;
        };
        const bool sends = number + 1 < model->place().stages.num_stages();
        if (sends) forward_bytes += hidden_bytes + sums_bytes(blocks.end);
        if (number > 0) back_bytes += hidden_bytes + sums_bytes(blocks.begin);
      }
      EXPECT_EQ(SentOf(me, "hidden states") - sent, forward_bytes);
      EXPECT_EQ(SentOf(me, "gradients of hidden states") - sent_back, back_bytes);
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    const Tensor batch = TokensOf(0, 0);
    for (int i = 0; i < 2; ++i) {
      // A short one between does not disturb the next.
      const LossValues evaluated = stage->Evaluate({batch, Labels::AllOf(batch)});
      if (line->place == c.ranks - 1) {
        EXPECT_EQ(evaluated.total, whole.evaluated.total);
      }
      const Tensor short_one = batch.narrow(0, 0, 1);
      stage->Evaluate({short_one, Labels::AllOf(short_one)});
    }
    for (const auto& unit : model->units()) EXPECT_FALSE(unit->is_held()) << unit->name();
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Family& family : {kGpt2, kOpt, kMoe}) {
    const Case plain = {.family = family};
    for (const int64_t micro_batches : {1, 3, 8}) {
      cases.push_back(plain);
      cases.back().micro_batches = micro_batches;
      cases.back().recompute = micro_batches == 3;
    }
    cases.push_back(plain);
    cases.back().split = {1, 3};
    cases.push_back(plain);
    cases.back().type = torch::kBFloat16;
    Case four = plain;
    four.ranks = 4;
    four.split = {1, 1, 1, 1};
    four.micro_batches = 4;
    cases.push_back(four);
    cases.push_back(four);
    cases.back().type = torch::kBFloat16;
    cases.back().micro_batches = 8;
    Case interleaved = plain;
    interleaved.schedule = PipelineSchedule::kInterleaved;
    interleaved.split = {1, 1, 1, 1};
    for (const int64_t micro_batches : {2, 4, 8}) {
      cases.push_back(interleaved);
      cases.back().micro_batches = micro_batches;
      cases.back().type = micro_batches == 4 ? torch::kBFloat16 : torch::kFloat32;
    }
    for (const UnitDivision division :
         {UnitDivision::kReplicas, UnitDivision::kShardsAndWhole, UnitDivision::kShards}) {
      Case twice = plain;
      twice.pipelines = 2;
      twice.division = division;
      cases.push_back(twice);
      cases.push_back(twice);
      cases.back().type = torch::kBFloat16;
      cases.back().recompute = true;
      cases.back().micro_batches = 2;
      cases.back().schedule = PipelineSchedule::kInterleaved;
      cases.back().split = {1, 1, 1, 1};
      if (division == UnitDivision::kShards) {
        cases.push_back(twice);
        cases.back().gather_ahead = true;
        cases.back().micro_batches = 4;
      } else {
        cases.push_back(twice);
        cases.back().sync = GradientSync::kLast;
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, PipelineStageTest, ::testing::ValuesIn(Cases()), NameOf);

TEST(PipelineStageScheduleTest, OneThatIsOnlyForetoldIsRefused) {
  RunThreadRanks(2, [](Communicator& me) {
    const RankLayout layout(*policies::Mesh::Make(2, {.pipeline = 2}), policies::TensorGrid());
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredModel> model,
        MakeModelOfRank(ParseHfConfig(kGpt2.json, "config")->spec, torch::kFloat32, me, layout,
                        {.division = UnitDivision::kReplicas, .block_elements = kBlock},
                        ModelStages(2, {2, 2})));
    ASSERT_OK_AND_ASSIGN(const RankGroup* const line, me.MakeGroup("pipeline", layout.Pipelines()));
    EXPECT_THAT(PipelineStage::Make(*model, me, *line, PipelineSchedule::kZbH1, 4).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("zb-h1 is only foretold")));
    EXPECT_THAT(PipelineStage::Make(*model, me, *line, PipelineSchedule::kInterleaved, 3).status(),
                StatusIs(absl::StatusCode::kInvalidArgument));
  });
}

// A rank by itself whose messages are not taken before it waits for them, as on a GPU that is far
// behind.
class LateSends final : public Communicator {
 public:
  using Communicator::Communicator;
  int64_t most_on_their_way() const { return most_on_their_way_; }

 protected:
  Work Issue(Operation operation) override {
    if (operation.kind == CollectiveKind::kReceive) {
      std::memset(operation.to, 0, static_cast<size_t>(operation.count));
    }
    if (operation.kind != CollectiveKind::kSend) return DoneWork(absl::OkStatus());
    most_on_their_way_ = std::max(most_on_their_way_, ++on_their_way_);
    return std::make_shared<LateWork>(on_their_way_);
  }
  absl::Status Prepare(const RankGroup& /*group*/) override { return absl::OkStatus(); }

 private:
  class LateWork final : public PendingWork {
   public:
    explicit LateWork(int64_t& on_their_way) : on_their_way_(on_their_way) {}
    absl::Status Wait() override {
      if (!std::exchange(is_taken_, true)) --on_their_way_;
      return absl::OkStatus();
    }
    bool Done() const override { return is_taken_; }

   private:
    int64_t& on_their_way_;
    bool is_taken_ = false;
  };
  int64_t on_their_way_ = 0;
  int64_t most_on_their_way_ = 0;
};

TEST(PipelineStageMemoryTest, WhatIsSentIsKeptForTwoRoundsOfTheStagesAtMost) {
  constexpr int64_t kMicroBatches = 16;
  const RankLayout layout(*policies::Mesh::Make(2, {.pipeline = 2}), policies::TensorGrid());
  for (const int64_t chunks : {1, 2}) {
    for (const int64_t rank : {0, 1}) {
      LateSends me(rank, 2);
      ASSERT_OK_AND_ASSIGN(
          const std::unique_ptr<GatheredModel> model,
          MakeModelOfRank(ParseHfConfig(kOpt.json, "config")->spec, torch::kFloat32, me, layout,
                          {.division = UnitDivision::kReplicas, .block_elements = kBlock},
                          chunks == 1 ? ModelStages(2, {2, 2}) : ModelStages(2, {1, 1, 1, 1})));
      {
        const torch::NoGradGuard no_grad;
        for (Tensor& parameter : model->parameters()) parameter.fill_(0.01);
      }
      ASSERT_OK_AND_ASSIGN(const RankGroup* const line,
                           me.MakeGroup("pipeline", layout.Pipelines()));
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PipelineStage> stage,
                           PipelineStage::Make(*model, me, *line,
                                               chunks == 1 ? PipelineSchedule::k1f1b
                                                           : PipelineSchedule::kInterleaved,
                                               kMicroBatches));
      const std::vector<Batch> batches(kMicroBatches, BatchOf(0, 0));
      EXPECT_OK(stage->Run({batches, LossFactors(), [](int64_t) { return DropoutDraw(); },
                            [](int64_t, double) { return absl::OkStatus(); }}));
      EXPECT_EQ(me.most_on_their_way(), 2 * 2 * chunks + 1);  // The last one is just being sent.
    }
  }
}

// What fails leaves no graph behind, nor anything that is held.
TEST(PipelineStageFailureTest, AStepThatFailedIsDropped) {
  RunThreadRanks(2, [](Communicator& me) {
    const RankLayout layout(*policies::Mesh::Make(2, {.pipeline = 2}), policies::TensorGrid());
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredModel> model,
        MakeModelOfRank(ParseHfConfig(kOpt.json, "config")->spec, torch::kFloat32, me, layout,
                        {.division = UnitDivision::kReplicas, .block_elements = kBlock},
                        ModelStages(2, {2, 2})));
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : model->parameters()) parameter.fill_(0.01);
    ASSERT_OK_AND_ASSIGN(const RankGroup* const line, me.MakeGroup("pipeline", layout.Pipelines()));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PipelineStage> stage,
                         PipelineStage::Make(*model, me, *line, PipelineSchedule::k1f1b, 1));
    if (me.rank() == 0) {  // Sends what the other needs, and no more.
      const auto hidden = std::make_shared<Tensor>(torch::ones({kSequences, kTokens, kWidth}));
      EXPECT_OK(
          Await(me.Send(*line, hidden->const_data_ptr(), static_cast<int64_t>(hidden->nbytes()),
                        /*to_place=*/1, /*tag=*/0, "hidden states"),
                hidden));
      return;
    }
    const auto num_uses = [&] {
      std::vector<size_t> uses;
      for (const Tensor& parameter : model->parameters()) {
        uses.push_back(parameter.storage().use_count());
      }
      return uses;
    };
    const std::vector<size_t> before = num_uses();
    const std::vector<Batch> batches = {BatchOf(0, 0)};
    EXPECT_THAT(stage
                    ->Run({batches, LossFactors(), [](int64_t) { return DropoutDraw(); },
                           [&](int64_t, double) {
                             EXPECT_NE(num_uses(), before);
                             return absl::OutOfRangeError("not finite");
                           }})
                    .status(),
                StatusIs(absl::StatusCode::kOutOfRange, "not finite"));
    EXPECT_EQ(num_uses(), before);
  });
}

}  // namespace
}  // namespace gemini::trainer
