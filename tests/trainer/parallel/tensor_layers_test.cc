// SPDX-License-Identifier: Apache-2.0
// Ranks that share each layer compute what one rank computes that has all of them.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/skipping_communicator.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/transformer.h"
#include "trainer/parallel/tensor_layers_1d.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using torch::Tensor;

constexpr int64_t kSequences = 8, kTokens = 16, kVocabulary = 301;

struct Family {
  const char* name;
  const char* json;
};

// A decoder whose type is `type`, of 4 heads and 2 of keys and values; it ends without a brace.
#define DECODER(type)                                                                              \
  R"({"model_type":")" type R"(","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,)" \
  R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,)"        \
  R"("intermediate_size":256,"attention_dropout":0.1)"

const Family kFamilies[] = {
    {"gpt2_tied", R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":4,
      "n_head":4,"n_inner":256,"resid_pdrop":0.1,"embd_pdrop":0.1,"attn_pdrop":0.1})"},
    {"gpt2", R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":4,
      "n_head":4,"n_inner":256,"tie_word_embeddings":false,"attn_pdrop":0.1})"},
    {"opt", R"({"model_type":"opt","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,
      "num_hidden_layers":4,"num_attention_heads":4,"ffn_dim":256,"dropout":0.1,
      "attention_dropout":0.1,"word_embed_proj_dim":64,"do_layer_norm_before":true})"},
    {"opt_projected", R"({"model_type":"opt","vocab_size":301,"max_position_embeddings":16,
      "hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"ffn_dim":256,
      "word_embed_proj_dim":32,"do_layer_norm_before":false,"dropout":0.1})"},
    {"llama", DECODER("llama") R"(,"pad_token_id":3})"},
    {"llama_tied", DECODER("llama") R"(,"tie_word_embeddings":true})"},
    {"mistral", DECODER("mistral") R"(,"sliding_window":5})"},
    {"qwen2", DECODER("qwen2") "}"},
    {"qwen3", DECODER("qwen3") R"(,"tie_word_embeddings":true})"},
    {"gemma", DECODER("gemma") "}"},
    {"gemma2", DECODER("gemma2") R"(,"sliding_window":5,"query_pre_attn_scalar":16,
      "attn_logit_softcapping":2.0,"final_logit_softcapping":3.0})"},
    {"gemma3_text", DECODER("gemma3_text") R"(,"sliding_window":5,"tie_word_embeddings":true})"},
    {"cohere", DECODER("cohere") R"(,"use_qk_norm":true,"logit_scale":0.25})"},
    {"gpt_neox", R"({"model_type":"gpt_neox","vocab_size":301,"max_position_embeddings":16,
      "hidden_size":64,"intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":4,
      "hidden_dropout":0.1})"},
    {"mixtral", DECODER("mixtral") R"(,"num_local_experts":4,"num_experts_per_tok":2})"},
    {"qwen2_moe", DECODER("qwen2_moe") R"(,"moe_intermediate_size":48,"num_experts":4,
      "shared_expert_intermediate_size":64,"num_experts_per_tok":2,"output_router_logits":true,
      "router_aux_loss_coef":0.1})"},
    {"qwen3_moe", DECODER("qwen3_moe") R"(,"num_experts":4,"num_experts_per_tok":2,
      "moe_intermediate_size":64})"},
};
// One matrix for query, key and value, and one for the gate and what it multiplies.
const Family kPhi3 = {"phi3", DECODER("phi3") R"(,"original_max_position_embeddings":16,
      "pad_token_id":0})"};

Family FamilyOf(const std::string& name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
  }
  return {};
}

struct Case {
  Family family;
  int num_ranks;
  torch::ScalarType type = torch::kFloat64;
  bool recompute = false;
  bool parts = false;  // Of sequences, between layers.

  // Of losses, and of each gradient beside its tensor's largest value.
  double tolerance() const { return type == torch::kFloat64 ? 1e-12 : 2e-5; }
  ModelSpec spec() const { return ParseHfConfig(family.json, "config")->spec; }
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::string(c.family.name) + "_" + std::to_string(c.num_ranks) + "_" +
         (c.type == torch::kFloat64 ? "fp64" : "fp32") + (c.recompute ? "_recomputed" : "") +
         (c.parts ? "_in_parts" : "");
}

Tensor Tokens() {
  at::Generator generator = at::detail::createCPUGenerator(100);
  return torch::randint(0, kVocabulary, {kSequences, kTokens}, generator, torch::kInt64);
}

// Some are not to be predicted.
Labels LabelsOf(const Tensor& tokens) {
  Labels labels = {tokens.clone(), 0};
  labels.ids[2].slice(0, 3, 9) = -1;
  labels.ids[5].fill_(-1);
  labels.count = labels.ids.slice(1, 1).ge(0).sum().item<int64_t>();
  return labels;
}

