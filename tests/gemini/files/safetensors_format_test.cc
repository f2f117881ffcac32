// SPDX-License-Identifier: Apache-2.0
#include "gemini/files/safetensors_format.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/files/safetensors_header.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Declaration = SafetensorsWriter::Declaration;

template <typename T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                             values.size() * sizeof(T));
}
template <typename T>
absl::Span<std::byte> RoomOf(std::vector<T>& values) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T));
}

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/safetensors-XXXXXX");
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/file.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Writes a file of a header and zeroes behind it.
  void WriteFile(const std::string& json, int64_t data_bytes) {
    uint64_t length = json.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    WriteBytes(bytes + json + std::string(static_cast<size_t>(data_bytes), '\0'));
  }
  void WriteBytes(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(SafetensorsTest, WhatWasWrittenIsReadBack) {
  const std::vector<float> values = {1.0f, -0.5f, 3.25f, 0.0f, 1024.0f, -7.0f};
  ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer,
                       SafetensorsWriter::Create(path_,
                                                 {{"wide", SafetensorsDtype::kF32, {2, 3}},
                                                  {"empty", SafetensorsDtype::kF32, {0, 3}},
                                                  {"half", SafetensorsDtype::kF16, {6}},
                                                  {"brain", SafetensorsDtype::kBF16, {3, 2}},
                                                  {"raw", SafetensorsDtype::kU8, {3}}},
                                                 {{"format", "pt"}}));
  ASSERT_OK(writer.AppendFloat32(BytesOf(values)));
  ASSERT_OK(writer.AppendFloat32(BytesOf(values).first(8)));  // A tensor in two pieces.
  ASSERT_OK(writer.AppendFloat32(BytesOf(values).subspan(8)));
  ASSERT_OK(writer.AppendFloat32(BytesOf(values)));
  ASSERT_OK(writer.AppendRaw(BytesOf(std::vector<uint8_t>{7, 8, 9})));
  ASSERT_OK(writer.Finish());

  ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(path_));
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  ASSERT_EQ(reader.tensors().size(), 5u);
  for (const char* name : {"wide", "half", "brain"}) {
    const SafetensorsTensor* tensor = reader.Find(name);
    ASSERT_NE(tensor, nullptr);
    std::vector<float> read(6);
    ASSERT_OK(reader.ReadFloat32(*tensor, 0, RoomOf(read)));
    EXPECT_EQ(read, values) << name;
    std::vector<float> part(2);
    ASSERT_OK(reader.ReadFloat32(*tensor, 3, RoomOf(part)));
    EXPECT_THAT(part, ElementsAre(0.0f, 1024.0f)) << name;
  }
  EXPECT_THAT(reader.Find("brain")->shape, ElementsAre(3, 2));
  EXPECT_EQ(reader.Find("empty")->size_bytes, 0);
  std::vector<uint8_t> raw(2);
  ASSERT_OK(reader.ReadRaw(*reader.Find("raw"), 1, RoomOf(raw)));
  EXPECT_THAT(raw, ElementsAre(8, 9));
  EXPECT_EQ(reader.Find("other"), nullptr);
  EXPECT_THAT(Files(), ElementsAre("file.safetensors"));
}

TEST_F(SafetensorsTest, ATensorOfManyPiecesIsConvertedWhole) {
  const int64_t count =
      SafetensorsReader::kPieceBytes + 3;  // Two pieces of 16-bit elements, and 3.
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 2048);
  ASSERT_OK_AND_ASSIGN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(path_, {{"t", SafetensorsDtype::kF16, {count}}}, {}));
  ASSERT_OK(writer.AppendFloat32(BytesOf(values)));
  ASSERT_OK(writer.Finish());
  ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(path_));
  std::vector<float> read(values.size());
  ASSERT_OK(reader.ReadFloat32(*reader.Find("t"), 0, RoomOf(read)));
  EXPECT_EQ(read, values);
}

TEST_F(SafetensorsTest, TheSameDeclarationsGiveTheSameBytes) {
  std::string first;
  for (int round = 0; round < 2; ++round) {
    ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(
            path_, {{"b", SafetensorsDtype::kF32, {1}}, {"a", SafetensorsDtype::kF32, {1}}},
            {{"z", "1"}, {"y", "2"}}));
    ASSERT_OK(writer.AppendFloat32(BytesOf(std::vector<float>{1.0f})));
    ASSERT_OK(writer.AppendFloat32(BytesOf(std::vector<float>{2.0f})));
    ASSERT_OK(writer.Finish());
    std::ifstream file(path_, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    if (round == 0) first = bytes;
    EXPECT_EQ(bytes, first);
    EXPECT_LT(bytes.find("\"b\""), bytes.find("\"a\""));
    EXPECT_EQ((bytes.size() - 8) % 8, 0u);
  }
}

