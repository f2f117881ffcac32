// SPDX-License-Identifier: Apache-2.0
// The floor that is named before a run is one that runs, and little above the least that does: each
// job is trained at it, and at less and less.
#include "trainer/forecast/device_floor.h"

#include <memory>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "tests/client/torch/training_fixture.h"
#include "trainer/families/hf_config.h"
#include "trainer/forecast/chunk_choice.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {
namespace {

using namespace client::hooks;  // NOLINT: this is a test of all that is in there.

constexpr char kGpt2[] = R"({"model_type":"gpt2","vocab_size":512,"n_positions":64,"n_embd":128,
    "n_layer":4,"n_head":4})";
constexpr char kWideGpt2[] = R"({"model_type":"gpt2","vocab_size":2048,"n_positions":64,
    "n_embd":192,"n_layer":2,"n_head":4})";
constexpr char kOpt[] = R"({"model_type":"opt","vocab_size":512,"max_position_embeddings":64,
    "hidden_size":128,"word_embed_proj_dim":128,"ffn_dim":512,"num_hidden_layers":4,
    "num_attention_heads":4,"dropout":0.1})";
constexpr char kOptPostNorm[] = R"({"model_type":"opt","vocab_size":512,
    "max_position_embeddings":64,"hidden_size":128,"word_embed_proj_dim":64,"ffn_dim":512,
    "num_hidden_layers":4,"num_attention_heads":4,"dropout":0.1,"do_layer_norm_before":false})";

constexpr char kLlama[] = R"({"model_type":"llama","vocab_size":512,"max_position_embeddings":64,
    "hidden_size":128,"intermediate_size":384,"num_hidden_layers":5,"num_attention_heads":4,
    "num_key_value_heads":2})";
constexpr char kGemma2[] = R"({"model_type":"gemma2","vocab_size":512,"max_position_embeddings":64,
    "hidden_size":128,"intermediate_size":384,"num_hidden_layers":4,"num_attention_heads":4,
    "num_key_value_heads":2,"head_dim":32,"sliding_window":16,"query_pre_attn_scalar":32})";
constexpr char kMixtral[] = R"({"model_type":"mixtral","vocab_size":512,
    "max_position_embeddings":64,"hidden_size":128,"intermediate_size":256,"num_hidden_layers":3,
    "num_attention_heads":4,"num_key_value_heads":2,"num_local_experts":4})";

constexpr int64_t kChunkBytes = 64 * kKiB;
// How much of the least DEVICE that runs a named floor may be above it.
constexpr double kMostExcess = 0.10;

struct FloorJob {
  const char* name;
  const char* model = kGpt2;
  int64_t batch = 2;
  int64_t sequence = 32;
  int64_t accumulate = 1;
  bool recompute = false;
  const char* precision = "fp32";
};

class DeviceFloorTest : public TrainingTest, public ::testing::WithParamInterface<FloorJob> {
 protected:
  DeviceFloorTest() { at::set_num_threads(1); }

  RunConfig Config() const {
    RunConfig config;
    config.batch = GetParam().batch;
    config.sequence = GetParam().sequence;
    config.accumulate = GetParam().accumulate;
    config.recompute = GetParam().recompute;
    config.precision = GetParam().precision;
    config.chunk_size = kChunkBytes;
    return config;
  }

  DeviceNeed NamedFloor() const {
    const RunConfig config = Config();
    const ModelSpec model = ParseHfConfig(GetParam().model, "config")->spec;
    return *ChooseChunkSize({.config = config, .model = model, .links = {}}).floor;
  }

