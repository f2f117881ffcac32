// SPDX-License-Identifier: Apache-2.0
// A run's checkpoint goes from ranks to others, which share layers and sequences in other ways,
// without a step in between: each writes the bytes that the one before has written.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gemini/files/safetensors_format.h"
#include "gemini/system/status_macros.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/model_of_ranks.h"
#include "trainer/parallel/parameter_store_ranks.h"
#include "trainer/parallel/stage_dealing.h"
#include "trainer/run/run_checkpoint.h"
#include "trainer/store/parameter_store_reference.h"

namespace gemini::trainer {
namespace {

using policies::TensorMode;

struct Ranks {
  int64_t count = 1;
  int64_t tensor = 1;
  TensorMode mode = TensorMode::k1d;
  int64_t depth = 1;
  int64_t sequence = 1;
  SequenceLayout layout = {};
  int64_t pipeline = 1;
};
constexpr Ranks kOne = {}, kShards = {4}, kLine = {2, 2}, kSquare = {8, 4, TensorMode::k2d},
                kSquares = {8, 8, TensorMode::k2Point5d, 2}, kCube = {8, 8, TensorMode::k3d},
                kMegatron = {2, 2, TensorMode::k1d, 1, 1, {SequenceSharing::kMegatron}},
                kUlysses = {2, 1, TensorMode::k1d, 1, 2, {SequenceSharing::kUlysses}},
                kRing = {4, 1, TensorMode::k1d, 1, 4, {SequenceSharing::kRing, /*zigzag=*/true}},
                kStages = {4, 2, TensorMode::k1d, 1, 1, {}, 2};

// Tables of 301 rows have padded ones in every mode. One is tied and fuses its matrices of
// attention, the other has neither.
constexpr const char* kConfigs[] = {
    R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":2,"n_head":4})",
    R"({"model_type":"llama","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":256})"};

using Files = std::map<std::string, std::string>;  // Content by name.

Files FilesIn(const std::string& directory) {
  Files files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

class RunCheckpointRanksTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "run_checkpoint_ranks_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // Ranks load `from`, a checkpoint of a run, and write `to`. If `from` is empty, one rank writes
  // values that differ from each other.
  void PassOn(const Ranks& ranks, const std::string& from, const std::string& to) {
    const ModelSpec spec = ParseHfConfig(GetParam(), "config")->spec;
    const RankLayout layout(
        *policies::Mesh::Make(
            ranks.count,
            {.pipeline = ranks.pipeline, .sequence = ranks.sequence, .tensor = ranks.tensor}),
        *policies::TensorGrid::Make(ranks.mode, ranks.tensor, ranks.depth), ranks.layout);
    ASSERT_OK_AND_ASSIGN(const ModelStages stages,
                         DealStages(spec, /*sequence=*/16, {.ranks = ranks.pipeline}, ""));
    RunThreadRanks(ranks.count, [&](Communicator& me) {
      ASSERT_OK_AND_ASSIGN(
          const std::unique_ptr<GatheredModel> model,
          MakeModelOfRank(spec, torch::kFloat32, me, layout,
                          {.block_elements = ShardBlockElements(MomentFormat::kFp32)}, stages));
      ASSERT_OK_AND_ASSIGN(auto own, ReferenceParameterStore::Create(*model, {}, {}));
      RanksParameterStore store(std::move(own), *model, me, layout);
      std::vector<ParameterShape> parameters;
      for (size_t u = 0; u < model->units().size(); ++u) {
        const std::vector<UnitTensor>& tensors = model->units()[u]->tensors();
        for (size_t i = 0; i < tensors.size(); ++i) {
          parameters.push_back({tensors[i].name, model->boxes(u)[i].sizes()});
        }
      }
      TrainerState state;
      if (from.empty()) {
        state.step = 9;
        ASSERT_NO_FATAL_FAILURE(Fill(parameters, store));
      } else {
        ASSERT_OK_AND_ASSIGN(const HfCheckpoint weights, HfCheckpoint::Open(from));
        ASSERT_OK_AND_ASSIGN(state, ReadTrainerState(from));
        ASSERT_OK(LoadParameters(weights, parameters, store));
        ASSERT_OK(LoadOptimizer(from, state, parameters, store));
        state.tensor_steps.clear();
      }
      ASSERT_OK(store.OnFirstRank([&]() -> absl::Status {
        GEMINI_ASSIGN_OR_RETURN(const HfCheckpoint source, HfCheckpoint::Open(source_));
        return WriteRunCheckpoint(to, source, parameters, store, state);
      }));
    });
  }

  std::string root_;
  std::string source_;

 private:
  void Fill(const std::vector<ParameterShape>& parameters, ParameterStore& store) {
    int64_t number = 0;
    for (const ParameterShape& parameter : parameters) {
      for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
        ASSERT_OK(store.Write(parameter.name, kind, [&](int64_t, absl::Span<std::byte> bytes) {
          auto* const values = reinterpret_cast<float*>(bytes.data());
          for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
            values[i] = static_cast<float>(++number);
          }
          return absl::OkStatus();
        }));
      }
      ASSERT_OK(store.SetTensorStep(parameter.name, 1 + ++number % 9));
    }
  }
};

TEST_P(RunCheckpointRanksTest, OtherRanksWriteTheSameBytes) {
  source_ = root_ + "/source";
  std::filesystem::create_directory(source_);
  std::ofstream(source_ + "/config.json") << GetParam();
  auto writer = SafetensorsWriter::Create(source_ + "/model.safetensors",
                                          {{"any", SafetensorsDtype::kF32, {1}}}, {});
  ASSERT_OK(writer);
  ASSERT_OK(writer->AppendRaw(std::vector<std::byte>(4)));
  ASSERT_OK(writer->Finish());
  std::string last = root_ + "/0";
  PassOn(kOne, "", last);
  const Files first = FilesIn(last);
  EXPECT_EQ(first.count(kOptimizerFile), 1);
  EXPECT_EQ(first.count("model.safetensors"), 1);
  int number = 0;
  for (const Ranks& ranks : {kSquares, kLine, kOne, kSquares, kCube, kMegatron, kSquare, kUlysses,
                             kStages, kShards, kRing, kStages, kOne}) {
    const std::string next = root_ + "/" + std::to_string(++number);
    PassOn(ranks, last, next);
    const Files files = FilesIn(next);
    ASSERT_EQ(files.size(), first.size());
    for (const auto& [name, content] : first) {
      ASSERT_TRUE(files.at(name) == content) << name << " of checkpoint " << number;
    }
    last = next;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RunCheckpointRanksTest, ::testing::ValuesIn(kConfigs),
                         [](const auto& one) { return one.index == 0 ? "gpt2" : "llama"; });

}  // namespace
}  // namespace gemini::trainer
