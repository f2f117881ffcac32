// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/staged_model.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/record_function.h"
#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/counter_dropout.h"

namespace gemini::trainer {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kGpt2 = R"({"model_type":"gpt2","vocab_size":301,"n_positions":32,"n_embd":64,
    "n_layer":3,"n_head":4})";
constexpr const char* kGpt2Untied = R"({"model_type":"gpt2","vocab_size":301,"n_positions":32,
    "n_embd":64,"n_layer":2,"n_head":4,"tie_word_embeddings":false})";
constexpr const char* kOpt = R"({"model_type":"opt","vocab_size":301,"max_position_embeddings":32,
    "hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,"ffn_dim":128})";
constexpr const char* kOptPostNorm = R"({"model_type":"opt","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,"ffn_dim":128,
    "word_embed_proj_dim":32,"do_layer_norm_before":false,"attention_dropout":0.1,
    "tie_word_embeddings":false})";

constexpr const char* kLlama = R"({"model_type":"llama","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"intermediate_size":96,"attention_dropout":0.1})";

// Windows, a cap, norms around the parts and of heads: all that Gemma has, with shared heads.
constexpr const char* kGemma2 = R"({"model_type":"gemma2","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,"head_dim":16,
    "num_key_value_heads":2,"intermediate_size":96,"attention_dropout":0.1,"sliding_window":5,
    "attn_logit_softcapping":2.0,"final_logit_softcapping":3.0})";
constexpr const char* kGemma3 = R"({"model_type":"gemma3_text","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,"head_dim":16,
    "num_key_value_heads":2,"intermediate_size":96,"attention_dropout":0.1,"sliding_window":5,
    "sliding_window_pattern":2})";
constexpr const char* kCohere = R"({"model_type":"cohere","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"intermediate_size":96,"attention_dropout":0.1,"use_qk_norm":true})";
constexpr const char* kGptNeox = R"({"model_type":"gpt_neox","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,
    "intermediate_size":96,"attention_dropout":0.1,"hidden_dropout":0.1})";
constexpr const char* kPhi3 = R"({"model_type":"phi3","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,"pad_token_id":1,
    "num_key_value_heads":2,"intermediate_size":96,"attention_dropout":0.1,"resid_pdrop":0.1})";
constexpr const char* kMixtral = R"({"model_type":"mixtral","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"intermediate_size":96,"attention_dropout":0.1})";
// The first block has no experts.
constexpr const char* kQwen2Moe = R"({"model_type":"qwen2_moe","vocab_size":301,"hidden_size":64,
    "max_position_embeddings":32,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"intermediate_size":96,"num_experts":6,"moe_intermediate_size":40,
    "shared_expert_intermediate_size":48,"mlp_only_layers":[0],"attention_dropout":0.1})";

std::unique_ptr<StagedModel> Make(const char* json, const torch::TensorOptions& options) {
  const auto config = ParseHfConfig(json, "config");
  EXPECT_OK(config);
  auto model = MakeStagedModel(config->spec, options);
  EXPECT_OK(model);
  return *std::move(model);
}

std::unique_ptr<StagedModel> MakeRandom(const char* json) {
  std::unique_ptr<StagedModel> model = Make(json, torch::kFloat32);
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model->parameters()) parameter.normal_(0, 0.1);
  return model;
}

torch::Tensor Tokens() {
  torch::manual_seed(2);
  return torch::randint(0, 301, {2, 16}, torch::kInt64);
}

class StagedModelTest : public ::testing::TestWithParam<const char*> {};
std::string ConfigName(const ::testing::TestParamInfo<const char*>& config) {
  return std::vector<std::string>{"Gpt2",    "Gpt2Untied", "Opt",     "OptPostNorm",
                                  "Llama",   "Gemma2",     "Gemma3",  "Cohere",
                                  "GptNeox", "Phi3",       "Mixtral", "Qwen2Moe"}[config.index];
}
INSTANTIATE_TEST_SUITE_P(Configs, StagedModelTest,
                         ::testing::Values(kGpt2, kGpt2Untied, kOpt, kOptPostNorm, kLlama, kGemma2,
                                           kGemma3, kCohere, kGptNeox, kPhi3, kMixtral, kQwen2Moe),
                         ConfigName);

