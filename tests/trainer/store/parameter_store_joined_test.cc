// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/parameter_store_joined.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/families/vocabulary_cut.h"
#include "trainer/models/staged_model.h"
#include "trainer/store/parameter_store_reference.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;

constexpr char kTable[] = "model.embed_tokens.weight";
constexpr int64_t kVocabulary = 9000, kWidth = 64;  // Two pieces.

class JoinedParameterStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ModelSpec spec = ParseHfConfig(R"({"model_type": "llama", "vocab_size": 9000,
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 1, "max_position_embeddings": 16, "tie_word_embeddings": true})",
                                         "config")
                               ->spec;
    ASSERT_OK_AND_ASSIGN(model_, MakeStagedModel(spec, torch::kFloat32, {.blocks = 2}));
    parameters_ = ParameterShapesOf(*model_);
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<ReferenceParameterStore> store,
                         ReferenceParameterStore::Create(*model_, {}, {}));
    store_ = std::make_unique<JoinedParameterStore>(std::move(store), parameters_);
  }

  // Values from 0 up.
  absl::Status WriteCount(absl::string_view name, ChunkKind kind) {
    return store_->Write(name, kind, [](int64_t offset_bytes, absl::Span<std::byte> bytes) {
      auto* const values = reinterpret_cast<float*>(bytes.data());
      for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
        values[i] = static_cast<float>(offset_bytes / 4 + static_cast<int64_t>(i));
      }
      return absl::OkStatus();
    });
  }
  absl::StatusOr<std::vector<float>> ReadAll(absl::string_view name, ChunkKind kind) {
    std::vector<float> values;
    const absl::Status status =
        store_->Read(name, kind, [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
          EXPECT_EQ(offset_bytes, static_cast<int64_t>(values.size() * sizeof(float)));
          values.resize(values.size() + bytes.size() / sizeof(float));
          std::memcpy(reinterpret_cast<std::byte*>(values.data()) + offset_bytes, bytes.data(),
                      bytes.size());
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return values;
  }

  std::unique_ptr<StagedModel> model_;
  std::vector<ParameterShape> parameters_;
  std::unique_ptr<JoinedParameterStore> store_;
};

TEST_F(JoinedParameterStoreTest, FilesHaveOneTensorForATable) {
  ASSERT_EQ(parameters_[0].name, "model.embed_tokens.weight_0");
  ASSERT_EQ(parameters_[1].name, "model.embed_tokens.weight_1");
  const std::vector<ParameterShape> shapes = ShapesInFiles(parameters_);
  ASSERT_EQ(shapes.size(), parameters_.size() - 1);
  EXPECT_EQ(shapes[0].name, kTable);
  EXPECT_THAT(shapes[0].shape, ElementsAre(kVocabulary, kWidth));
  EXPECT_EQ(shapes[1].name, parameters_[2].name);
  EXPECT_EQ(shapes[1].shape, parameters_[2].shape);
}

TEST_F(JoinedParameterStoreTest, ATableIsReadAndWrittenThroughItsBlocks) {
  for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg}) {
    ASSERT_OK(WriteCount(kTable, kind));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values, ReadAll(kTable, kind));
    ASSERT_EQ(values.size(), static_cast<size_t>(kVocabulary * kWidth));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(i));
  }
  const torch::Tensor second = model_->named_parameters()["model.embed_tokens.weight_1"];
  EXPECT_EQ(second.flatten()[0].item<float>(),
            static_cast<float>((kVocabulary - second.size(0)) * kWidth));
  ASSERT_OK(WriteCount("model.norm.weight", ChunkKind::kParam));
  EXPECT_EQ(model_->named_parameters()["model.norm.weight"][63].item<float>(), 63);
}

TEST_F(JoinedParameterStoreTest, ARangeOfATableIsReadFromItsBlocks) {
  ASSERT_OK(WriteCount(kTable, ChunkKind::kParam));
  const torch::Tensor second = model_->named_parameters()["model.embed_tokens.weight_1"];
  const int64_t border = (kVocabulary - second.size(0)) * kWidth;
  struct Part {
    int64_t first, end;
  };
  for (const auto& [first, end] : {Part{0, 5}, Part{border - 3, border + 2},
                                   Part{border, border + 1}, Part{border - 2, border}}) {
    SCOPED_TRACE(first);
    std::vector<float> values;
    ASSERT_OK(
        store_->ReadRange(kTable, ChunkKind::kParam, {first * 4, (end - first) * 4},
                          [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
                            EXPECT_EQ(offset_bytes, (first + std::ssize(values)) * 4);
                            const auto* const part = reinterpret_cast<const float*>(bytes.data());
                            values.insert(values.end(), part, part + bytes.size() / sizeof(float));
                            return absl::OkStatus();
                          }));
    ASSERT_EQ(std::ssize(values), end - first);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], static_cast<float>(first + static_cast<int64_t>(i)));
    }
  }
}

TEST_F(JoinedParameterStoreTest, BlocksHaveTheStepsOfTheirTable) {
  ASSERT_OK(store_->SetTensorStep(kTable, 7));
  EXPECT_THAT(store_->TensorStep(kTable), IsOkAndHolds(7));
  EXPECT_THAT(store_->TensorStep("model.embed_tokens.weight_1"), IsOkAndHolds(7));
  EXPECT_THAT(store_->TensorStep("model.norm.weight"), IsOkAndHolds(0));
  EXPECT_THAT(store_->TensorStep("model.nothing.weight").status(),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("nothing")));
}

}  // namespace
}  // namespace gemini::trainer