constexpr DropoutDraw kDraw = {.seed = 5, .step = 3, .micro_batch = 2};

struct Results {
  LossValues loss;
  Tensor logits;
  std::map<std::string, Tensor> values;
  std::map<std::string, Tensor> gradients;
};

// A step's forward and backward, and the logits of an evaluation.
Results Train(CausalLm& model, bool recompute) {
  Results results;
  const Tensor tokens = Tokens();
  const Labels labels = LabelsOf(tokens);
  const LossFactors factors = LossFactors::OfStep(/*scale=*/1, labels.count, /*micro_batches=*/1);
  model.set_recompute(recompute);
  model.set_dropout_draw(kDraw);
  const BatchLoss loss = model.Losses(tokens, labels, factors);
  results.loss = loss.Values();
  loss.Backward(factors);
  for (const auto& parameter : model.named_parameters()) {
    results.values[parameter.key()] = parameter.value().detach();
    results.gradients[parameter.key()] = parameter.value().grad();
  }
  model.eval();
  const torch::NoGradGuard no_grad;
  results.logits = model.Forward(tokens);
  return results;
}

Results RunWhole(const Case& c) {
  const std::unique_ptr<CausalLm> model = *MakeCausalLm(c.spec(), c.type);
  at::Generator generator = at::detail::createCPUGenerator(7);
  for (Tensor& parameter : model->parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.copy_(0.1 * torch::randn(parameter.sizes(), generator) + (parameter.dim() == 1));
  }
  return Train(*model, c.recompute);
}

// A box of the whole tensor.
Tensor OfWhole(Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.begin.size(); ++d) {
    whole = whole.slice(static_cast<int64_t>(d), box.begin[d], box.end[d]);
  }
  return whole;
}
// The same in a rank's tensor.
Tensor OfRank(const Tensor& tensor, const Box& box) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < box.begin.size(); ++d) sizes.push_back(box.end[d] - box.begin[d]);
  return tensor.as_strided(sizes, tensor.strides(), tensor.storage_offset() + box.local_offset);
}