  // Trains some steps, the later ones by a plan. False: there was too little of DEVICE.
  bool Runs(int64_t device_bytes) {
    const RunConfig config = Config();
    auto model = *MakeStagedModel(ParseHfConfig(GetParam().model, "config")->spec,
                                  ScalarTypeOf(config.element()));
    model->set_recompute(config.recompute);
    torch::manual_seed(5);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : model->parameters()) parameter.normal_(0, 0.02);
    }
    TrainingOptions options = SmallOptions();
    options.chunk_bytes = kChunkBytes;
    options.device_memory = device_bytes;
    options.host_memory = 128 * kMiB;
    Open(options);
    ManagedModel* const managed = Manage(*model);
    bool runs = managed != nullptr;
    for (int step = 0; runs && step < 4; ++step) runs = Step(*model, *managed, config);
    session_.reset();
    server_.reset();
    return runs;
  }

  bool Step(StagedModel& model, ManagedModel& managed, const RunConfig& config) {
    model.zero_grad();
    try {
      for (int64_t i = 0; i < config.accumulate; ++i) {
        const torch::Tensor tokens =
            torch::randint(0, 512, {config.batch, config.sequence}, torch::kInt64);
        const LossFactors factors = LossFactors::OfStep(
            1, config.accumulate * Labels::AllOf(tokens).count, config.accumulate);
        model.Losses(tokens, factors).Backward(factors);
      }
    } catch (const c10::OutOfMemoryError&) {
      return false;
    }
    return session_->status().ok() && managed.Step({}).ok();
  }
};

TEST_P(DeviceFloorTest, TheNamedFloorRunsAndIsLittleAboveTheLeastThatDoes) {
  const DeviceNeed named = NamedFloor();
  ASSERT_TRUE(Runs(named.bytes())) << named.who;
  int64_t runs = named.bytes(), fails = named.bytes() / 2;
  while (runs - fails > named.bytes() / 256) {
    const int64_t middle = fails + (runs - fails) / 2;
    (Runs(middle) ? runs : fails) = middle;
  }
  const double excess = static_cast<double>(named.bytes()) / static_cast<double>(runs) - 1;
  std::printf(
      "%s: %s needs %ld (%ld of chunks, %ld beside); the least that runs is %ld: %.1f%% above\n",
      GetParam().name, named.who.c_str(), named.bytes(), named.chunk_bytes, named.non_model_bytes,
      runs, 100 * excess);
  EXPECT_LE(excess, kMostExcess);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, DeviceFloorTest,
    ::testing::Values(
        FloorJob{.name = "gpt2"}, FloorJob{.name = "gpt2 recomputed", .recompute = true},
        FloorJob{.name = "gpt2 in bf16", .precision = "bf16"},
        FloorJob{.name = "gpt2 in fp16", .precision = "fp16"},
        FloorJob{.name = "gpt2 accumulating", .accumulate = 2},
        FloorJob{.name = "gpt2 of long sequences", .batch = 1, .sequence = 64},
        FloorJob{.name = "gpt2 of one short sequence", .batch = 1, .sequence = 8},
        FloorJob{.name = "gpt2 of eight sequences", .batch = 8},
        FloorJob{.name = "wide gpt2", .model = kWideGpt2},
        FloorJob{.name = "wide gpt2 recomputed", .model = kWideGpt2, .recompute = true},
        FloorJob{.name = "llama", .model = kLlama},
        FloorJob{.name = "llama recomputed in bf16",
                 .model = kLlama,
                 .recompute = true,
                 .precision = "bf16"},
        FloorJob{.name = "gemma2", .model = kGemma2},
        FloorJob{.name = "mixtral", .model = kMixtral}, FloorJob{.name = "opt", .model = kOpt},
        FloorJob{.name = "opt recomputed", .model = kOpt, .recompute = true},
        FloorJob{.name = "opt accumulating", .model = kOpt, .accumulate = 2},
        FloorJob{.name = "opt, norms behind", .model = kOptPostNorm},
        FloorJob{.name = "opt, norms behind, recomputed", .model = kOptPostNorm, .recompute = true},
        FloorJob{.name = "opt, norms behind, bf16", .model = kOptPostNorm, .precision = "bf16"}),
    [](const ::testing::TestParamInfo<FloorJob>& job) {
      std::string name = job.param.name;
      std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
      return name;
    });

}  // namespace
}  // namespace gemini::trainer
