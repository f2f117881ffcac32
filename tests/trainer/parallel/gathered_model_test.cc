// SPDX-License-Identifier: Apache-2.0
// Models in shards compute what one rank computes that has the whole, and adds in the same order.
#include "trainer/parallel/gathered_model.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "tests/trainer/parallel/whole_values.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/activation_store.h"
#include "trainer/models/vertical_schedule.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;

constexpr int64_t kBlock = 1024;
constexpr int64_t kSequences = 2, kTokens = 16;

struct Family {
  const char* name;
  const char* json;
};

const Family kFamilies[] = {
    {"gpt2_tied", R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":3,
      "n_head":4,"n_inner":256,"resid_pdrop":0.1,"embd_pdrop":0.1,"attn_pdrop":0.1})"},
    {"gpt2", R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":2,
      "n_head":4,"n_inner":256,"tie_word_embeddings":false,"resid_pdrop":0.1})"},
    {"opt_projected", R"({"model_type":"opt","vocab_size":301,"max_position_embeddings":16,
      "hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"ffn_dim":256,"dropout":0.1,
      "word_embed_proj_dim":32,"do_layer_norm_before":false})"},
    {"qwen2_moe", R"({"model_type":"qwen2_moe","vocab_size":301,"max_position_embeddings":16,
      "hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
      "intermediate_size":96,"moe_intermediate_size":48,"shared_expert_intermediate_size":64,
      "num_experts":4,"num_experts_per_tok":2,"output_router_logits":true,
      "router_aux_loss_coef":0.1})"},
    {"bert", R"({"model_type":"bert","vocab_size":301,"max_position_embeddings":16,
      "hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":256})"},
};

// Half the mean loss of a micro-batch.
const LossFactors kFactors = LossFactors::OfStep(0.5, kSequences*(kTokens - 1), 1);

struct Case {
  Family family;
  int num_ranks;
  torch::ScalarType type;
  bool recompute;
  int micro_batches;
  UnitDivision division = UnitDivision::kShards;
  GradientSync sync = GradientSync::kEach;
  bool gather_ahead = false;
  bool vertical = false;

  UnitOptions options() const {
    return {.division = division, .sync = sync, .block_elements = kBlock};
  }
};

UnitOptions OptionsOf(UnitDivision division, GradientSync sync = GradientSync::kEach) {
  return {.division = division, .sync = sync, .block_elements = kBlock};
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::string(c.family.name) + "_" + std::to_string(c.num_ranks) + "_" +
         (c.type == torch::kFloat32 ? "fp32" : "bf16") + (c.recompute ? "_recomputed" : "") + "_" +
         std::to_string(c.micro_batches) +
         (c.division == UnitDivision::kReplicas         ? "_replicas"
          : c.division == UnitDivision::kShardsAndWhole ? "_kept_whole"
                                                        : "") +
         (c.sync == GradientSync::kLast ? "_added_last" : "") + (c.gather_ahead ? "_ahead" : "") +
         (c.vertical ? "_vertical" : "");
}

ModelSpec SpecOf(const char* json) { return ParseHfConfig(json, "config")->spec; }

// The whole model of one rank.
std::unique_ptr<StagedModel> MakeWhole(const ModelSpec& spec, torch::ScalarType type) {
  std::unique_ptr<StagedModel> model = *MakeStagedModel(spec, type);
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(7);
  for (Tensor& parameter : model->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes(), generator) * 0.1);
  }
  return model;
}

// What a rank learns from in its i-th micro-batch.
Tensor TokensOf(int64_t rank, int64_t micro_batch) {
  at::Generator generator = at::detail::createCPUGenerator(100 + 10 * rank + micro_batch);
  return torch::randint(0, 301, {kSequences, kTokens}, generator, torch::dtype(torch::kInt64));
}

DropoutDraw DrawOf(const Case& c, int64_t rank, int64_t micro_batch) {
  return {.seed = 5, .step = 3, .micro_batch = rank * c.micro_batches + micro_batch};
}

// Block by block, for all micro-batches of a rank.
absl::StatusOr<std::vector<LossValues>> TrainVertically(const Case& c, StagedModel& model,
                                                        int64_t rank) {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < c.micro_batches; ++i) {
    const Tensor tokens = TokensOf(rank, i);
    batches.push_back({tokens, Labels::AllOf(tokens)});
  }
  model.set_dropout_draw(DrawOf(c, rank, 0));
  ActivationsInPlace activations;
  return RunVertically(
      model, batches, activations, [](int64_t, double) { return absl::OkStatus(); }, kFactors);
}

