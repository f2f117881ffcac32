// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/layers_beside_one_rank.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/trainer/parallel/skipping_communicator.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/transformer.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kSequences = 8, kTokens = 16, kVocabulary = 301;

// A decoder whose type is `type`, of 4 heads and 2 of keys and values; it ends without a brace.
#define DECODER(type)                                                                              \
  R"({"model_type":")" type R"(","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,)" \
  R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,)"        \
  R"("intermediate_size":256,"attention_dropout":0.1)"
// An encoder for a task, likewise.
#define ENCODER(task)                                                                \
  R"({"model_type":"bert","architectures":["BertFor)" task R"("],"vocab_size":301,)" \
  R"("max_position_embeddings":16,"hidden_size":64,"num_hidden_layers":2,)"          \
  R"("num_attention_heads":4,"intermediate_size":256)"

}  // namespace

const std::vector<SmallModel>& SmallModels() {
  static const std::vector<SmallModel> models = {
      {"gpt2_tied",
       R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":4,
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
  return models;
}

const SmallModel kSmallPhi3 = {"phi3", DECODER("phi3") R"(,"original_max_position_embeddings":16,
      "pad_token_id":0})"};

const SmallModel kSmallLongRope = {
    "longrope", DECODER("phi3") R"(,"original_max_position_embeddings":8,"pad_token_id":0,
    "rope_parameters":{"rope_type":"longrope","rope_theta":100.0,
    "short_factor":[1.0,1.1,1.2,1.3,1.4,1.5,1.6,1.7],
    "long_factor":[2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0]}})"};

const std::vector<SmallModel>& TaskModels() {
  static const std::vector<SmallModel> models = {
      {"bert_masked", ENCODER("MaskedLM") "}"},
      {"bert_classifier", ENCODER("SequenceClassification") R"(,"num_labels":3,
      "classifier_dropout":0.3})"},
      {"llama_classifier", DECODER("llama") R"(,"pad_token_id":3,"num_labels":2,
      "architectures":["LlamaForSequenceClassification"],"problem_type":"regression"})"},
  };
  return models;
}

SmallModel SmallModelOf(const std::string& name) {
  for (const std::vector<SmallModel>* const models : {&SmallModels(), &TaskModels()}) {
    for (const SmallModel& small : *models) {
      if (small.name == name) return small;
    }
  }
  return {};
}

ModelSpec SmallModel::spec() const { return ParseHfConfig(json, "config")->spec; }

