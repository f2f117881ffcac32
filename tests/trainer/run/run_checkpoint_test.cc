// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_checkpoint.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

// Plain memory that gives and takes pieces of an odd size, as chunks do, without any optimizer.
class PiecewiseStore final : public ParameterStore {
 public:
  PiecewiseStore(const std::vector<ParameterShape>& parameters, int64_t piece_bytes, uint32_t seed)
      : piece_bytes_(piece_bytes) {
    for (const ParameterShape& parameter : parameters) {
      for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
        std::vector<uint32_t>& words = values_[{parameter.name, kind}];
        words.resize(static_cast<size_t>(parameter.num_elements()));
        for (uint32_t& word : words)
          word = seed == 0 ? 0 : (seed = seed * 1664525 + 1013904223) >> 2;
      }
      steps_[parameter.name] = seed == 0 ? 0 : 7;
    }
  }
  absl::StatusOr<client::StepResult> Update(const client::StepOptions&) override {
    return client::StepResult();
  }
  OptimizerKind optimizer() const override { return OptimizerKind::kAdamW; }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override {
    const absl::Span<std::byte> all = Bytes(name, kind);
    for (size_t at = 0; at < all.size(); at += static_cast<size_t>(piece_bytes_)) {
      const absl::Span<const std::byte> part = range.PartOf(
          static_cast<int64_t>(at), all.subspan(at, static_cast<size_t>(piece_bytes_)));
      if (part.empty()) continue;
      const absl::Status status = sink(part.data() - all.data(), part);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status Write(absl::string_view name, ChunkKind kind, Source source) override {
    const absl::Span<std::byte> all = Bytes(name, kind);
    for (size_t at = 0; at < all.size(); at += static_cast<size_t>(piece_bytes_)) {
      const absl::Status status =
          source(static_cast<int64_t>(at), all.subspan(at, static_cast<size_t>(piece_bytes_)));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override {
    return steps_.at(std::string(name));
  }
  absl::Status SetStep(int64_t step) override {
    step_ = step;
    return absl::OkStatus();
  }
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override {
    steps_[std::string(name)] = step;
    return absl::OkStatus();
  }
  absl::Status status() const override { return absl::OkStatus(); }
  client::TrainingStats usage() const override { return {}; }
  void ResetPeaks() override {}

  std::map<std::pair<std::string, ChunkKind>, std::vector<uint32_t>> values_;
  std::map<std::string, int64_t> steps_;
  int64_t step_ = 0;

 private:
  absl::Span<std::byte> Bytes(absl::string_view name, ChunkKind kind) {
    std::vector<uint32_t>& words = values_[{std::string(name), kind}];
    return {reinterpret_cast<std::byte*>(words.data()), words.size() * sizeof(uint32_t)};
  }
  const int64_t piece_bytes_;
};

class RunCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "run_checkpoint_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    source_ = root_ + "/source";
    std::filesystem::create_directory(source_);
    std::ofstream(source_ + "/config.json")
        << R"({"model_type": "gpt2", "vocab_size": 8, "n_positions": 4, "n_embd": 4, "n_layer": 1,)"
        << R"( "n_head": 1})";
    auto writer = SafetensorsWriter::Create(source_ + "/model.safetensors",
                                            {{"any", SafetensorsDtype::kF16, {1}}}, {});
    ASSERT_OK(writer);
    ASSERT_OK(writer->AppendRaw(std::vector<std::byte>(2)));
    ASSERT_OK(writer->Finish());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_;
  std::string source_;
};

TEST_F(RunCheckpointTest, EveryBitComesBackThroughPiecesAndWindows) {
  // 80 MiB are more than a window; 300,004 bytes divide nothing.
  const std::vector<ParameterShape> parameters = {{"transformer.large", {20, 1 << 20}},
                                                  {"transformer.small", {3}}};
  PiecewiseStore store(parameters, 300'004, /*seed=*/1);
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(source_));
  TrainerState state;
  state.step = 9;
  const std::string directory = root_ + "/checkpoint";
  // Each part tells of all its bytes: three tensors of a parameter in all, and never too many.
  int64_t done_bytes = 0;
  int64_t told_total_bytes = 0;
  const auto told = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, done_bytes);
    done_bytes = done;
    told_total_bytes = total;
  };
  const auto told_of = [&](int64_t tensors) {
    constexpr int64_t kParameterBytes = int64_t{4} * (20 * (1 << 20) + 3);
    EXPECT_EQ(done_bytes, tensors * kParameterBytes);
    EXPECT_EQ(told_total_bytes, tensors * kParameterBytes);
    done_bytes = 0;
  };
  ASSERT_OK(WriteRunCheckpoint(directory, source, parameters, store, state, told));
  told_of(3);

  int64_t written = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    written += static_cast<int64_t>(entry.file_size());
  }
  ASSERT_OK_AND_ASSIGN(const int64_t promised,
                       RunCheckpointBytes(source, parameters, OptimizerKind::kAdamW));
  EXPECT_LE(written, promised);

  PiecewiseStore back(parameters, 4096, /*seed=*/0);
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint weights, HfCheckpoint::Open(directory));
  ASSERT_OK(LoadParameters(weights, parameters, back, told));
  told_of(1);
  ASSERT_OK_AND_ASSIGN(const TrainerState read, ReadTrainerState(directory));
  ASSERT_OK(LoadOptimizer(directory, read, parameters, back, told));
  told_of(2);
  EXPECT_TRUE(back.values_ == store.values_);
  EXPECT_EQ(back.steps_, store.steps_);
  EXPECT_EQ(back.step_, 9);
  EXPECT_EQ(read.step, 9);
}

TEST_F(RunCheckpointTest, MomentsOfAnotherModelAreRefused) {
  const std::vector<ParameterShape> parameters = {{"a", {3}}};
  PiecewiseStore store(parameters, 4096, /*seed=*/1);
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(source_));
  const std::string directory = root_ + "/checkpoint";
  ASSERT_OK(WriteRunCheckpoint(directory, source, parameters, store, TrainerState()));
  ASSERT_OK_AND_ASSIGN(TrainerState state, ReadTrainerState(directory));
  EXPECT_THAT(LoadOptimizer(directory, state, std::vector<ParameterShape>{{"a", {4}}}, store),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("exp_avg.a")));
  EXPECT_THAT(LoadOptimizer(directory, state, std::vector<ParameterShape>{{"b", {3}}}, store),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no step of b")));
}

}  // namespace
}  // namespace gemini::trainer
