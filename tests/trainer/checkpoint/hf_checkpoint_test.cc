// SPDX-License-Identifier: Apache-2.0
// Without Torch: the directory, its names and its files. Values against transformers are in
// hf_parity_test.cc.
#include "trainer/checkpoint/hf_checkpoint.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/status_matchers.h"
#include "trainer/checkpoint/initial_values.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Declaration = SafetensorsWriter::Declaration;

constexpr const char* kTied = R"({"model_type":"gpt2","custom":{"b":1,"a":2},"dtype":"float16"})";
constexpr const char* kUntied = R"({"model_type":"gpt2","tie_word_embeddings":false})";

// Parameters of no real model: what is checked is names, shapes and bytes.
const std::vector<ParameterShape>& Parameters() {
  static const auto& parameters = *new std::vector<ParameterShape>{
      {"transformer.wte.weight", {4, 3}}, {"transformer.h.0.ln_1.bias", {5}}};
  return parameters;
}

class HfCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(::testing::TempDir(), "/checkpoint-XXXXXX");
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
    directory_ = root_ + "/model";
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void WriteText(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << text;
  }
  static std::string ReadText(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Writes tensors whose elements are `first`, first + 1, and so on.
  void WriteTensors(const std::string& file, const std::vector<Declaration>& tensors,
                    float first = 1.0f) {
    ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer,
                         SafetensorsWriter::Create(directory_ + "/" + file, tensors, {}));
    for (const Declaration& tensor : tensors) {
      std::vector<float> values(
          static_cast<size_t>(ParameterShape{tensor.name, tensor.shape}.num_elements()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
      ASSERT_OK(writer.AppendFloat32(absl::MakeConstSpan(
          reinterpret_cast<const std::byte*>(values.data()), values.size() * 4)));
    }
    ASSERT_OK(writer.Finish());
  }
  void WriteModel(SafetensorsDtype dtype = SafetensorsDtype::kF32) {
    WriteText("config.json", kTied);
    WriteTensors("model.safetensors", {{"transformer.wte.weight", dtype, {4, 3}},
                                       {"transformer.h.0.ln_1.bias", dtype, {5}}});
  }
  absl::Status OpenAndCheck() {
    const auto checkpoint = HfCheckpoint::Open(directory_);
    return checkpoint.ok() ? checkpoint->Check(Parameters()) : checkpoint.status();
  }
  // Saves values that are twice those of WriteModel, in pieces of 8 bytes.
  absl::Status Save(const HfCheckpoint& source, const std::string& target,
                    const SaveOptions& options) {
    std::vector<float> piece;
    return SaveHfCheckpoint(
        target, source, Parameters(), options,
        [&](const std::string&, int64_t offset,
            int64_t size) -> absl::StatusOr<absl::Span<const std::byte>> {
          piece.clear();
          for (int64_t i = offset / 4; i < (offset + std::min<int64_t>(size, 8)) / 4; ++i) {
            piece.push_back(2.0f * static_cast<float>(i + 1));
          }
          return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(piece.data()),
                                     piece.size() * 4);
        });
  }
  static std::vector<float> ReadAll(const HfCheckpoint& checkpoint, const std::string& name,
                                    size_t count) {
    std::vector<float> values(count);
    EXPECT_OK(checkpoint.ReadFloat32(
        name, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), count * 4)));
    return values;
  }
  static std::set<std::string> Names(const std::string& directory) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  std::string root_;
  std::string directory_;
};