double Largest(const Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

// The ranks of the line, and those of them that have the same key and value head.
std::pair<RankLine, RankLine> LinesOf(Communicator& me, const ModelSpec& spec) {
  const int64_t copies = CopiesOfKeyHeads(spec.attention.num_kv_heads, me.num_ranks());
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < me.num_ranks(); ++rank) {
    if (rank % copies == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  return {{&me, &me.world()}, {&me, *me.MakeGroup("copies", groups)}};
}

double SquaresOf(const Tensor& gradient) {
  return gradient.to(torch::kFloat64).square().sum().item<double>();
}

// Says in which ways ranks differ from one, when all skip the collectives of a site. `sites`: gets
// those of the collectives.
std::vector<std::string> Differences(const Case& c, const Results& whole,
                                     const std::string& skipped = "",
                                     std::set<std::string>* sites = nullptr) {
  double expected_norm = 0;  // Squared.
  for (const auto& [name, gradient] : whole.gradients) expected_norm += SquaresOf(gradient);
  Mutex mutex;
  double norm = 0;  // Likewise.
  std::vector<std::string> differences;
  RunThreadRanks(c.num_ranks, [&](Communicator& inner) {
    SkippingCommunicator skipping(inner, skipped);
    Communicator& me = skipped.empty() ? inner : skipping;
    const auto [line, copies] = LinesOf(me, c.spec());
    TensorLayers1d layers(c.type, line, copies, c.parts);
    Transformer model(c.spec(), layers);
    ASSERT_EQ(model.named_parameters().size(), whole.values.size());
    for (const auto& parameter : model.named_parameters()) {
      const torch::NoGradGuard no_grad;
      const ParameterBoxes& boxes = layers.BoxesOf(parameter.value());
      const Tensor& value = whole.values.at(parameter.key());
      ASSERT_EQ(value.sizes(), boxes.sizes()) << parameter.key();
      parameter.value().zero_();
      for (const Box& box : boxes.BoxesOf(line.place())) {
        OfRank(parameter.value(), box).copy_(OfWhole(value, box));
      }
    }
    Results mine;
    try {
      mine = Train(model, c.recompute);
    } catch (const c10::Error& error) {  // Ranks that route otherwise exchange other sizes.
      const MutexLock lock(mutex);
      differences.push_back(error.what_without_backtrace());
      return;
    }

    const MutexLock lock(mutex);
    const auto compare = [&](const std::string& what, double difference, double scale) {
      if (difference <= c.tolerance() * scale) return;
      differences.push_back(
          absl::StrCat("rank ", me.rank(), ": ", what, " by ", difference, " of ", scale));
    };
    compare("loss", std::abs(mine.loss.total - whole.loss.total), whole.loss.total);
    compare("cross entropy", std::abs(mine.loss.cross_entropy - whole.loss.cross_entropy),
            whole.loss.total);
    compare("logits", Largest(mine.logits - whole.logits), Largest(whole.logits));
    for (const auto& parameter : model.named_parameters()) {
      const ParameterBoxes& boxes = layers.BoxesOf(parameter.value());
      const Tensor& expected = whole.gradients.at(parameter.key());
      const Tensor& gradient = mine.gradients.at(parameter.key());
      ASSERT_TRUE(gradient.defined()) << parameter.key();
      // A key's bias adds the same to all scores of a row, which a softmax does not see: its
      // gradient is zero but for rounding. In fp32 gradients that are tiny beside the others have
      // the rounding of these.
      const double model_scale = std::sqrt(expected_norm);
      const double scale = parameter.key().ends_with("k_proj.bias") ? 0.1 * model_scale
                           : c.type == torch::kFloat32
                               ? std::max(Largest(expected), 1e-4 * model_scale)
                               : Largest(expected);
      for (const Box& box : boxes.BoxesOf(line.place())) {
        compare(parameter.key(), Largest(OfRank(gradient, box) - OfWhole(expected, box)), scale);
      }
      if (boxes.IsFirstOf(line.place())) norm += SquaresOf(gradient);
    }
    if (sites == nullptr) return;
    for (const SentBytes& one : me.sent()) sites->insert(one.site);
  });
  if (!(std::abs(norm - expected_norm) <= c.tolerance() * expected_norm)) {
    differences.push_back(absl::StrCat("norm squared ", norm, ", not ", expected_norm));
  }
  return differences;
}

class TensorLayersTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorLayersTest, LossGradientsAndNormAreThoseOfOneRank) {
  torch::set_num_threads(1);
  const Case& c = GetParam();
  ASSERT_OK(CheckTensor1d(c.spec(), c.num_ranks, c.parts));
  EXPECT_THAT(Differences(c, RunWhole(c)), IsEmpty());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Family& family : kFamilies) {
    for (const int num_ranks : {2, 4}) cases.push_back({family, num_ranks});
    cases.push_back({family, 2, torch::kFloat64, /*recompute=*/true});
    cases.push_back({family, 4, torch::kFloat32});
    if (ParseHfConfig(family.json, "config")->spec.experts.has_value()) continue;
    for (const int num_ranks : {2, 4}) {
      cases.push_back({family, num_ranks, torch::kFloat64, /*recompute=*/num_ranks == 4, true});
    }
    cases.push_back({family, 2, torch::kFloat32, /*recompute=*/false, true});
  }
  cases.push_back({kPhi3, 2, torch::kFloat64, /*recompute=*/false, true});
  cases.push_back({kPhi3, 2});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorLayersTest, ::testing::ValuesIn(Cases()), NameOf);

// Of two ranks, of which each has a key and value head, the norms of heads alone are copies.
TEST(Tensor1dTest, EachCollectiveMatters) {
  torch::set_num_threads(1);
  for (const Case& c :
       {Case{FamilyOf("gpt2_tied"), 2}, Case{FamilyOf("qwen3"), 2}, Case{FamilyOf("qwen2_moe"), 2},
        Case{FamilyOf("gpt2_tied"), 2, torch::kFloat64, /*recompute=*/false, /*parts=*/true}}) {
    SCOPED_TRACE(c.family.name);
    const Results whole = RunWhole(c);
    std::set<std::string> sites;
    EXPECT_THAT(Differences(c, whole, "none", &sites), IsEmpty());
    EXPECT_EQ(sites.size(), c.parts || c.family.name == std::string("qwen3") ? 8u : 7u);
    for (const std::string& site : sites) {
      EXPECT_THAT(Differences(c, whole, site), Not(IsEmpty())) << site;
    }
  }
}