namespace {

Tensor Tokens() {
  at::Generator generator = at::detail::createCPUGenerator(100);
  Tensor tokens = torch::randint(0, kVocabulary, {kSequences, kTokens}, generator, torch::kInt64);
  // Padding, of those models that have it.
  for (const int64_t padding : {0, 1, 3}) tokens[2 * padding].slice(0, 5, 8) = padding;
  return tokens;
}

// Some are not to be predicted.
Labels LabelsOf(const Tensor& tokens) {
  Labels labels = {tokens.clone(), 0};
  labels.values[2].slice(0, 3, 9) = -1;
  labels.values[5].fill_(-1);
  labels.count = labels.values.slice(1, 1).ge(0).sum().item<int64_t>();
  return labels;
}

// The first row alone has a document of more than 8 tokens.
void Pack(Batch& batch) {
  RowDocuments documents;
  for (int64_t row = 0; row < kSequences; ++row) {
    const int64_t first = row == 0 ? 10 : 3 + row % 4, second = row == 0 ? 4 : 8 - row % 3;
    documents.lengths.push_back({first, second});
    torch::Tensor labels = batch.labels.values[row];
    labels[first] = -1;
    labels.slice(0, first + second, kTokens).fill_(-1);
  }
  batch.labels.count = batch.labels.values.slice(1, 1).ge(0).sum().item<int64_t>();
  batch.documents = std::make_shared<RowDocuments>(std::move(documents));
}

// Texts of other tasks have padding behind them, of a masked one two texts are in a row; their last
// tokens are in different parts of the sequence.
Batch BatchOf(const TaskSpec& task, bool packed) {
  Batch batch = {.inputs = Tokens()};
  batch.labels = LabelsOf(batch.inputs);
  if (packed) Pack(batch);
  if (task.kind == TaskKind::kCausal) return batch;
  at::Generator generator = at::detail::createCPUGenerator(101);
  RowDocuments documents;
  for (int64_t row = 0; row < kSequences; ++row) {
    const int64_t length = kTokens - 2 * row;
    documents.lengths.push_back({length});
    if (task.kind == TaskKind::kMasked && length > 5) documents.lengths.back() = {5, length - 5};
    batch.labels.values[row].slice(0, length).fill_(-1);
  }
  batch.types = torch::arange(kTokens).remainder(3).eq(1).to(torch::kInt64).repeat({kSequences, 1});
  if (task.kind == TaskKind::kMasked) {
    batch.labels.count = batch.labels.values.ge(0).sum().item<int64_t>();
  } else if (task.problem == ProblemType::kSingleLabel) {
    batch.labels = {torch::randint(0, task.num_labels, {kSequences}, generator, torch::kInt64),
                    kSequences};
  } else {
    batch.labels = {torch::randn({kSequences, task.num_labels}, generator),
                    kSequences * task.num_labels};
  }
  batch.documents = std::make_shared<RowDocuments>(std::move(documents));
  return batch;
}

constexpr char kUnused[] = "unused";

// Has the model be as the case says, beside its values. `layers`: those that it was made of.
void FreezeSome(StagedModel& model, LayerSet& layers, const LayersCase& c) {
  if (c.frozen < 0) return;
  model.register_module(kUnused, layers.Linear({.in = 64, .out = 64}, Role::kFeedOut));
  int64_t number = 0;
  for (Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(number++ % 3 != c.frozen);
  }
}

constexpr DropoutDraw kDraw = {.seed = 5, .step = 3, .micro_batch = 2};

TrainResults Train(StagedModel& model, const LayersCase& c) {
  TrainResults results;
  const Batch batch = BatchOf(c.model.spec().task, c.packed);
  const LossFactors factors =
      LossFactors::OfStep(/*scale=*/1, batch.labels.count, /*micro_batches=*/1);
  model.set_recompute(c.recompute);
  model.set_dropout_draw(kDraw);
  const BatchLoss loss = model.Losses(batch, factors);
  results.loss = loss.Values();
  loss.Backward(factors);
  for (const auto& parameter : model.named_parameters()) {
    results.values[parameter.key()] = parameter.value();
    results.gradients[parameter.key()] = parameter.value().grad();
  }
  model.eval();
  const torch::NoGradGuard no_grad;
  results.logits = model.Forward(batch);
  return results;
}

}  // namespace

TrainResults TrainOnOneRank(const LayersCase& c) {
  const std::unique_ptr<StagedModel> model = *MakeStagedModel(c.model.spec(), c.type);
  PlainLayers layers(c.type);
  FreezeSome(*model, layers, c);
  at::Generator generator = at::detail::createCPUGenerator(7);
  for (Tensor& parameter : model->parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.copy_(0.1 * torch::randn(parameter.sizes(), generator) + (parameter.dim() == 1));
  }
  TrainResults results = Train(*model, c);
  for (const auto& [name, gradient] : results.gradients) {
    const bool is_unused = name.starts_with(kUnused);
    EXPECT_EQ(gradient.defined(), results.values[name].requires_grad() && !is_unused) << name;
  }
  return results;
}

Tensor OfWhole(Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.begin.size(); ++d) {
    whole = whole.slice(static_cast<int64_t>(d), box.begin[d], box.end[d]);
  }
  return whole;
}
Tensor OfRank(const Tensor& tensor, const Box& box) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < box.begin.size(); ++d) sizes.push_back(box.end[d] - box.begin[d]);
  return tensor.as_strided(sizes, tensor.strides(), tensor.storage_offset() + box.local_offset);
}