TEST_F(HfCheckpointTest, FilesOfTheBareModelGetItsPrefix) {
  WriteText("config.json", kTied);
  WriteTensors("model.safetensors", {{"wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                     {"h.0.ln_1.bias", SafetensorsDtype::kF32, {5}}});
  EXPECT_OK(OpenAndCheck());
}

TEST_F(HfCheckpointTest, OptFilesOfEachFormGetOneName) {
  const std::vector<ParameterShape> parameters = {{"model.decoder.embed_tokens.weight", {2}}};
  WriteText("config.json", R"({"model_type":"opt"})");
  for (const char* name : {"model.decoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                           "embed_tokens.weight"}) {
    WriteTensors("model.safetensors", {{name, SafetensorsDtype::kF32, {2}}});
    ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_));
    EXPECT_OK(checkpoint.Check(parameters)) << name;
  }
}

TEST_F(HfCheckpointTest, CausalMasksOfOldFilesAreIgnored) {
  WriteText("config.json", kTied);
  WriteTensors("model.safetensors", {{"wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                     {"h.0.ln_1.bias", SafetensorsDtype::kF32, {5}},
                                     {"h.0.attn.bias", SafetensorsDtype::kF32, {1, 1, 2, 2}},
                                     {"h.0.attn.masked_bias", SafetensorsDtype::kF32, {}}});
  EXPECT_OK(OpenAndCheck());
}

TEST_F(HfCheckpointTest, WhatDiffersFromTheConfigIsNamedWithNumbers) {
  WriteText("config.json", kTied);
  WriteTensors("model.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {3, 4}},
                                     {"transformer.score", SafetensorsDtype::kF32, {2}}});
  EXPECT_THAT(
      OpenAndCheck(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("1 missing tensor: transformer.h.0.ln_1.bias"),
                     HasSubstr("1 unexpected tensor: 'transformer.score'"),
                     HasSubstr("1 misshapen tensor: transformer.wte.weight is [3, 4], expected "
                               "[4, 3]"))));
}

TEST_F(HfCheckpointTest, ParametersThatAreNotFloatAreRefused) {
  WriteText("config.json", kTied);
  WriteTensors("model.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}}});
  const std::string header =
      R"({"transformer.wte.weight":{"dtype":"F32","shape":[4,3],"data_offsets":[0,48]},)"
      R"("transformer.h.0.ln_1.bias":{"dtype":"I8","shape":[5],"data_offsets":[48,53]}})";
  uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  WriteText("model.safetensors", bytes + header + std::string(53, '\0'));
  EXPECT_THAT(OpenAndCheck(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("transformer.h.0.ln_1.bias is I8")));
}

TEST_F(HfCheckpointTest, ATiedHeadMayBeAbsentAloneOrEqual) {
  const Declaration embedding = {"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}};
  const Declaration head = {"lm_head.weight", SafetensorsDtype::kF32, {4, 3}};
  const Declaration bias = {"transformer.h.0.ln_1.bias", SafetensorsDtype::kF32, {5}};
  WriteText("config.json", kTied);
  for (const auto& tensors :
       {std::vector<Declaration>{embedding, bias}, std::vector<Declaration>{head, bias},
        std::vector<Declaration>{embedding, head, bias}}) {
    WriteTensors("model.safetensors", tensors);
    EXPECT_OK(OpenAndCheck());
    ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_));
    EXPECT_EQ(ReadAll(checkpoint, "transformer.wte.weight", 12)[11], 12.0f);
    // However it was read, it is written once, as the embedding.
    const std::string target = root_ + "/saved";
    ASSERT_OK(Save(checkpoint, target, {}));
    ASSERT_OK_AND_ASSIGN(const SafetensorsReader saved,
                         SafetensorsReader::Open(target + "/model.safetensors"));
    EXPECT_NE(saved.Find("transformer.wte.weight"), nullptr);
    EXPECT_EQ(saved.Find("lm_head.weight"), nullptr);
    std::filesystem::remove_all(target);
  }
}

TEST_F(HfCheckpointTest, ATiedHeadThatDiffersIsRefused) {
  WriteText("config.json", kTied);
  WriteText("model.safetensors.index.json",
            R"({"weight_map":{"transformer.wte.weight":"a.safetensors",
                "transformer.h.0.ln_1.bias":"a.safetensors","lm_head.weight":"b.safetensors"}})");
  WriteTensors("a.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                 {"transformer.h.0.ln_1.bias", SafetensorsDtype::kF32, {5}}});
  WriteTensors("b.safetensors", {{"lm_head.weight", SafetensorsDtype::kF32, {4, 3}}}, 2.0f);
  EXPECT_THAT(OpenAndCheck(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr("differ from element 0 on"),
                                             HasSubstr("\"tie_word_embeddings\": false"))));
  WriteTensors("b.safetensors", {{"lm_head.weight", SafetensorsDtype::kF32, {3, 4}}});
  EXPECT_THAT(OpenAndCheck(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[3, 4] and [4, 3]")));
}

TEST_F(HfCheckpointTest, AnUntiedHeadIsAParameter) {
  WriteText("config.json", kUntied);
  WriteTensors("model.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                     {"lm_head.weight", SafetensorsDtype::kF32, {4, 3}},
                                     {"transformer.h.0.ln_1.bias", SafetensorsDtype::kF32, {5}}});
  EXPECT_THAT(OpenAndCheck(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("unexpected tensor: 'lm_head.weight'")));
}