struct Whole {
  std::map<std::string, Tensor> values;
  std::map<std::string, Tensor> gradients;  // Of all ranks and micro-batches.
  std::vector<std::vector<double>> losses;  // By rank and micro-batch.
  Tensor logits;
};

// One rank after the other, with a graph each; sums are folded as ranks do: in fp32 and rounded
// once, of each micro-batch or of the sum of all.
Whole TrainWhole(const Case& c) {
  const std::unique_ptr<StagedModel> model = MakeWhole(SpecOf(c.family.json), c.type);
  Whole whole;
  for (const auto& parameter : model->named_parameters()) {
    whole.values[parameter.key()] = parameter.value().detach().clone();
  }
  whole.losses.resize(static_cast<size_t>(c.num_ranks));
  const int64_t together = c.sync == GradientSync::kLast ? c.micro_batches : 1;
  for (int64_t first = 0; first < c.micro_batches; first += together) {
    std::map<std::string, Tensor> sums;
    for (int64_t rank = 0; rank < c.num_ranks; ++rank) {
      std::map<std::string, Tensor> own;
      const bool by_stages = c.vertical && together > 1;
      if (by_stages) {
        model->zero_grad();
        const std::vector<LossValues> losses = *TrainVertically(c, *model, rank);
        for (const LossValues& loss : losses) {
          whole.losses[static_cast<size_t>(rank)].push_back(loss.total);
        }
        for (const auto& parameter : model->named_parameters()) {
          own[parameter.key()] = parameter.value().grad();
        }
      }
      for (int64_t i = first; !by_stages && i < first + together; ++i) {
        model->zero_grad();
        model->set_dropout_draw(DrawOf(c, rank, i));
        const BatchLoss loss = model->Losses(TokensOf(rank, i), kFactors);
        whole.losses[static_cast<size_t>(rank)].push_back(loss.Values().total);
        loss.Backward(kFactors);
        for (const auto& parameter : model->named_parameters()) {
          AddTo(own[parameter.key()], parameter.value().grad());
        }
      }
      for (const auto& [name, gradient] : own) AddTo(sums[name], gradient.to(torch::kFloat32));
    }
    for (const auto& [name, sum] : sums) AddTo(whole.gradients[name], sum.to(c.type));
  }
  model->eval();
  const torch::NoGradGuard no_grad;
  whole.logits = model->Forward(TokensOf(0, 0));
  return whole;
}

// Runs what a step does without other ranks, and then one that is given up in its middle, and drops
// it all.
void Rehearse(GatheredModel& model, Communicator& me) {
  me.set_silent(true);
  model.Losses(TokensOf(me.rank(), 0), kFactors).Backward(kFactors);
  model.zero_grad();
  model.Forget();
  model.set_last_micro_batch(false);
  model.Losses(TokensOf(me.rank(), 0), kFactors).Backward(kFactors);
  model.Losses(TokensOf(me.rank(), 1), kFactors);
  model.zero_grad();
  model.Forget();
  model.set_last_micro_batch(true);
  me.set_silent(false);
}

class GatheredModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(GatheredModelTest, LossAndGradientsHaveTheBitsOfTheWholeModel) {
  torch::set_num_threads(1);
  const Case& c = GetParam();
  const Whole whole = TrainWhole(c);
  RunThreadRanks(c.num_ranks, [&](Communicator& me) {
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredModel> model,
        GatheredModel::Make(SpecOf(c.family.json), c.type, me, me.world(), c.options()));
    model->set_recompute(c.recompute);
    model->set_gather_ahead(c.gather_ahead);
    FillPieces(*model, whole.values);
    if (me.rank() % 2 == 1) Rehearse(*model, me);  // Which the others do not notice.
    if (c.vertical) {
      ASSERT_OK_AND_ASSIGN(const std::vector<LossValues> losses,
                           TrainVertically(c, *model, me.rank()));
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_EQ(losses[i].total, whole.losses[static_cast<size_t>(me.rank())][i]);
      }
      for (const auto& unit : model->units()) EXPECT_FALSE(unit->is_held()) << unit->name();
    }
    for (int64_t i = 0; !c.vertical && i < c.micro_batches; ++i) {
      model->set_dropout_draw(DrawOf(c, me.rank(), i));
      const BatchLoss loss = model->Losses(TokensOf(me.rank(), i), kFactors);
      EXPECT_EQ(loss.Values().total,
                whole.losses[static_cast<size_t>(me.rank())][static_cast<size_t>(i)]);
      for (size_t u = 0; u + 1 < model->units().size(); ++u) {
        EXPECT_FALSE(model->units()[u]->is_held()) << u;
      }
      model->set_last_micro_batch(i + 1 == c.micro_batches);
      loss.Backward(kFactors);
      for (const auto& unit : model->units()) EXPECT_FALSE(unit->is_held()) << unit->name();
    }
    for (const auto& unit : model->units()) {
      for (size_t i = 0; i < unit->pieces().size(); ++i) {
        const ShardPiece& piece = unit->pieces()[i];
        const std::string& name = unit->tensors()[static_cast<size_t>(piece.tensor)].name;
        const Tensor expected =
            whole.gradients.at(name).flatten().narrow(0, piece.first, piece.count);
        const Tensor gradient = unit->parameters()[i].grad();
        ASSERT_TRUE(gradient.defined()) << name;
        // Of a tied table the head's gradients of all micro-batches come first.
        const bool reordered = c.vertical && c.sync == GradientSync::kEach &&
                               model->spec().tied_head && unit == model->units().front() &&
                               whole.values.at(name).size(0) == 301;
        if (reordered) {
          EXPECT_TRUE(torch::allclose(gradient.flatten(), expected, 1e-4, 1e-5)) << name;
        } else {
          EXPECT_TRUE(torch::equal(gradient.flatten(), expected)) << name;
        }
        // It decays as its tensor does.
        EXPECT_EQ(gradient.dim() > 1, whole.values.at(name).dim() > 1) << name;
        // Its own memory, which can leave by itself.
        EXPECT_EQ(gradient.storage().nbytes(), gradient.nbytes());
      }
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(model->Forward(TokensOf(0, 0)), whole.logits));
    for (const auto& unit : model->units()) EXPECT_FALSE(unit->is_held()) << unit->name();
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Family& family : kFamilies) {
    for (const int num_ranks : {1, 2, 3, 8}) {
      for (const bool recompute : {false, true}) {
        cases.push_back({family, num_ranks, torch::kFloat32, recompute, 1 + num_ranks % 2});
      }
    }
    cases.push_back({family, 4, torch::kBFloat16, true, 3});
    for (const bool recompute : {false, true}) {
      cases.push_back({.family = family,
                       .num_ranks = 3,
                       .type = torch::kFloat32,
                       .recompute = recompute,
                       .micro_batches = 2,
                       .gather_ahead = true});
    }
    const Case vertical = {.family = family,
                           .num_ranks = 3,
                           .type = torch::kFloat32,
                           .recompute = false,
                           .micro_batches = 3,
                           .vertical = true};
    cases.push_back(vertical);
    cases.push_back(vertical);
    cases.back().gather_ahead = true;
    cases.push_back(vertical);
    cases.back().micro_batches = 1;
    for (const UnitDivision division : {UnitDivision::kReplicas, UnitDivision::kShardsAndWhole}) {
      cases.push_back(vertical);
      cases.back().division = division;
      cases.back().sync = GradientSync::kLast;
    }
    cases.push_back({family, 3, torch::kFloat32, true, 2, UnitDivision::kReplicas});
    cases.push_back({family, 4, torch::kBFloat16, false, 3, UnitDivision::kReplicas});
    cases.push_back({family, 3, torch::kFloat32, true, 2, UnitDivision::kShardsAndWhole});
    cases.push_back({family, 4, torch::kBFloat16, false, 3, UnitDivision::kShardsAndWhole});
    for (const UnitDivision division : {UnitDivision::kReplicas, UnitDivision::kShardsAndWhole}) {
      cases.push_back({family, 3, torch::kFloat32, true, 2, division, GradientSync::kLast});
      cases.push_back({family, 4, torch::kBFloat16, false, 3, division, GradientSync::kLast});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, GatheredModelTest, ::testing::ValuesIn(Cases()), NameOf);

// The mean of the micro-batches' means is another one: of the last rank, labels are few.
TEST(GatheredModelLossTest, IsTheMeanOverAllLabelsOfAStep) {
  constexpr int kRanks = 3;
  const auto labels_of = [](int64_t rank, int64_t micro_batch) {
    const Tensor tokens = TokensOf(rank, micro_batch);
    if (rank + 1 < kRanks) return Labels::AllOf(tokens);
    Labels few = {tokens.clone(), micro_batch};  // None at all in the first.
    few.values.fill_(-1);
    few.values[0].slice(0, 1, 1 + few.count) = tokens[0].slice(0, 1, 1 + few.count);
    return few;
  };
  for (const Family& family : {kFamilies[0], kFamilies[3]}) {
    const Case c = {family, kRanks, torch::kFloat32, false, 2};
    int64_t num_labels = 0;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      for (int64_t i = 0; i < 2; ++i) num_labels += labels_of(rank, i).count;
    }
    const LossFactors factors = LossFactors::OfStep(1, num_labels, 2 * kRanks);
    // One graph of all of them.
    const std::unique_ptr<StagedModel> whole = MakeWhole(SpecOf(family.json), c.type);
    std::map<std::string, Tensor> values;
    Tensor cross_entropy, router;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      for (int64_t i = 0; i < 2; ++i) {
        whole->set_dropout_draw(DrawOf(c, rank, i));
        const BatchLoss loss = whole->Losses(TokensOf(rank, i), labels_of(rank, i), factors);
        AddTo(cross_entropy, loss.sum);
        if (loss.router.defined()) AddTo(router, loss.router_coefficient * loss.router);
      }
    }
    Tensor mean = cross_entropy / static_cast<double>(num_labels);
    if (router.defined()) mean = mean + router / static_cast<double>(2 * kRanks);
    mean.backward();
    std::map<std::string, Tensor> gradients;
    for (const auto& parameter : whole->named_parameters()) {
      values[parameter.key()] = parameter.value().detach();
      gradients[parameter.key()] = parameter.value().grad();
    }
    RunThreadRanks(kRanks, [&](Communicator& me) {
      ASSERT_OK_AND_ASSIGN(
          const std::unique_ptr<GatheredModel> model,
          GatheredModel::Make(SpecOf(family.json), c.type, me, me.world(), c.options()));
      FillPieces(*model, values);
      for (int64_t i = 0; i < 2; ++i) {
        model->set_dropout_draw(DrawOf(c, me.rank(), i));
        model->Losses(TokensOf(me.rank(), i), labels_of(me.rank(), i), factors).Backward(factors);
      }
      for (const auto& unit : model->units()) {
        for (size_t i = 0; i < unit->pieces().size(); ++i) {
          const ShardPiece& piece = unit->pieces()[i];
          const std::string& name = unit->tensors()[static_cast<size_t>(piece.tensor)].name;
          EXPECT_TRUE(torch::allclose(
              unit->parameters()[i].grad().flatten(),
              gradients.at(name).flatten().narrow(0, piece.first, piece.count), 1e-4, 1e-6))
              << name;
        }
      }
    });
  }
}

