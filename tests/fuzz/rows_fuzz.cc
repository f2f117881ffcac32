// SPDX-License-Identifier: Apache-2.0
// A file of rows with answers or labels, as a run reads its data.
// Input: four bytes, which say what the model can do: flags, its vocabulary, labels and types; then
//        the bytes of the file.
// Holds: of a file whose rows passed their checks, each row is read; its tokens, types and labels
//        are the model's, its answers as many as were counted, and its documents lie in it. Rows
//        that were not checked are read or refused.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/files/safetensors_format.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/system/check.h"
#include "gemini/system/unique_fd.h"
#include "tests/fuzz/fuzz_target.h"
#include "trainer/data/training_data.h"
#include "trainer/tasks/masking.h"

namespace gemini::trainer {
namespace {

constexpr size_t kHeadBytes = 4;
constexpr uint8_t kTakesPadding = 1, kSeesPadding = 2;
constexpr int64_t kSequenceOfText = 8;  // Rows have a length of their own.

// A file of that content, whose name is gone behind this.
class NamedFile {
 public:
  explicit NamedFile(absl::string_view bytes)
      : path_(std::filesystem::temp_directory_path() /
              absl::StrCat("gemini-rows-fuzz-", ::getpid(), ".safetensors")) {
    const UniqueFd file(::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
    GEMINI_CHECK(file && ::write(file.get(), bytes.data(), bytes.size()) ==
                             static_cast<ssize_t>(bytes.size()));
  }
  NamedFile(const NamedFile&) = delete;
  NamedFile& operator=(const NamedFile&) = delete;
  ~NamedFile() { ::unlink(path_.c_str()); }
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

void CheckDocuments(const TrainingData& data, int64_t row) {
  const auto documents = data.ReadDocuments(row);
  GEMINI_CHECK(documents.ok() && !documents->empty());
  GEMINI_CHECK(std::ranges::all_of(*documents, [](int64_t length) { return length > 0; }));
  GEMINI_CHECK(std::accumulate(documents->begin(), documents->end(), int64_t{0}) <=
               data.sequence_tokens());
}

void CheckTokens(absl::Span<const int64_t> tokens, const RowNeeds& needs) {
  GEMINI_CHECK(std::ranges::all_of(
      tokens, [&](int64_t token) { return token >= 0 && token < needs.vocab_size; }));
}

void CheckExample(const ExampleData& examples, int64_t row, const RowNeeds& needs) {
  const auto length = static_cast<size_t>(examples.rows().sequence_tokens());
  std::vector<int64_t> tokens(length), labels(length);
  GEMINI_CHECK(examples.Read(row, absl::MakeSpan(tokens), absl::MakeSpan(labels)).ok());
  CheckTokens(tokens, needs);
  for (size_t i = 0; i < length; ++i) GEMINI_CHECK(labels[i] == -1 || labels[i] == tokens[i]);
  const auto count = examples.CountAnswers(row);
  GEMINI_CHECK(count.ok() && *count > 0);
  GEMINI_CHECK(std::ranges::count_if(labels, [](int64_t label) { return label >= 0; }) == *count);
  if (examples.rows().task() != TaskKind::kMasked) return;
  const int64_t hidden = MaskTokensOfRow({.row = row}, {examples.mask_token(), needs.vocab_size},
                                         absl::MakeSpan(tokens), absl::MakeSpan(labels));
  GEMINI_CHECK(hidden > 0 && hidden <= *count);
  CheckTokens(tokens, needs);
}

void CheckLabeled(const LabeledData& labeled, int64_t row, const RowNeeds& needs) {
  const auto length = static_cast<size_t>(labeled.rows().sequence_tokens());
  std::vector<int64_t> tokens(length), types(labeled.has_types() ? length : 0);
  GEMINI_CHECK(labeled.Read(row, absl::MakeSpan(tokens), absl::MakeSpan(types)).ok());
  CheckTokens(tokens, needs);
  for (const int64_t type : types) {
    GEMINI_CHECK(type >= 0 && type < std::max<int64_t>(needs.num_token_types, 1));
  }
  const auto labels = labeled.ReadLabels(row);
  GEMINI_CHECK(labels.ok());
  if (labeled.task().problem == ProblemType::kSingleLabel) {
    GEMINI_CHECK(labels->size() == 1 && labels->front() >= 0 &&
                 labels->front() < static_cast<float>(needs.task.num_labels));
    return;
  }
  GEMINI_CHECK(static_cast<int64_t>(labels->size()) == labeled.task().num_labels);
  GEMINI_CHECK(std::ranges::all_of(*labels, [](float value) { return std::isfinite(value); }));
}

void ReadUnchecked(const TrainingData& data) {
  const auto length = static_cast<size_t>(data.sequence_tokens());
  std::vector<int64_t> tokens(length), others(length);
  for (const int64_t row : {int64_t{0}, data.num_sequences() - 1, data.num_sequences()}) {
    if (data.examples() != nullptr) {
      data.examples()->Read(row, absl::MakeSpan(tokens), absl::MakeSpan(others)).IgnoreError();
      GEMINI_CHECK(!data.examples()->CountAnswers(row).ok());
    } else {
      const LabeledData& labeled = *data.labeled();
      const absl::Span<int64_t> types = absl::MakeSpan(others);
      labeled.Read(row, absl::MakeSpan(tokens), labeled.has_types() ? types : types.first(0))
          .IgnoreError();
      labeled.ReadLabels(row).IgnoreError();
    }
  }
}

// Returns whether the rows passed their checks.
bool Run(uint8_t flags, const RowNeeds& needs, absl::string_view bytes) {
  const NamedFile file(bytes);
  absl::StatusOr<TrainingData> data = TrainingData::Open(file.path(), kSequenceOfText);
  const auto task = TrainingData::TaskOf(file.path());
  GEMINI_CHECK(task.ok() == data.ok());
  if (!data.ok()) return false;
  GEMINI_CHECK(data->task() == *task);
  GEMINI_CHECK(data->Fingerprint().ok());
  ReadUnchecked(*data);
  RowNeeds of_model = needs;
  // A run compares them before.
  of_model.task.problem = task->problem;
  if (!data->CheckRows(of_model, (flags & kSeesPadding) != 0).ok()) return false;
  for (int64_t row = 0; row < data->num_sequences(); ++row) {
    CheckDocuments(*data, row);
    if (data->examples() != nullptr) {
      CheckExample(*data->examples(), row, of_model);
    } else {
      CheckLabeled(*data->labeled(), row, of_model);
    }
  }
  return true;
}

// The same of an input.
bool RunInput(absl::string_view input) {
  const auto number = [&](size_t at) { return int64_t{static_cast<uint8_t>(input[at])}; };
  const auto flags = static_cast<uint8_t>(input[0]);
  const RowNeeds needs = {
      .vocab_size = number(1) + 1,
      .num_token_types = number(3),
      .takes_padding = (flags & kTakesPadding) != 0,
      .task = {.kind = TaskKind::kSequenceClassification, .num_labels = number(2) + 1}};
  return Run(flags, needs, input.substr(kHeadBytes));
}

template <typename T>
std::string AsBytes(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

struct Tensor {
  SafetensorsDtype dtype = SafetensorsDtype::kI32;
  std::vector<int64_t> shape;
  std::string bytes;
};

// Two rows of four tokens, the second one with padding, and what else a task has.
std::string SeedOf(std::map<std::string, std::string> metadata,
                   std::map<std::string, Tensor> tensors) {
  metadata.insert({{"gemini.format", "1"}, {"rows", "2"}, {"sequence", "4"}});
  const bool is_packed = metadata.at("layout") == "pack";
  const std::vector<int64_t> of_tokens = {2, 4};
  tensors["tokens"] = {SafetensorsDtype::kI32, of_tokens,
                       AsBytes<int32_t>({1, 2, 3, 4, 5, 6, 0, 0})};
  tensors["documents"] = {
      SafetensorsDtype::kI32, of_tokens,
      AsBytes<int32_t>({1, 1, is_packed ? 2 : 1, is_packed ? 2 : 1, 1, 1, 0, 0})};
  std::vector<SafetensorsWriter::Declaration> declarations;
  // Wide elements come first, so that each begins at a multiple of its size.
  for (const bool narrow : {false, true}) {
    for (const auto& [name, tensor] : tensors) {
      if ((tensor.dtype == SafetensorsDtype::kU8) != narrow) continue;
      declarations.push_back({name, tensor.dtype, tensor.shape});
    }
  }
  const auto beginning = MakeSafetensorsBeginning(declarations, metadata, "seed");
  GEMINI_CHECK(beginning.ok());
  std::string file = beginning->bytes;
  for (const SafetensorsTensor& tensor : beginning->tensors) file += tensors.at(tensor.name).bytes;
  // Padding is taken and seen, by a model of 8 tokens, 2 labels and 2 types.
  const std::string model = {static_cast<char>(kTakesPadding | kSeesPadding), 7, 1, 2};
  GEMINI_CHECK(RunInput(model + file));
  return model + file;
}

}  // namespace
}  // namespace gemini::trainer

namespace gemini::fuzz {

std::vector<std::string> Seeds() {
  using trainer::AsBytes;
  using trainer::SeedOf;
  const trainer::Tensor answers = {
      SafetensorsDtype::kU8, {2, 4}, AsBytes<uint8_t>({0, 1, 0, 1, 0, 1, 0, 0})};
  const trainer::Tensor types = {
      SafetensorsDtype::kU8, {2, 4}, AsBytes<uint8_t>({0, 0, 1, 1, 0, 1, 0, 0})};
  const trainer::Tensor classes = {SafetensorsDtype::kI32, {2}, AsBytes<int32_t>({1, 0})};
  const trainer::Tensor numbers = {SafetensorsDtype::kF32, {2, 2}, AsBytes<float>({0, 1, 1, 0})};
  const auto labeled = [&](const char* problem, const char* names) {
    return std::map<std::string, std::string>{{"task", "sequence-classification"},
                                              {"layout", "pad"},
                                              {"problem_type", problem},
                                              {"num_labels", "2"},
                                              {"names", names}};
  };
  return {
      SeedOf({{"task", "causal"}, {"layout", "pad"}}, {{"answers", answers}}),
      SeedOf({{"task", "causal"}, {"layout", "pack"}}, {{"answers", answers}}),
      SeedOf({{"task", "masked"}, {"layout", "pack"}, {"mask_token", "7"}}, {{"answers", answers}}),
      SeedOf(labeled("single_label_classification", R"(["no", "yes"])"),
             {{"labels", classes}, {"types", types}}),
      SeedOf(labeled("multi_label_classification", ""), {{"labels", numbers}}),
      SeedOf(labeled("regression", ""), {{"labels", numbers}, {"types", types}})};
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < gemini::trainer::kHeadBytes) return 0;
  gemini::trainer::RunInput(gemini::fuzz::BytesOf(data, size));
  return 0;
}