TEST_P(StagedModelTest, OnMetaTheModelTakesNoMemory) {
  const std::unique_ptr<StagedModel> meta =
      Make(GetParam(), torch::TensorOptions().device(torch::kMeta));
  const std::unique_ptr<StagedModel> plain = Make(GetParam(), torch::kFloat32);
  const auto expected = ParameterShapesOf(*plain);
  const auto shapes = ParameterShapesOf(*meta);
  ASSERT_EQ(shapes.size(), expected.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(shapes[i].name, expected[i].name);
    EXPECT_EQ(shapes[i].shape, expected[i].shape);
  }
  for (const torch::Tensor& parameter : meta->parameters()) {
    EXPECT_TRUE(parameter.is_meta());
    EXPECT_TRUE(parameter.requires_grad());
  }
  EXPECT_TRUE(meta->buffers().empty());
}

// The tensors that each operator took, one set an operator, while the callback below was installed.
std::vector<std::set<c10::TensorImpl*>>& OperatorInputs() {
  thread_local std::vector<std::set<c10::TensorImpl*>> inputs;
  return inputs;
}
std::unique_ptr<at::ObserverContext> RecordInputs(const at::RecordFunction& function) {
  std::set<c10::TensorImpl*>& tensors = OperatorInputs().emplace_back();
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor()) tensors.insert(input.toTensor().unsafeGetTensorImpl());
  }
  return nullptr;
}

// The square root of 3,072 is 55.426, and 55.5 in bf16.
TEST(GemmaTest, TheFactorOfTheEmbeddingIsRoundedToItsType) {
  const std::unique_ptr<StagedModel> model =
      Make(R"({"model_type":"gemma","vocab_size":16,"hidden_size":3072,"num_attention_heads":1,
              "num_key_value_heads":1,"head_dim":8,"intermediate_size":8,"num_hidden_layers":1})",
           torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  torch::Tensor table = model->parameters().front();
  table.fill_(1);
  const torch::Tensor tokens = torch::full({1, 2}, 3, torch::kInt64);
  EXPECT_EQ(model->Embed({.inputs = tokens}).hidden[0][1][5].item<double>(), 55.5);
}

TEST_P(StagedModelTest, ParametersAreInTheOrderOfFirstUse) {
  const std::unique_ptr<StagedModel> model = MakeRandom(GetParam());
  OperatorInputs().clear();
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(RecordInputs)
                                                     .needsInputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
  model->Forward(Tokens());
  at::removeCallback(handle);

  // Parameters of one operator are used at once; their order among themselves is free.
  size_t operator_before = 0;
  for (const auto& parameter : model->named_parameters()) {
    size_t first_use = 0;
    while (first_use < OperatorInputs().size() &&
           !OperatorInputs()[first_use].contains(parameter.value().unsafeGetTensorImpl())) {
      ++first_use;
    }
    ASSERT_LT(first_use, OperatorInputs().size()) << parameter.key() << " is never used";
    EXPECT_GE(first_use, operator_before) << parameter.key();
    operator_before = first_use;
  }
}

// The probability and the key of each mask that was computed while the callback below was there.
std::vector<std::pair<double, int64_t>>& Masks() {
  thread_local std::vector<std::pair<double, int64_t>> masks;
  return masks;
}
std::unique_ptr<at::ObserverContext> RecordRate(const at::RecordFunction& function) {
  if (std::string(function.name()) == kDropoutEvent) {
    Masks().emplace_back(function.inputs()[0].toDouble(), function.inputs()[1].toInt());
  }
  return nullptr;
}