// By parts of the padded units, for each other rank: a block is gathered for forward and backward
// and its gradients are summed; embeddings are not needed in backward, and the head stays.
TEST(GatheredModelBytesTest, AreThoseOfTheFormula) {
  for (const Family& family : {kFamilies[0], kFamilies[1]}) {
    for (const auto& [recompute, ahead] :
         {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      RunThreadRanks(4, [&](Communicator& me) {
        const ModelSpec spec = SpecOf(family.json);
        ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GatheredModel> model,
                             GatheredModel::Make(spec, torch::kFloat32, me, me.world(),
                                                 OptionsOf(UnitDivision::kShards)));
        model->set_recompute(recompute);
        model->set_gather_ahead(ahead);
        FillPieces(*model, TrainWhole({family, 1, torch::kFloat32, false, 1}).values);
        const BatchLoss loss = model->Losses(TokensOf(me.rank(), 0), kFactors);
        loss.Backward(kFactors);
        std::map<std::string, int64_t> sent;
        for (const SentBytes& one : me.sent()) sent[one.site] += one.bytes;
        const size_t last = model->units().size() - 1;
        for (size_t u = 0; u <= last; ++u) {
          const GatheredUnit& unit = *model->units()[u];
          const int64_t part = 3 * 4 * unit.cut().part_elements();
          const bool is_block = u > 0 && u < last;
          const int64_t gathers = is_block || (u == 0 && spec.tied_head) ? 2 : 1;
          EXPECT_EQ(sent["gather " + unit.name()], gathers * part) << unit.name();
          EXPECT_EQ(sent["gradients of " + unit.name()], part) << unit.name();
        }
      });
    }
  }
}