TEST_F(SafetensorsTest, AnUnfinishedFileLeavesNothingBehind) {
  {
    ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(path_, {{"t", SafetensorsDtype::kF32, {2}}}, {}));
    ASSERT_OK(writer.AppendFloat32(BytesOf(std::vector<float>{1.0f})));
    EXPECT_FALSE(std::filesystem::exists(path_));
    EXPECT_THAT(writer.Finish(), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(SafetensorsTest, ValuesThatDoNotFitTheirTensorAreRefused) {
  ASSERT_OK_AND_ASSIGN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(
          path_, {{"t", SafetensorsDtype::kF16, {2}}, {"i", SafetensorsDtype::kI8, {4}}}, {}));
  EXPECT_THAT(writer.AppendFloat32(BytesOf(std::vector<float>(3))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("room for 2 more")));
  EXPECT_THAT(writer.AppendFloat32(BytesOf(std::vector<float>{1.0f, 70000.0f})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("70000")));
  ASSERT_OK(writer.AppendFloat32(
      BytesOf(std::vector<float>{1.0f, std::numeric_limits<float>::infinity()})));
  EXPECT_THAT(writer.AppendFloat32(BytesOf(std::vector<float>(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("I8")));
  EXPECT_THAT(writer.AppendRaw(BytesOf(std::vector<uint8_t>(5))),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(writer.AppendRaw(BytesOf(std::vector<uint8_t>(4))));
  EXPECT_OK(writer.Finish());
}

TEST_F(SafetensorsTest, DeclarationsThatNoFileCanHaveAreRefused) {
  const auto create = [&](std::vector<Declaration> declarations) {
    return SafetensorsWriter::Create(path_, declarations, {}).status();
  };
  EXPECT_THAT(create({{"t", SafetensorsDtype::kF32, {1}}, {"t", SafetensorsDtype::kF32, {1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
  EXPECT_THAT(create({{"t", SafetensorsDtype::kF32, {-1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shape")));
  EXPECT_THAT(create({{"t", SafetensorsDtype::kF32, {int64_t{1} << 40, int64_t{1} << 40}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shape")));
  EXPECT_THAT(create({{"u", SafetensorsDtype::kU8, {3}}, {"t", SafetensorsDtype::kF32, {1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wide types first")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(SafetensorsTest, AFileLargerThanTheDiskIsRefusedWithBothNumbers) {
  EXPECT_THAT(
      SafetensorsWriter::Create(path_, {{"t", SafetensorsDtype::kF32, {int64_t{1} << 52}}}, {}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("needs 16384 TiB"), HasSubstr("free in"))));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(SafetensorsTest, AFileAboveTheFileSizeLimitIsRefusedAtOnce) {
  // The kernel kills a process that passes its limit, unless the signal is ignored.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const struct rlimit limit = {1 << 16, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status =
      SafetensorsWriter::Create(path_, {{"t", SafetensorsDtype::kF32, {1 << 16}}}, {}).status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(path_)));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(SafetensorsTest, AFileThatShrinksAfterOpeningIsDataLoss) {
  WriteFile(R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 16);
  ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(path_));
  std::vector<float> read(4);
  ASSERT_OK(reader.ReadFloat32(*reader.Find("t"), 0, RoomOf(read)));
  std::filesystem::resize_file(path_, 20);
  EXPECT_THAT(reader.ReadFloat32(*reader.Find("t"), 0, RoomOf(read)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
}

TEST_F(SafetensorsTest, RangesOutsideATensorAreRefused) {
  WriteFile(R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
            R"("i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}})",
            24);
  ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(path_));
  std::vector<float> room(2);
  const SafetensorsTensor& tensor = *reader.Find("t");
  for (const int64_t first : {int64_t{-1}, int64_t{3}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(reader.ReadFloat32(tensor, first, RoomOf(room)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which has 4")));
  }
  EXPECT_THAT(reader.ReadFloat32(tensor, 0, RoomOf(room).first(3)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(reader.ReadFloat32(*reader.Find("i"), 0, RoomOf(room).first(4)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("I64")));
}

struct HostileHeader {
  const char* name;
  const char* json;
  int64_t data_bytes;
  absl::StatusCode code;
  const char* message;
};

class HostileSafetensorsTest : public SafetensorsTest,
                               public ::testing::WithParamInterface<HostileHeader> {};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kLoss = absl::StatusCode::kDataLoss;
INSTANTIATE_TEST_SUITE_P(
    Headers, HostileSafetensorsTest,
    ::testing::ValuesIn(std::vector<HostileHeader>{
        {"NotJson", "hello", 0, kInvalid, "not JSON"},
        {"Empty", "", 0, kInvalid, "not JSON"},
        {"CutJson", R"({"t":{"dtype":"F32")", 0, kInvalid, "not JSON"},
        {"TrailingJson", "{} {}", 0, kInvalid, "not JSON"},
        {"NotUtf8", "{\"\xff\":{}}", 0, kInvalid, "not JSON"},
        {"Array", "[]", 0, kInvalid, "is an array, expected a JSON object"},
        {"Number", "7", 0, kInvalid, "is the number 7, expected a JSON object"},
        {"ValueIsNumber", R"({"t":7})", 0, kInvalid, "'t' has the number 7 as its value"},
        {"NoDtype", R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4, kInvalid, "has no dtype"},
        {"NoShape", R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4, kInvalid, "has no shape"},
        {"NoOffsets", R"({"t":{"dtype":"F32","shape":[1]}})", 4, kInvalid, "data_offsets"},
        {"OneOffset", R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, kInvalid,
         "data_offsets"},
        {"ThreeOffsets", R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, kInvalid,
         "after the 2th"},
        {"UnknownDtype", R"({"t":{"dtype":"F7","shape":[1],"data_offsets":[0,4]}})", 4, kInvalid,
         "unknown dtype 'F7'; known are BOOL"},
        {"UnknownField", R"({"t":{"color":1}})", 4, kInvalid, "unknown field 'color'"},
        {"NegativeShape", R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, kInvalid,
         "negative number -1 in its shape"},
        {"FractionalShape", R"({"t":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4,
         kInvalid, "number '1.5'"},
        {"NestedShape", R"({"t":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, kInvalid,
         "an array in its shape"},
        {"ShapeOverflow",
         R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
         kInvalid, "impossible shape [4294967296, 4294967296]"},
        {"ShapeAbove63Bits",
         R"({"t":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
         kInvalid, "above 2^63"},
        {"WrongSize", R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, kInvalid,
         "needs 8 bytes, but its data_offsets are [0, 4]"},
        {"Backwards", R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, kInvalid,
         "[4, 0]"},
        {"PastTheEnd", R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, kLoss,
         "'t' ends at byte 8 of the data, but the file holds 4"},
        {"Hole",
         R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
         12, kInvalid, "'b' starts at byte 8 of the data, leaving a hole after byte 4"},
        {"Overlap",
         R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
         8, kInvalid, "'b' starts at byte 4 of the data, inside the tensor before it"},
        {"BytesLeftOver", R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, kInvalid,
         "end at byte 4 of the data, but the file holds 8"},
        {"NoTensorsButBytes", "{}", 8, kInvalid, "end at byte 0"},
        {"SameNameTwice",
         R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
         R"("t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
         8, kInvalid, "'t' is there twice"},
        {"SameFieldTwice",
         R"({"t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, kInvalid,
         "two fields dtype"},
        {"MetadataNotText", R"({"__metadata__":{"a":1}})", 0, kInvalid, "number 1"},
        {"MetadataTwice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, kInvalid, "twice"},
        {"NameIsEscaped", "{\"\\u001b[31m\":7}", 0, kInvalid, "'\\x1b[31m'"},
    }),
    [](const auto& header) { return header.param.name; });

TEST_P(HostileSafetensorsTest, IsRefusedWithItsReason) {
  WriteFile(GetParam().json, GetParam().data_bytes);
  EXPECT_THAT(SafetensorsReader::Open(path_),
              StatusIs(GetParam().code, AllOf(HasSubstr(path_), HasSubstr(GetParam().message))));
}

TEST_F(SafetensorsTest, ALyingLengthFieldIsRefused) {
  WriteBytes("1234567");
  EXPECT_THAT(SafetensorsReader::Open(path_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("7 bytes")));
  WriteBytes(std::string("\x10\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(SafetensorsReader::Open(path_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("header of 16 bytes")));
  WriteBytes(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));
  EXPECT_THAT(SafetensorsReader::Open(path_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("header of 100000001 bytes")));
  WriteBytes(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  EXPECT_THAT(SafetensorsReader::Open(path_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("18446744073709551615")));
}

TEST_F(SafetensorsTest, WhatIsNoFileIsRefused) {
  EXPECT_THAT(SafetensorsReader::Open(path_), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(SafetensorsReader::Open(directory_), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsReader::Open(path_), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SafetensorsTest, DeepNestingIsRefusedAndNotFollowed) {
  WriteFile(absl::StrCat("{\"t\":", std::string(1'000'000, '[')), 0);
  EXPECT_THAT(SafetensorsReader::Open(path_), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Property: whatever bytes of a header are changed, the tensors that are accepted fill the file.
TEST(SafetensorsHeaderTest, AcceptedTensorsFillTheFileAfterRandomDamage) {
  constexpr int64_t kDataBytes = 24;
  const std::string valid =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"F16","shape":[4],"data_offsets":[16,24]}})";
  std::mt19937_64 random(/*seed=*/3);
  int accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string json = valid;
    for (uint64_t changes = random() % 3 + 1; changes > 0; --changes) {
      json[random() % json.size()] = "0123456789[]{},:\"F\x80"[random() % 19];
    }
    const auto header = ParseSafetensorsHeader(json, kDataBytes, "damaged");
    if (!header.ok()) continue;
    ++accepted;
    int64_t end_bytes = 8 + static_cast<int64_t>(json.size());
    for (const SafetensorsTensor& tensor : header->tensors) {
      ASSERT_EQ(tensor.offset_bytes, end_bytes) << json;
      end_bytes += tensor.size_bytes;
    }
    ASSERT_EQ(end_bytes, 8 + static_cast<int64_t>(json.size()) + kDataBytes) << json;
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace gemini
