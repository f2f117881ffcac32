// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/vertical_schedule.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAreArray;

// Tied embeddings in the second and fourth.
constexpr const char* kModels[] = {
    R"({"model_type":"gpt2","vocab_size":101,"n_positions":16,"n_embd":32,"n_layer":3,"n_head":4,
        "tie_word_embeddings":false,"resid_pdrop":PDROP,"embd_pdrop":PDROP,"attn_pdrop":PDROP})",
    R"({"model_type":"gpt2","vocab_size":101,"n_positions":16,"n_embd":32,"n_layer":2,"n_head":4,
        "resid_pdrop":PDROP,"embd_pdrop":PDROP,"attn_pdrop":PDROP})",
    R"({"model_type":"opt","vocab_size":101,"hidden_size":32,"max_position_embeddings":16,
        "num_hidden_layers":2,"num_attention_heads":4,"ffn_dim":64,"word_embed_proj_dim":16,
        "do_layer_norm_before":false,"dropout":PDROP,"attention_dropout":PDROP,
        "tie_word_embeddings":false})",
    R"({"model_type":"opt","vocab_size":101,"hidden_size":32,"max_position_embeddings":16,
        "num_hidden_layers":3,"num_attention_heads":4,"ffn_dim":64,"dropout":PDROP})",
    R"({"model_type":"llama","vocab_size":101,"hidden_size":32,"max_position_embeddings":16,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":48,"attention_dropout":PDROP})",
    // The loss of these includes the routers'.
    R"({"model_type":"mixtral","vocab_size":101,"hidden_size":32,"max_position_embeddings":16,
        "num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":48,"num_local_experts":4,"output_router_logits":true,
        "router_aux_loss_coef":0.5,"attention_dropout":PDROP})",
    R"({"model_type":"qwen2_moe","vocab_size":101,"hidden_size":32,"max_position_embeddings":16,
        "num_hidden_layers":5,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":48,"moe_intermediate_size":24,"shared_expert_intermediate_size":24,
        "num_experts":6,"decoder_sparse_step":2,"output_router_logits":true,
        "router_aux_loss_coef":0.5,"attention_dropout":PDROP})"};

std::unique_ptr<StagedModel> MakeModel(std::string json, const std::string& dropout) {
  for (size_t at; (at = json.find("PDROP")) != std::string::npos;) json.replace(at, 5, dropout);
  auto model = MakeStagedModel(ParseHfConfig(json, "config")->spec, torch::kFloat32);
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : (*model)->parameters()) parameter.normal_(0, 0.1);
  return *std::move(model);
}

// Of the i-th one the first i + 1 tokens of a row are not to be predicted.
std::vector<Batch> MicroBatches(int count) {
  torch::manual_seed(2);
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    const torch::Tensor tokens = torch::randint(0, 101, {2, 12}, torch::kInt64);
    batches.push_back({tokens, {tokens.clone(), 2 * (11 - i)}});
    batches.back().labels.values.slice(1, 0, i + 1).fill_(-1);
  }
  return batches;
}

struct Result {
  std::vector<double> losses;  // Of each micro-batch, with its parts behind it.
  std::vector<std::pair<std::string, torch::Tensor>> gradients;
};

Result Collect(StagedModel& model, const std::vector<LossValues>& losses) {
  Result result;
  for (const LossValues& loss : losses) {
    result.losses.insert(result.losses.end(),
                         {loss.total, loss.of_labels, loss.router.value_or(-1)});
  }
  for (auto& item : model.named_parameters()) {
    result.gradients.emplace_back(item.key(), item.value().grad().clone());
    item.value().mutable_grad().reset();
  }
  return result;
}

absl::Status Accept(int64_t, double) { return absl::OkStatus(); }

// The factor of the mean of all.
LossFactors MeanOf(const std::vector<Batch>& batches) {
  int64_t num_labels = 0;
  for (const Batch& batch : batches) num_labels += batch.labels.count;
  return LossFactors::OfStep(1, num_labels, static_cast<int64_t>(batches.size()));
}

constexpr DropoutDraw kDraw = {.seed = 3, .step = 4, .micro_batch = 5};

Result RunVertical(StagedModel& model, const std::vector<Batch>& batches) {
  model.set_dropout_draw(kDraw);
  ActivationsInPlace activations;
  const absl::StatusOr<std::vector<LossValues>> losses =
      RunVertically(model, batches, activations, Accept, MeanOf(batches));
  EXPECT_OK(losses);
  return Collect(model, *losses);
}

// One micro-batch after the other, as plain training does.
Result RunHorizontal(StagedModel& model, const std::vector<Batch>& batches) {
  std::vector<LossValues> losses;
  DropoutDraw draw = kDraw;
  for (const Batch& batch : batches) {
    model.set_dropout_draw(draw);
    ++draw.micro_batch;
    const BatchLoss loss = model.Losses(batch.inputs, batch.labels, MeanOf(batches));
    losses.push_back(loss.Values());
    loss.Backward(MeanOf(batches));
  }
  return Collect(model, losses);
}