// Gradients go around twice, and nothing else goes.
TEST(GatheredModelBytesTest, OfReplicasAreThoseOfGradientsAlone) {
  RunThreadRanks(4, [&](Communicator& me) {
    const Family& family = kFamilies[0];
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GatheredModel> model,
                         GatheredModel::Make(SpecOf(family.json), torch::kFloat32, me, me.world(),
                                             OptionsOf(UnitDivision::kReplicas)));
    FillPieces(*model, TrainWhole({family, 1, torch::kFloat32, false, 1}).values);
    model->Losses(TokensOf(me.rank(), 0), kFactors).Backward(kFactors);
    std::map<std::string, int64_t> sent;
    for (const SentBytes& one : me.sent()) sent[one.site] += one.bytes;
    for (const auto& unit : model->units()) {
      EXPECT_EQ(sent.count("gather " + unit->name()), 0);
      EXPECT_EQ(sent["gradients of " + unit->name()], 2 * 3 * unit->cut().num_elements() / 4 * 4);
    }
  });
}

// A unit is gathered once for each update, whatever its micro-batches.
TEST(GatheredModelBytesTest, OfWhatIsKeptWholeAreOneGatherAndTheSums) {
  RunThreadRanks(4, [&](Communicator& me) {
    const Family& family = kFamilies[0];
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GatheredModel> model,
                         GatheredModel::Make(SpecOf(family.json), torch::kFloat32, me, me.world(),
                                             OptionsOf(UnitDivision::kShardsAndWhole)));
    FillPieces(*model, TrainWhole({family, 1, torch::kFloat32, false, 1}).values);
    for (int64_t step = 1; step <= 2; ++step) {
      model->NoteUpdate();
      for (int64_t i = 0; i < 3; ++i)
        model->Losses(TokensOf(me.rank(), i), kFactors).Backward(kFactors);
      std::map<std::string, int64_t> sent;
      for (const SentBytes& one : me.sent()) sent[one.site] += one.bytes;
      for (const auto& unit : model->units()) {
        const int64_t part = 3 * 4 * unit->cut().part_elements();
        EXPECT_EQ(sent["gather " + unit->name()], step * part);
        EXPECT_EQ(sent["gradients of " + unit->name()], 3 * step * part);
      }
    }
  });
}

// Gradients that are added once a step go around once, whatever its micro-batches.
TEST(GatheredModelBytesTest, OfSumsOnceAStepAreThoseOfOneMicroBatch) {
  for (const UnitDivision division : {UnitDivision::kReplicas, UnitDivision::kShardsAndWhole}) {
    RunThreadRanks(4, [&](Communicator& me) {
      const Family& family = kFamilies[0];
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GatheredModel> model,
                           GatheredModel::Make(SpecOf(family.json), torch::kFloat32, me, me.world(),
                                               OptionsOf(division, GradientSync::kLast)));
      FillPieces(*model, TrainWhole({family, 1, torch::kFloat32, false, 1}).values);
      for (int64_t i = 0; i < 3; ++i) {
        model->set_last_micro_batch(i == 2);
        model->Losses(TokensOf(me.rank(), i), kFactors).Backward(kFactors);
      }
      std::map<std::string, int64_t> sent;
      for (const SentBytes& one : me.sent()) sent[one.site] += one.bytes;
      const bool has_parts = division == UnitDivision::kShardsAndWhole;
      for (const auto& unit : model->units()) {
        const int64_t part =
            3 * 4 * (has_parts ? unit->cut().part_elements() : unit->cut().num_elements() / 4);
        EXPECT_EQ(sent["gather " + unit->name()], has_parts ? part : 0);
        EXPECT_EQ(sent["gradients of " + unit->name()], has_parts ? part : 2 * part);
      }
    });
  }
}