// The embedding once, and in each block attention's weights and what its two parts add.
TEST(DropoutTest, EachSiteDropsAtItsRate) {
  struct Rates {
    const char* json;
    std::vector<double> training;
  };
  for (const Rates& expected : std::vector<Rates>{
           {R"({"model_type":"gpt2","vocab_size":301,"n_positions":32,"n_embd":64,"n_layer":2,
               "n_head":4,"embd_pdrop":0.1,"attn_pdrop":0.2,"resid_pdrop":0.3})",
            {0.1, 0.2, 0.3, 0.3, 0.2, 0.3, 0.3}},
           {R"({"model_type":"opt","vocab_size":301,"max_position_embeddings":32,"hidden_size":64,
               "num_hidden_layers":1,"num_attention_heads":4,"ffn_dim":128,
               "attention_dropout":0.2,"dropout":0.3})",
            {0.2, 0.3, 0.3}},
           {R"({"model_type":"llama","vocab_size":301,"hidden_size":64,"num_hidden_layers":1,
               "max_position_embeddings":32,"num_attention_heads":4,"num_key_value_heads":2,
               "intermediate_size":96,"attention_dropout":0.2})",
            {0.2}},
       }) {
    SCOPED_TRACE(expected.json);
    const std::unique_ptr<StagedModel> model = MakeRandom(expected.json);
    for (const bool training : {true, false}) {
      model->train(training);
      Masks().clear();
      const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(RecordRate)
                                                         .needsInputs(true)
                                                         .scopes({at::RecordScope::FUNCTION}));
      model->Forward(Tokens());
      at::removeCallback(handle);
      // Attention computes its mask in pieces.
      const auto repeated = std::ranges::unique(Masks());
      Masks().erase(repeated.begin(), repeated.end());
      std::vector<double> rates;
      std::set<int64_t> keys;
      for (const auto& [rate, key] : Masks()) {
        rates.push_back(rate);
        keys.insert(key);
      }
      EXPECT_EQ(rates, training ? expected.training : std::vector<double>());
      EXPECT_EQ(keys.size(), rates.size()) << "two sites share a mask";
    }
  }
}

// The sum of the losses of some tokens, and its gradients.
std::vector<torch::Tensor> SumAndGradients(StagedModel& model, const torch::Tensor& tokens,
                                           const Labels& labels) {
  model.zero_grad();
  const BatchLoss loss = model.Losses(tokens, labels, LossFactors());
  loss.Backward(LossFactors());
  std::vector<torch::Tensor> all = {loss.sum.detach()};
  for (const torch::Tensor& parameter : model.parameters()) {
    all.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                             : torch::zeros_like(parameter));
  }
  return all;
}

TEST_P(StagedModelTest, RowsComputeWhatTheirDocumentsAloneDo) {
  const std::unique_ptr<StagedModel> model = MakeRandom(GetParam());
  model->eval();
  const torch::Tensor tokens = Tokens();  // [2, 16]: the second row has padding.
  const RowDocuments documents = {{{5, 1, 10}, {7, 3}}};
  Labels labels = {torch::full_like(tokens, -1)};
  std::vector<torch::Tensor> apart;
  for (int64_t row = 0; row < 2; ++row) {
    int64_t begin = 0;
    for (const int64_t length : documents.lengths[static_cast<size_t>(row)]) {
      const torch::Tensor document = tokens.slice(0, row, row + 1).slice(1, begin, begin + length);
      labels.values[row].slice(0, begin + 1, begin + length).copy_(document[0].slice(0, 1));
      labels.count += length - 1;
      const std::vector<torch::Tensor> alone =
          SumAndGradients(*model, document, Labels::AllOf(document));
      for (size_t i = 0; i < alone.size(); ++i) {
        if (apart.size() == i) apart.push_back(torch::zeros_like(alone[i]));
        apart[i] += alone[i];
      }
      begin += length;
    }
  }
  for (const bool recompute : {false, true}) {
    model->set_recompute(recompute);
    model->set_documents(std::make_shared<RowDocuments>(documents));
    const std::vector<torch::Tensor> packed = SumAndGradients(*model, tokens, labels);
    for (size_t i = 0; i < packed.size(); ++i) {
      const double largest = std::max(apart[i].abs().max().item<double>(), 1e-3);
      EXPECT_LE((packed[i] - apart[i]).abs().max().item<double>(), 3e-6 * largest)
          << (i == 0 ? "the loss" : model->named_parameters()[i - 1].key());
    }
  }
  // With other tokens as padding, it is the same.
  torch::Tensor others = tokens.clone();
  others[1].slice(0, 10).fill_(300);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(model->Losses(others, labels, LossFactors()).sum,
                           model->Losses(tokens, labels, LossFactors()).sum));
}

TEST_P(StagedModelTest, RecomputationGivesTheSameBitsWithDropout) {
  const std::unique_ptr<StagedModel> model = MakeRandom(GetParam());
  const torch::Tensor tokens = Tokens();
  std::vector<torch::Tensor> plain;
  torch::Tensor plain_loss;
  for (const bool recompute : {false, true}) {
    model->set_recompute(recompute);
    model->zero_grad();
    // What a forward drew, its backward drops, whatever was set in between.
    model->set_dropout_draw({.seed = 3});
    const torch::Tensor loss = model->Loss(tokens);
    model->set_dropout_draw({.seed = 4});
    loss.backward();
    if (!recompute) {
      plain_loss = loss;
      for (const torch::Tensor& parameter : model->parameters()) {
        plain.push_back(parameter.grad().clone());
      }
      continue;
    }
    EXPECT_TRUE(torch::equal(loss, plain_loss));
    const auto parameters = model->named_parameters();
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(torch::equal(parameters[i].value().grad(), plain[i])) << parameters[i].key();
    }
  }
}