// The weight that is embedding and head in one.
bool IsTied(const StagedModel& model, const std::string& name) {
  const bool has_head = model.named_parameters().contains("lm_head.weight");
  return !has_head &&
         (name == "transformer.wte.weight" || name == "model.decoder.embed_tokens.weight");
}

void ExpectEqual(const StagedModel& model, const Result& result, const Result& expected) {
  EXPECT_THAT(result.losses, ElementsAreArray(expected.losses));
  ASSERT_EQ(result.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < result.gradients.size(); ++i) {
    const auto& [name, gradient] = result.gradients[i];
    if (IsTied(model, name)) {  // Another order of the same sum.
      EXPECT_TRUE(torch::allclose(gradient, expected.gradients[i].second, 1e-4, 1e-6)) << name;
    } else {
      EXPECT_TRUE(torch::equal(gradient, expected.gradients[i].second)) << name;
    }
  }
}

TEST(VerticalScheduleTest, GradientsEqualThoseOfOneMicroBatchAfterTheOther) {
  for (const char* json : kModels) {
    for (const char* dropout : {"0.0", "0.3"}) {
      for (const int count : {1, 3}) {
        SCOPED_TRACE(std::string(json).substr(0, 60) + " dropout: " + dropout +
                     " micro-batches: " + std::to_string(count));
        const auto model = MakeModel(json, dropout);
        const std::vector<Batch> batches = MicroBatches(count);
        ExpectEqual(*model, RunVertical(*model, batches), RunHorizontal(*model, batches));
      }
    }
  }
}

// Gives a copy back, and notes what was asked for.
class NotedActivations : public ActivationStore {
 public:
  absl::StatusOr<int64_t> Put(torch::Tensor tensor) override {
    notes.push_back("put " + std::to_string(tensors_.size()));
    tensors_.push_back(tensor.clone());
    return static_cast<int64_t>(tensors_.size()) - 1;
  }
  absl::Status Prefetch(int64_t key) override {
    notes.push_back("prefetch " + std::to_string(key));
    return absl::OkStatus();
  }
  absl::StatusOr<torch::Tensor> Take(int64_t key) override {
    notes.push_back("take " + std::to_string(key));
    if (key == fail_at) return absl::DataLossError("gone");
    return std::exchange(tensors_[static_cast<size_t>(key)], {});
  }
  void Clear() override { tensors_.clear(); }
  std::vector<std::string> notes;
  int64_t fail_at = -1;

 private:
  std::vector<torch::Tensor> tensors_;
};

TEST(VerticalScheduleTest, ActivationsOfTheNextBlockAreAskedForOneAhead) {
  const auto model = MakeModel(kModels[1], "0.3");  // Of two blocks.
  const std::vector<Batch> batches = MicroBatches(2);
  const Result expected = RunVertical(*model, batches);
  NotedActivations activations;
  model->set_dropout_draw(kDraw);
  ASSERT_OK_AND_ASSIGN(const std::vector<LossValues> losses,
                       RunVertically(*model, batches, activations, Accept, MeanOf(batches)));
  ExpectEqual(*model, Collect(*model, losses), expected);
  EXPECT_THAT(activations.notes,
              ElementsAreArray({"put 0", "put 1", "put 2", "put 3", "take 2", "prefetch 3",
                                "take 3", "prefetch 0", "take 0", "prefetch 1", "take 1"}));
}

// A store that keeps copies, and lets go of the tensors: nothing else may keep their memory.
class CopyingStore final : public ActivationStore {
 public:
  absl::StatusOr<int64_t> Put(torch::Tensor tensor) override {
    const c10::weak_intrusive_ptr<c10::StorageImpl> memory(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            tensor.storage().unsafeGetStorageImpl()));
    torch::Tensor copy = tensor.clone();
    tensor.reset();
    EXPECT_TRUE(memory.expired()) << "put " << puts;
    ++puts;
    return copies_.Put(std::move(copy));
  }
  absl::Status Prefetch(int64_t key) override { return copies_.Prefetch(key); }
  absl::StatusOr<torch::Tensor> Take(int64_t key) override { return copies_.Take(key); }
  void Clear() override { copies_.Clear(); }
  int puts = 0;

 private:
  ActivationsInPlace copies_;
};

TEST(VerticalScheduleTest, NothingElseHoldsTheMemoryOfAnActivationThatIsPutAway) {
  for (const char* json : kModels) {
    const std::unique_ptr<StagedModel> model = MakeModel(json, "0.1");
    CopyingStore store;
    const std::vector<Batch> batches = MicroBatches(2);
    ASSERT_OK(RunVertically(*model, batches, store, Accept, MeanOf(batches)));
    EXPECT_EQ(store.puts, 2 * static_cast<int>(model->blocks().size()));
  }
}