// A pass gathers once for all micro-batches. A tied table's look-ups and heads are added apart.
TEST(GatheredModelBytesTest, OfTheVerticalScheduleAreTwoGathersAndTheSums) {
  for (const Family& family : kFamilies) {
    for (const bool ahead : {false, true}) {
      RunThreadRanks(4, [&](Communicator& me) {
        const ModelSpec spec = SpecOf(family.json);
        const Case c = {.family = family,
                        .num_ranks = 4,
                        .type = torch::kFloat32,
                        .recompute = false,
                        .micro_batches = 3,
                        .vertical = true};
        ASSERT_OK_AND_ASSIGN(
            const std::unique_ptr<GatheredModel> model,
            GatheredModel::Make(spec, torch::kFloat32, me, me.world(), c.options()));
        model->set_gather_ahead(ahead);
        FillPieces(*model, TrainWhole({family, 1, torch::kFloat32, false, 1}).values);
        ASSERT_OK(TrainVertically(c, *model, me.rank()));
        std::map<std::string, int64_t> sent;
        for (const SentBytes& one : me.sent()) sent[one.site] += one.bytes;
        for (size_t u = 0; u < model->units().size(); ++u) {
          const GatheredUnit& unit = *model->units()[u];
          const int64_t part = 3 * 4 * unit.cut().part_elements();
          int64_t gathers = u > 0 && u <= model->blocks().size() ? 2 : 1;
          int64_t sums = 3;
          if (u == 0 && spec.tied_head) {
            ++gathers;
            sums += 3;
          }
          if (u == 0 && spec.embeddings_need_values()) gathers += 3;  // Backward of each look-up.
          EXPECT_EQ(sent["gather " + unit.name()], gathers * part) << unit.name();
          EXPECT_EQ(sent["gradients of " + unit.name()], sums * part) << unit.name();
        }
      });
    }
  }
}

// As behind a loss that is not learned from: what it held is older than the update that follows.
TEST(GatheredModelForwardTest, OneWithoutABackwardLeavesNothingOldBehind) {
  torch::set_num_threads(1);
  for (const Case& c :
       {Case{kFamilies[0], 2, torch::kFloat32, false, 1},
        Case{kFamilies[1], 2, torch::kFloat32, false, 1},
        Case{kFamilies[1], 2, torch::kFloat32, false, 1, UnitDivision::kReplicas},
        Case{kFamilies[1], 2, torch::kFloat32, false, 1, UnitDivision::kShardsAndWhole},
        Case{.family = kFamilies[0],
        .num_ranks = 2,
        .type = torch::kFloat32,
        .recompute = false,
        .micro_batches = 1,
        .gather_ahead = true},
        Case{.family = kFamilies[1],
        .num_ranks = 2,
        .type = torch::kFloat32,
        .recompute = true,
        .micro_batches = 1,
        .gather_ahead = true}}) {
    const Family& family = c.family;
    const Whole whole = TrainWhole(c);
    std::map<std::string, Tensor> updated;
    for (const auto& [name, value] : whole.values) updated[name] = value * 2;
    RunThreadRanks(2, [&](Communicator& me) {
      const auto make = [&] {
        std::unique_ptr<GatheredModel> made =
            *GatheredModel::Make(SpecOf(family.json), c.type, me, me.world(), c.options());
        made->set_gather_ahead(c.gather_ahead);
        made->set_recompute(c.recompute);
        return made;
      };
      const auto loss_of = [&](GatheredModel& model) {
        model.set_dropout_draw(DrawOf(c, me.rank(), 0));
        return model.Losses(TokensOf(me.rank(), 0), kFactors);
      };
      const std::unique_ptr<GatheredModel> model = make(), fresh = make();
      FillPieces(*model, whole.values);
      const BatchLoss left = loss_of(*model);
      FillPieces(*model, updated);
      model->NoteUpdate();
      FillPieces(*fresh, updated);
      const BatchLoss next = loss_of(*model);
      EXPECT_EQ(next.Values().total, loss_of(*fresh).Values().total);
      next.Backward(kFactors);
      EXPECT_THROW(left.Backward(kFactors), c10::Error);
    });
  }
}

}  // namespace
}  // namespace gemini::trainer