TEST_P(StagedModelTest, DropoutIsDrawnInTrainingOnlyAndForEachDrawAnew) {
  const std::unique_ptr<StagedModel> model = MakeRandom(GetParam());
  const torch::Tensor tokens = Tokens();
  const torch::NoGradGuard no_grad;
  const auto with = [&](const DropoutDraw& draw) {
    model->set_dropout_draw(draw);
    return model->Forward(tokens);
  };
  const std::vector<DropoutDraw> others = {{.seed = 1}, {.step = 1}, {.micro_batch = 1}};
  const torch::Tensor first = with({});
  EXPECT_TRUE(torch::equal(first, with({})));
  for (const DropoutDraw& draw : others) EXPECT_FALSE(torch::equal(first, with(draw)));
  model->eval();
  const torch::Tensor evaluated = with({});
  EXPECT_FALSE(torch::equal(first, evaluated));
  for (const DropoutDraw& draw : others) EXPECT_TRUE(torch::equal(evaluated, with(draw)));
}

TEST_P(StagedModelTest, NoTokenSeesALaterOne) {
  const std::unique_ptr<StagedModel> model = MakeRandom(GetParam());
  model->eval();
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = Tokens();
  torch::Tensor changed = tokens.clone();
  changed.select(1, 10).add_(1).remainder_(301);
  const torch::Tensor a = model->Forward(tokens);
  const torch::Tensor b = model->Forward(changed);
  // An expert that gets other rows may round those that it had before otherwise.
  EXPECT_TRUE(torch::allclose(a.slice(1, 0, 10), b.slice(1, 0, 10), /*rtol=*/1e-5, /*atol=*/1e-6));
  EXPECT_FALSE(torch::allclose(a.select(1, 10), b.select(1, 10)));
}

TEST(StagedModelNamesTest, NamesAreThoseOfTransformers) {
  const auto names = [](const char* json) {
    return Make(json, torch::TensorOptions().device(torch::kMeta))->named_parameters().keys();
  };
  EXPECT_THAT(names(kGpt2), Contains("transformer.h.2.attn.c_attn.weight"));
  EXPECT_THAT(names(kGpt2), Not(Contains("lm_head.weight")));
  EXPECT_THAT(names(kGpt2Untied), Contains("lm_head.weight"));
  EXPECT_THAT(names(kOpt), Contains("model.decoder.layers.0.self_attn.out_proj.bias"));
  EXPECT_THAT(names(kOpt), Contains("model.decoder.final_layer_norm.weight"));
  EXPECT_THAT(names(kOptPostNorm), Contains("model.decoder.project_in.weight"));
  EXPECT_THAT(names(kOptPostNorm), Not(Contains("model.decoder.final_layer_norm.weight")));
}

TEST_P(StagedModelTest, TheLossIsThatOfTheNextToken) {
  const std::unique_ptr<StagedModel> model = MakeRandom(GetParam());
  model->eval();
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = Tokens();
  const torch::Tensor logits = model->Forward(tokens).slice(1, 0, -1).flatten(0, 1);
  const double expected =
      torch::nn::functional::cross_entropy(logits, tokens.slice(1, 1).flatten()).item<double>();
  EXPECT_NEAR(model->Loss(tokens).item<double>(), expected, 1e-6 * expected);
  const BatchLoss loss = model->Losses(tokens, LossFactors{.label = 3});
  EXPECT_EQ(loss.count, tokens.size(0) * (tokens.size(1) - 1));
  EXPECT_NEAR(loss.Values().total, expected, 1e-6 * expected);
  EXPECT_TRUE(std::isnan(model->Loss(tokens.slice(1, 0, 1)).item<double>()));
}

TEST(StagedModelErrorTest, ParametersOfIntegersAreRefused) {
  const auto config = ParseHfConfig(kGpt2, "config");
  ASSERT_OK(config);
  EXPECT_THAT(MakeStagedModel(config->spec, torch::kInt64),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Long")));
}

}  // namespace
}  // namespace gemini::trainer