// The last rank has fewer rows than the others, by which it would take more tokens at a time.
TEST(Tensor1dTest, RanksOfAnUnevenVocabularyMergeAlike) {
  torch::set_num_threads(1);
  constexpr int64_t kRows = 262'145, kWidth = 2, kLabels = 600;
  at::Generator generator = at::detail::createCPUGenerator(3);
  const Tensor table = torch::randn({kRows, kWidth}, generator);
  const Tensor hidden = torch::randn({1, kLabels, kWidth}, generator);
  const Tensor labels = torch::randint(0, kRows, {1, kLabels}, generator, torch::kInt64);
  const torch::NoGradGuard no_grad;
  const auto whole = PlainLayers(torch::kFloat32).Head({kRows, kWidth}, nullptr);
  whole->parameters()[0].copy_(table);
  const double expected = whole->SumOfLosses(hidden, labels, 1).item<double>();
  RunThreadRanks(2, [&](Communicator& me) {
    const torch::NoGradGuard in_this_thread;
    const RankLine line = {&me, &me.world()};
    TensorLayers1d layers(torch::kFloat32, line, line, /*parts_of_sequences=*/false);
    const auto head = layers.Head({kRows, kWidth}, nullptr);
    const Tensor rows = head->parameters()[0];
    for (const Box& box : layers.BoxesOf(rows).BoxesOf(me.rank())) {
      OfRank(rows, box).copy_(OfWhole(table, box));
    }
    EXPECT_NEAR(head->SumOfLosses(hidden, labels, 1).item<double>(), expected, 1e-5 * expected);
  });
}

// A loss of one's own, of logits that all ranks have alike.
TEST(Tensor1dTest, LogitsHaveAGradient) {
  constexpr int64_t kWidth = 8;
  at::Generator generator = at::detail::createCPUGenerator(3);
  const auto random = [&](std::vector<int64_t> sizes) {
    return torch::randn(sizes, generator, torch::kFloat64);
  };
  const Tensor table = random({kVocabulary, kWidth}), hidden = random({2, 4, kWidth});
  const auto whole = PlainLayers(torch::kFloat64).Head({kVocabulary, kWidth}, nullptr);
  {
    const torch::NoGradGuard no_grad;
    whole->parameters()[0].copy_(table);
  }
  const Tensor in = hidden.clone().requires_grad_();
  whole->Logits(in).square().sum().backward();
  RunThreadRanks(2, [&](Communicator& me) {
    const RankLine line = {&me, &me.world()};
    TensorLayers1d layers(torch::kFloat64, line, line, /*parts_of_sequences=*/false);
    const auto head = layers.Head({kVocabulary, kWidth}, nullptr);
    const Tensor rows = head->parameters()[0];
    const std::vector<Box> boxes = layers.BoxesOf(rows).BoxesOf(me.rank());
    {
      const torch::NoGradGuard no_grad;
      rows.zero_();
      for (const Box& box : boxes) OfRank(rows, box).copy_(OfWhole(table, box));
    }
    const Tensor mine = hidden.clone().requires_grad_();
    head->Logits(mine).square().sum().backward();
    EXPECT_LE(Largest(mine.grad() - in.grad()), 1e-12 * Largest(in.grad()));
    for (const Box& box : boxes) {
      EXPECT_LE(Largest(OfRank(rows.grad(), box) - OfWhole(whole->parameters()[0].grad(), box)),
                1e-12 * Largest(in.grad()));
    }
  });
}

TEST(Tensor1dTest, AModelThatDoesNotDivideIsRefused) {
  const auto refused = [](const Family& family, int64_t num_ranks, const char* text) {
    EXPECT_THAT(CheckTensor1d(ParseHfConfig(family.json, "config")->spec, num_ranks, false),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused(FamilyOf("gpt2_tied"), 3,
          "--tensor 1d of 3 ranks: its attention heads, 4, do not divide by 3: use --tensor-size 2 "
          "or 4");
  refused(FamilyOf("gpt2_tied"), 8,
          "its attention heads, 4, do not divide by 8: use --tensor-size 4");
  refused(kPhi3, 4, "its key and value heads, 2, do not divide by 4: use --tensor-size 2");
  for (const Family& family : kFamilies) {
    EXPECT_OK(CheckTensor1d(ParseHfConfig(family.json, "config")->spec, 4, false));
  }
  ModelSpec spec = ParseHfConfig(FamilyOf("llama").json, "config")->spec;
  spec.feed_forward.width = 90;
  EXPECT_THAT(
      CheckTensor1d(spec, 4, false).message(),
      HasSubstr("between its feed-forward matrices, 90, do not divide by 4: use --tensor-size 2"));
  spec.feed_forward.width = 96;
  spec.attention.num_heads = 12;
  spec.attention.num_kv_heads = 2;
  EXPECT_THAT(CheckTensor1d(spec, 3, false).message(),
              HasSubstr("its key and value heads, 2, are fewer, and do not divide them"));
  spec.vocab_size = 5;
  EXPECT_THAT(
      CheckTensor1d(spec, 4, false).message(),
      HasSubstr("its vocabulary of 5 leaves the last rank without a row: use --tensor-size 2"));
}

}  // namespace
}  // namespace gemini::trainer