double Largest(const Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

namespace {

double SquaresOf(const Tensor& gradient) {
  if (!gradient.defined()) return 0;
  return gradient.to(torch::kFloat64).square().sum().item<double>();
}

}  // namespace

std::vector<std::string> Differences(const LayersCase& c, const TrainResults& whole,
                                     const std::string& skipped, std::set<std::string>* sites) {
  double expected_norm = 0;  // Squared.
  for (const auto& [name, gradient] : whole.gradients) expected_norm += SquaresOf(gradient);
  Mutex mutex;
  double norm = 0;  // Likewise.
  std::vector<std::string> differences;
  RunThreadRanks(c.num_ranks, [&](Communicator& inner) {
    SkippingCommunicator skipping(inner, skipped);
    Communicator& me = skipped.empty() ? inner : skipping;
    const RankLayers made = c.make(me, c);
    const TensorLayers& layers = *made.layers;
    Transformer model(c.model.spec(), *made.layers);
    FreezeSome(model, *made.layers, c);
    ASSERT_EQ(model.named_parameters().size(), whole.values.size());
    for (const auto& parameter : model.named_parameters()) {
      const torch::NoGradGuard no_grad;
      const ParameterBoxes& boxes = layers.BoxesOf(parameter.value());
      const Tensor& value = whole.values.at(parameter.key());
      ASSERT_EQ(value.sizes(), boxes.sizes()) << parameter.key();
      parameter.value().zero_();
      for (const Box& box : boxes.BoxesOf(made.place)) {
        OfRank(parameter.value(), box).copy_(OfWhole(value, box));
      }
    }
    TrainResults mine;
    try {
      mine = Train(model, c);
      for (auto& [name, gradient] : mine.gradients) {
        ASSERT_EQ(gradient.defined(), whole.gradients.at(name).defined()) << name;
        if (made.sums.group == nullptr || !gradient.defined()) continue;
        gradient = gradient.contiguous();
        AddOverRanks(gradient, made.sums, "gradients");
      }
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
    // The routers' sums, and so their loss, are fp32.
    const double router = whole.loss.router.value_or(0);
    compare("loss", std::max(std::abs(mine.loss.total - whole.loss.total) - 1e-7 * router, 0.0),
            whole.loss.total);
    compare("cross entropy", std::abs(mine.loss.of_labels - whole.loss.of_labels),
            whole.loss.total);
    compare("logits", Largest(mine.logits - whole.logits), Largest(whole.logits));
    for (const auto& parameter : model.named_parameters()) {
      const ParameterBoxes& boxes = layers.BoxesOf(parameter.value());
      const Tensor& expected = whole.gradients.at(parameter.key());
      const Tensor& gradient = mine.gradients.at(parameter.key());
      if (!gradient.defined()) continue;
      // A key's bias adds the same to all scores of a row, which a softmax does not see: its
      // gradient is zero but for rounding. In fp32 gradients that are tiny beside the others have
      // the rounding of these.
      const double model_scale = std::sqrt(expected_norm);
      const bool is_of_key =
          parameter.key().ends_with("k_proj.bias") || parameter.key().ends_with("key.bias");
      const double scale = is_of_key ? 0.1 * model_scale
                           : c.type == torch::kFloat32
                               ? std::max(Largest(expected), 1e-4 * model_scale)
                               : Largest(expected);
      for (const Box& box : boxes.BoxesOf(made.place)) {
        compare(parameter.key(), Largest(OfRank(gradient, box) - OfWhole(expected, box)), scale);
      }
      const bool has_copies = made.sums.group != nullptr && made.sums.place() > 0;
      if (boxes.IsFirstOf(made.place) && !has_copies) norm += SquaresOf(gradient);
    }
    if (sites == nullptr) return;
    for (const SentBytes& one : me.sent()) sites->insert(one.site);
  });
  if (!(std::abs(norm - expected_norm) <= c.tolerance() * expected_norm)) {
    differences.push_back(absl::StrCat("norm squared ", norm, ", not ", expected_norm));
  }
  return differences;
}

}  // namespace gemini::trainer