TEST_F(HfCheckpointTest, ADirectoryWithoutWeightsIsRefusedWithAdvice) {
  EXPECT_THAT(HfCheckpoint::Open(root_ + "/none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
  EXPECT_THAT(HfCheckpoint::Open(directory_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  WriteText("config.json", kTied);
  EXPECT_THAT(HfCheckpoint::Open(directory_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("neither model.safetensors nor")));
  WriteText("pytorch_model.bin", "");
  EXPECT_THAT(HfCheckpoint::Open(directory_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("save_pretrained")));
}

TEST_F(HfCheckpointTest, AnIndexThatLiesIsRefused) {
  WriteText("config.json", kTied);
  WriteTensors("a.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                 {"transformer.h.0.ln_1.bias", SafetensorsDtype::kF32, {5}}});
  const std::vector<std::pair<const char*, const char*>> lies = {
      {"[", "weight_map"},
      {"{}", "weight_map"},
      {R"({"weight_map":[]})", "weight_map"},
      {R"({"weight_map":{"a":7}})", "'a' is in no plain file name"},
      {R"({"weight_map":{"a":"../model/a.safetensors"}})", "'a' is in no plain file name"},
      {R"({"weight_map":{"a":"/model/a.safetensors"}})", "'a' is in no plain file name"},
      {R"({"weight_map":{"a":".."}})", "'a' is in no plain file name"},
      {R"({"weight_map":{"a":""}})", "'a' is in no plain file name"},
      {R"({"weight_map":{"other":"a.safetensors"}})", "'other' is not in"},
      {R"({"weight_map":{"transformer.wte.weight":"a.safetensors"}})",
       "names 1 tensors, its 1 files hold 2"},
  };
  for (const auto& [text, message] : lies) {
    WriteText("model.safetensors.index.json", text);
    EXPECT_THAT(HfCheckpoint::Open(directory_),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << text;
  }
  WriteText("model.safetensors.index.json", R"({"weight_map":{"a":"none.safetensors"}})");
  EXPECT_THAT(HfCheckpoint::Open(directory_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(HfCheckpointTest, TheSameParameterUnderTwoNamesIsRefused) {
  WriteText("config.json", kTied);
  WriteTensors("model.safetensors", {{"wte.weight", SafetensorsDtype::kF32, {2}},
                                     {"transformer.wte.weight", SafetensorsDtype::kF32, {2}}});
  EXPECT_THAT(HfCheckpoint::Open(directory_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
}

TEST_F(HfCheckpointTest, ParametersStreamIntoRoomsOfAnySize) {
  WriteModel(SafetensorsDtype::kBF16);
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_));
  std::map<std::string, std::vector<float>> values;
  ASSERT_OK(LoadInto(checkpoint, Parameters(),
                     [&](const std::string& name, int64_t offset,
                         int64_t size) -> absl::StatusOr<absl::Span<std::byte>> {
                       std::vector<float>& all = values[name];
                       if (offset == 0) all.resize(static_cast<size_t>(size) / 4);
                       return absl::MakeSpan(reinterpret_cast<std::byte*>(all.data()) + offset,
                                             static_cast<size_t>(std::min<int64_t>(size, 12)));
                     }));
  EXPECT_THAT(values["transformer.h.0.ln_1.bias"], ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(values["transformer.wte.weight"], ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
}

TEST_F(HfCheckpointTest, AnErrorOfTheRoomStopsTheLoading) {
  WriteModel();
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_));
  int calls = 0;
  EXPECT_THAT(LoadInto(checkpoint, Parameters(),
                       [&](const std::string&, int64_t, int64_t) {
                         ++calls;
                         return absl::StatusOr<absl::Span<std::byte>>(
                             absl::ResourceExhaustedError("no slot"));
                       }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no slot")));
  EXPECT_EQ(calls, 1);
}

TEST_F(HfCheckpointTest, ASavedCheckpointNamesNoCodeThatItLacks) {
  WriteModel(SafetensorsDtype::kF16);
  nlohmann::json json = nlohmann::json::parse(ReadText(directory_ + "/config.json"));
  const nlohmann::json without = json;
  json["auto_map"] = {{"AutoConfig", "configuration_gpt2.GPT2Config"}};
  WriteText("config.json", json.dump());
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(directory_));
  const std::string target = root_ + "/saved/";
  ASSERT_OK(Save(source, target, {}));
  EXPECT_EQ(nlohmann::json::parse(ReadText(target + "config.json")), without);
}

TEST_F(HfCheckpointTest, ASavedCheckpointKeepsConfigTypeAndTokenizer) {
  WriteModel(SafetensorsDtype::kF16);
  WriteText("tokenizer.json", "{\"a\":1}");
  WriteText("generation_config.json", "{}");
  WriteText("vocab.txt", "[PAD]");
  WriteText("training.log", "not ours");
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(directory_));
  // What is saved is what was there when the checkpoint was opened.
  std::filesystem::remove(directory_ + "/generation_config.json");
  WriteText("tokenizer.json", "another");
  const std::string target = root_ + "/saved/";
  ASSERT_OK(Save(source, target, {}));
  EXPECT_THAT(Names(target),
              UnorderedElementsAre("config.json", "model.safetensors", "tokenizer.json",
                                   "generation_config.json", "vocab.txt"));
  EXPECT_EQ(ReadText(target + "config.json"), kTied);
  EXPECT_EQ(ReadText(target + "tokenizer.json"), "{\"a\":1}");
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint saved, HfCheckpoint::Open(target));
  ASSERT_OK(saved.Check(Parameters()));
  EXPECT_THAT(ReadAll(saved, "transformer.h.0.ln_1.bias", 5), ElementsAre(2, 4, 6, 8, 10));
  EXPECT_THAT(saved.DtypeOf("transformer.wte.weight"), IsOkAndHolds(SafetensorsDtype::kF16));
  EXPECT_EQ(SavedTensorBytes(source, Parameters(), {}), 2 * 17);
}

TEST_F(HfCheckpointTest, SavingAsFp32ChangesTheTypeInTheConfigAlone) {
  WriteModel(SafetensorsDtype::kF16);
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(directory_));
  const SaveOptions options = {.dtype = SaveOptions::Dtype::kFloat32};
  ASSERT_OK(Save(source, root_ + "/saved", options));
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint saved, HfCheckpoint::Open(root_ + "/saved"));
  EXPECT_THAT(saved.DtypeOf("transformer.wte.weight"), IsOkAndHolds(SafetensorsDtype::kF32));
  std::string config = saved.config().json;
  std::erase_if(config, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(config, R"({"model_type":"gpt2","custom":{"b":1,"a":2},"dtype":"float32"})");
  EXPECT_EQ(SavedTensorBytes(source, Parameters(), options), 4 * 17);
}

TEST_F(HfCheckpointTest, AModelAboveTheShardSizeIsSavedInShards) {
  WriteModel();
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(directory_));
  ASSERT_OK(Save(source, root_ + "/saved", {.max_shard_bytes = 30}));
  EXPECT_THAT(
      Names(root_ + "/saved"),
      UnorderedElementsAre("config.json", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint saved, HfCheckpoint::Open(root_ + "/saved"));
  ASSERT_OK(saved.Check(Parameters()));
  EXPECT_THAT(ReadAll(saved, "transformer.h.0.ln_1.bias", 5), ElementsAre(2, 4, 6, 8, 10));
}

TEST_F(HfCheckpointTest, WhatIsThereIsNotOverwritten) {
  WriteModel();
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(directory_));
  EXPECT_THAT(Save(source, directory_, {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(directory_)));
  EXPECT_OK(OpenAndCheck());
  std::filesystem::create_directory(root_ + "/empty");
  EXPECT_OK(Save(source, root_ + "/empty", {}));
}

TEST_F(HfCheckpointTest, ASaveThatFailsLeavesNothing) {
  WriteModel();
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(directory_));
  int calls = 0;
  EXPECT_THAT(SaveHfCheckpoint(root_ + "/saved", source, Parameters(), {},
                               [&](const std::string&, int64_t,
                                   int64_t) -> absl::StatusOr<absl::Span<const std::byte>> {
                                 static const std::array<std::byte, 4> kPiece = {};
                                 if (++calls < 3) return absl::MakeConstSpan(kPiece);
                                 return absl::UnavailableError("the server is gone");
                               }),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Names(root_), UnorderedElementsAre("model"));
  EXPECT_THAT(Save(source, root_ + "/no/such/parent", {}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(HfCheckpointTest, AModelLargerThanTheDiskIsRefusedBeforeItsBytesAreAskedFor) {
  WriteModel();
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(directory_));
  const std::vector<ParameterShape> huge = {{"transformer.wte.weight", {int64_t{1} << 52}}};
  EXPECT_THAT(SaveHfCheckpoint(root_ + "/saved", source, huge, {},
                               [](const std::string&, int64_t, int64_t) {
                                 ADD_FAILURE() << "bytes were asked for";
                                 return absl::StatusOr<absl::Span<const std::byte>>(
                                     absl::InternalError(""));
                               }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("needs 16384 TiB")));
  EXPECT_THAT(Names(root_), UnorderedElementsAre("model"));
}

class HeadTest : public HfCheckpointTest {
 protected:
  const std::vector<ParameterShape> with_head_ = {{"transformer.wte.weight", {4, 3}},
                                                  {"transformer.h.0.ln_1.bias", {5}},
                                                  {"lm_head.weight", {4, 3}}};
};

TEST_F(HeadTest, ThatTheBareModelLacksIsMadeFromTheSeed) {
  WriteText("config.json", R"({"model_type":"gpt2","tie_word_embeddings":false,
                               "initializer_range":0.5})");
  WriteTensors("model.safetensors", {{"wte.weight", SafetensorsDtype::kBF16, {4, 3}},
                                     {"h.0.ln_1.bias", SafetensorsDtype::kBF16, {5}}});
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint first, HfCheckpoint::Open(directory_, 1));
  EXPECT_THAT(first.made_heads(), ElementsAre("lm_head."));
  EXPECT_OK(first.Check(with_head_));
  EXPECT_THAT(first.DtypeOf("lm_head.weight"), IsOkAndHolds(SafetensorsDtype::kBF16));
  const std::vector<float> values = ReadAll(first, "lm_head.weight", 12);
  std::vector<float> expected(12);
  FillNormal(/*seed=*/1, /*deviation=*/0.5, /*first=*/0, absl::MakeSpan(expected));
  EXPECT_EQ(values, expected);
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint second, HfCheckpoint::Open(directory_, 2));
  EXPECT_NE(ReadAll(second, "lm_head.weight", 12), values);
}

TEST_F(HeadTest, ThatTheWholeModelLacksIsMissing) {
  WriteText("config.json", kUntied);
  WriteTensors("model.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                     {"transformer.h.0.ln_1.bias", SafetensorsDtype::kF32, {5}}});
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_));
  EXPECT_THAT(checkpoint.made_heads(), ElementsAre());
  EXPECT_THAT(
      checkpoint.Check(with_head_),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 missing tensor: lm_head.weight")));
}

TEST_F(HeadTest, OfAnotherTaskIsLeftOutAndNamed) {
  WriteText("config.json", kUntied);
  WriteTensors("model.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                     {"transformer.h.0.ln_1.bias", SafetensorsDtype::kF32, {5}},
                                     {"score.weight", SafetensorsDtype::kF32, {2, 3}}});
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_));
  EXPECT_THAT(checkpoint.left_out(), ElementsAre("'score.weight'"));
  EXPECT_THAT(checkpoint.made_heads(), ElementsAre("lm_head."));
  EXPECT_OK(checkpoint.Check(with_head_));
  // What is saved is a language model.
  const std::string target = root_ + "/saved";
  ASSERT_OK(Save(checkpoint, target, {}));
  EXPECT_THAT(ReadText(target + "/config.json"), HasSubstr("GPT2LMHeadModel"));
}

TEST_F(HeadTest, AValueHeadIsBesideALanguageModelsWhichMustBeThere) {
  WriteText("config.json", kUntied);
  WriteTensors("model.safetensors", {{"transformer.wte.weight", SafetensorsDtype::kF32, {4, 3}},
                                     {"transformer.h.0.ln_1.bias", SafetensorsDtype::kF32, {5}},
                                     {"v_head.summary.weight", SafetensorsDtype::kF32, {1, 3}}});
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_));
  EXPECT_THAT(checkpoint.made_heads(), ElementsAre());
  EXPECT_THAT(checkpoint.Check(with_head_), StatusIs(absl::StatusCode::kInvalidArgument,
                                                     HasSubstr("missing tensor: lm_head.weight")));
}

}  // namespace
}  // namespace gemini::trainer