TEST(VerticalScheduleTest, AnErrorOfTheStoreEndsTheRun) {
  const auto model = MakeModel(kModels[1], "0.0");
  NotedActivations activations;
  activations.fail_at = 3;
  EXPECT_THAT(RunVertically(*model, MicroBatches(2), activations, Accept, LossFactors()),
              StatusIs(absl::StatusCode::kDataLoss));
}

// A model of counted blocks.
class CountedLm : public StagedModel {
 public:
  CountedLm() {
    weight_ = register_parameter("weight", torch::ones({10, 4}));
    for (int i = 0; i < 2; ++i) blocks_.push_back(std::make_shared<CountedBlock>(*this, i));
  }
  Stream Embed(const Batch& batch) override {
    runs.push_back("embed");
    return {.hidden = torch::embedding(weight_, batch.inputs)};
  }
  BatchContext ContextOf(const torch::Tensor& /*hidden*/) const override { return {}; }
  torch::Tensor Head(const Stream& last, const BatchContext& /*context*/) override {
    return last.hidden.matmul(weight_.t());
  }
  BatchLoss LossOf(Stream last, const BatchContext& context, const Labels& labels,
                   const LossFactors& /*factors*/) override {
    runs.push_back(is_last_ ? "head, last" : "head");
    return {.sum = Head(last, context).square().sum(), .count = labels.count};
  }
  void set_last_micro_batch(bool is_last) override { is_last_ = is_last; }
  void BeginMicroBatches(int64_t count) override {
    runs.push_back(std::to_string(count) + " micro-batches");
  }
  void HoldStage(size_t stage) override { runs.push_back("hold " + std::to_string(stage)); }
  void ReleaseStage(size_t stage) override { runs.push_back("release " + std::to_string(stage)); }
  std::vector<std::string> runs;

 private:
  class CountedBlock : public Block {
   public:
    CountedBlock(CountedLm& owner, int index) : owner_(owner), index_(index) {}
    Stream Forward(const Stream& stream, const BatchContext& /*context*/) override {
      const bool graph = torch::GradMode::is_enabled();
      owner_.runs.push_back((graph ? "graph " : "block ") + std::to_string(index_) +
                            (graph && owner_.is_last_ ? ", last" : ""));
      return {.hidden = stream.hidden * 2};
    }

   private:
    CountedLm& owner_;
    const int index_;
  };
  torch::Tensor weight_;
  bool is_last_ = true;
};

TEST(VerticalScheduleTest, EachBlockRunsAllMicroBatchesBeforeTheNext) {
  CountedLm model;
  ActivationsInPlace activations;
  const torch::Tensor tokens = torch::ones({1, 3}, torch::kInt64);
  const Batch batch = {tokens, Labels::AllOf(tokens)};
  ASSERT_OK(RunVertically(model, {batch, batch}, activations, Accept, LossFactors()));
  EXPECT_THAT(model.runs,
              ElementsAreArray(
                  {"2 micro-batches", "hold 0",    "embed",     "embed",         "release 0",
                   "hold 1",          "block 0",   "block 0",   "release 1",     "hold 2",
                   "block 1",         "block 1",   "release 2", "hold 3",        "head",
                   "head, last",      "release 3", "hold 2",    "graph 1",       "graph 1, last",
                   "release 2",       "hold 1",    "graph 0",   "graph 0, last", "release 1"}));
}

TEST(VerticalScheduleTest, ARefusedLossEndsTheRunBeforeItsBackward) {
  CountedLm model;
  ActivationsInPlace activations;
  const torch::Tensor tokens = torch::ones({1, 3}, torch::kInt64);
  const Batch batch = {tokens, Labels::AllOf(tokens)};
  EXPECT_THAT(RunVertically(
                  model, {batch, batch}, activations,
                  [](int64_t i, double) {
                    return i == 0 ? absl::OkStatus() : absl::CancelledError("second");
                  },
                  LossFactors()),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(model.runs.back(), "head, last");
}

TEST(VerticalScheduleTest, FrozenEmbeddingsStayWithoutGradient) {
  const auto model = MakeModel(kModels[0], "0.0");
  for (auto& item : model->named_parameters()) {
    if (item.key().find(".w") != std::string::npos) item.value().set_requires_grad(false);
  }
  ASSERT_FALSE(model->named_parameters()["transformer.wpe.weight"].requires_grad());
  ActivationsInPlace activations;
  ASSERT_OK(RunVertically(*model, MicroBatches(2), activations, Accept, LossFactors()));
  EXPECT_FALSE(model->named_parameters()["transformer.wpe.weight"].grad().defined());
  EXPECT_TRUE(model->named_parameters()["transformer.h.0.ln_1.bias"].grad().defined());
}

}  // namespace
}  // namespace gemini::trainer
