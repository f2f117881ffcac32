// SPDX-License-Identifier: Apache-2.0
// A file of rows with answers or labels, of images or of alignments, as a run reads its data.
// Input: eight bytes, which say what the model can do: flags, its vocabulary, labels and types, an
//        image's channels, height and width, and an alignment's sequences; then the bytes of the
//        file.
// Holds: if the rows of a file passed their checks, each row is read. Its tokens, types and labels
//        are the model's, the numbers of an image are finite, there are as many answers as were
//        counted, and documents lie in their row. Rows that were not checked are read or refused.
//        Rows that are not there are refused.
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

constexpr size_t kHeadBytes = 8;
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

// Hides tokens of a row, as a run of the masked task does. `num_labels` of them may be hidden.
void CheckMasks(int64_t row, int64_t mask_token, int64_t num_labels, const RowNeeds& needs,
                std::vector<int64_t> tokens, std::vector<int64_t> labels) {
  const int64_t hidden = MaskTokensOfRow({.row = row}, {mask_token, needs.vocab_size},
                                         absl::MakeSpan(tokens), absl::MakeSpan(labels));
  GEMINI_CHECK(hidden > 0 && hidden <= num_labels);
  CheckTokens(tokens, needs);
}

int64_t CountOf(absl::Span<const int64_t> labels) {
  return std::ranges::count_if(labels, [](int64_t label) { return label >= 0; });
}

void CheckExample(const ExampleData& examples, int64_t row, const RowNeeds& needs) {
  const auto length = static_cast<size_t>(examples.rows().sequence_tokens());
  std::vector<int64_t> tokens(length), labels(length);
  GEMINI_CHECK(examples.Read(row, absl::MakeSpan(tokens), absl::MakeSpan(labels)).ok());
  CheckTokens(tokens, needs);
  for (size_t i = 0; i < length; ++i) GEMINI_CHECK(labels[i] == -1 || labels[i] == tokens[i]);
  const auto count = examples.CountAnswers(row);
  GEMINI_CHECK(count.ok() && *count > 0 && *count == CountOf(labels));
  if (examples.rows().task() != TaskKind::kMasked) return;
  CheckMasks(row, examples.mask_token(), *count, needs, tokens, labels);
}

// `data`: rows that have labels of their own.
template <typename Data>
void CheckLabels(const Data& data, int64_t row, const RowNeeds& needs) {
  const auto labels = data.ReadLabels(row);
  GEMINI_CHECK(labels.ok());
  if (data.task().problem == ProblemType::kSingleLabel) {
    GEMINI_CHECK(labels->size() == 1 && labels->front() >= 0 &&
                 labels->front() < static_cast<float>(needs.task.num_labels));
    return;
  }
  const bool is_regression = data.task().problem == ProblemType::kRegression;
  GEMINI_CHECK(static_cast<int64_t>(labels->size()) == data.task().num_labels);
  GEMINI_CHECK(std::ranges::all_of(*labels, [&](float value) {
    return is_regression ? std::isfinite(value) : value == 0 || value == 1;
  }));
}

void CheckLabeled(const LabeledData& labeled, int64_t row, const RowNeeds& needs) {
  const auto length = static_cast<size_t>(labeled.rows().sequence_tokens());
  std::vector<int64_t> tokens(length), types(labeled.has_types() ? length : 0);
  GEMINI_CHECK(labeled.Read(row, absl::MakeSpan(tokens), absl::MakeSpan(types)).ok());
  CheckTokens(tokens, needs);
  for (const int64_t type : types) {
    GEMINI_CHECK(type >= 0 && type < std::max<int64_t>(needs.num_token_types, 1));
  }
  CheckLabels(labeled, row, needs);
}

void CheckImage(const ImageData& images, int64_t row, const RowNeeds& needs) {
  const ImageSpec& spec = *needs.image;
  GEMINI_CHECK(images.image_elements() == spec.channels * spec.height * spec.width);
  std::vector<float> image(static_cast<size_t>(images.image_elements()));
  GEMINI_CHECK(images.Read(row, absl::MakeSpan(image)).ok());
  GEMINI_CHECK(std::ranges::all_of(image, [](float value) { return std::isfinite(value); }));
  CheckLabels(images, row, needs);
}

void CheckAlignment(const AlignmentData& alignments, int64_t row, const RowNeeds& needs) {
  GEMINI_CHECK(alignments.num_sequences() == needs.num_sequences);
  std::vector<int64_t> tokens(static_cast<size_t>(alignments.tokens_per_row()));
  std::vector<int64_t> labels(static_cast<size_t>(alignments.labels_per_row()));
  GEMINI_CHECK(alignments.Read(row, absl::MakeSpan(tokens), absl::MakeSpan(labels)).ok());
  CheckTokens(tokens, needs);
  const auto count = alignments.CountLabels(row);
  GEMINI_CHECK(count.ok() && *count > 0 && *count == CountOf(labels));
  if (alignments.task().kind == TaskKind::kDistogram) {
    GEMINI_CHECK(std::ranges::all_of(labels, [&](int64_t label) {
      return label >= -1 && label < alignments.task().num_labels;
    }));
    return;
  }
  GEMINI_CHECK(labels.size() == tokens.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    GEMINI_CHECK(labels[i] == -1 || labels[i] == tokens[i]);
  }
  CheckMasks(row, alignments.mask_token(), *count, needs, tokens, labels);
}

void CheckRow(const TrainingData& data, int64_t row, const RowNeeds& needs) {
  if (data.images() != nullptr) return CheckImage(*data.images(), row, needs);
  CheckDocuments(data, row);
  if (data.alignments() != nullptr) return CheckAlignment(*data.alignments(), row, needs);
  if (data.examples() != nullptr) return CheckExample(*data.examples(), row, needs);
  CheckLabeled(*data.labeled(), row, needs);
}

// Counts what is learned of a row, where that is known once rows were checked.
absl::Status CountRow(const TrainingData& data, int64_t row) {
  if (data.alignments() != nullptr) return data.alignments()->CountLabels(row).status();
  if (data.examples() != nullptr) return data.examples()->CountAnswers(row).status();
  return absl::UnimplementedError("nothing is counted");
}

// Reads all that there is of a row, whether or not rows were checked.
absl::Status ReadRow(const TrainingData& data, int64_t row) {
  if (const ImageData* const images = data.images()) {
    std::vector<float> image(static_cast<size_t>(images->image_elements()));
    absl::Status status = images->Read(row, absl::MakeSpan(image));
    status.Update(images->ReadLabels(row).status());
    return status;
  }
  if (const AlignmentData* const alignments = data.alignments()) {
    std::vector<int64_t> tokens(static_cast<size_t>(alignments->tokens_per_row()));
    std::vector<int64_t> labels(static_cast<size_t>(alignments->labels_per_row()));
    return alignments->Read(row, absl::MakeSpan(tokens), absl::MakeSpan(labels));
  }
  const auto length = static_cast<size_t>(data.sequence_tokens());
  std::vector<int64_t> tokens(length), others(length);
  if (const ExampleData* const examples = data.examples()) {
    return examples->Read(row, absl::MakeSpan(tokens), absl::MakeSpan(others));
  }
  const LabeledData& labeled = *data.labeled();
  others.resize(labeled.has_types() ? length : 0);
  absl::Status status = labeled.Read(row, absl::MakeSpan(tokens), absl::MakeSpan(others));
  status.Update(labeled.ReadLabels(row).status());
  return status;
}

void CheckRowsThatAreNotThere(const TrainingData& data) {
  for (const int64_t row : {int64_t{-1}, data.num_sequences()}) {
    GEMINI_CHECK(!ReadRow(data, row).ok() && !CountRow(data, row).ok());
  }
}

void ReadUnchecked(const TrainingData& data) {
  for (const int64_t row : {int64_t{0}, data.num_sequences() - 1}) {
    ReadRow(data, row).IgnoreError();
    GEMINI_CHECK(!CountRow(data, row).ok());
  }
  CheckRowsThatAreNotThere(data);
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
  // A run has refused other tasks and problems before.
  of_model.task.kind = task->kind;
  of_model.task.problem = task->problem;
  if (!data->CheckRows(of_model, (flags & kSeesPadding) != 0).ok()) {
    ReadUnchecked(*data);
    return false;
  }
  for (int64_t row = 0; row < data->num_sequences(); ++row) CheckRow(*data, row, of_model);
  CheckRowsThatAreNotThere(*data);
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
      .image = ImageSpec{.channels = number(4), .height = number(5), .width = number(6)},
      .num_sequences = number(7),
      .task = {.num_labels = number(2) + 1}};
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

using Metadata = std::map<std::string, std::string>;
using Tensors = std::map<std::string, Tensor>;

// A file of two rows, which the model of all seeds takes.
std::string SeedOf(Metadata metadata, const Tensors& tensors) {
  metadata.emplace("gemini.format", "1");
  metadata.emplace("rows", "2");
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
  // Padding is taken and seen, by a model of 8 tokens, 2 labels and 2 types, of images of 2 x 1 x 3
  // and of alignments of 2 sequences.
  const std::string model = {static_cast<char>(kTakesPadding | kSeesPadding), 7, 1, 2, 2, 1, 3, 2};
  GEMINI_CHECK(model.size() == kHeadBytes && RunInput(model + file));
  return model + file;
}

// Rows of four tokens, the second one with padding, and what else a task has.
std::string TextSeed(Metadata metadata, Tensors tensors) {
  const bool is_packed = metadata.at("layout") == "pack";
  const std::vector<int64_t> of_tokens = {2, 4};
  metadata.emplace("sequence", "4");
  tensors["tokens"] = {SafetensorsDtype::kI32, of_tokens,
                       AsBytes<int32_t>({1, 2, 3, 4, 5, 6, 0, 0})};
  tensors["documents"] = {
      SafetensorsDtype::kI32, of_tokens,
      AsBytes<int32_t>({1, 1, is_packed ? 2 : 1, is_packed ? 2 : 1, 1, 1, 0, 0})};
  return SeedOf(std::move(metadata), tensors);
}

// Two images of two channels, with labels of that problem.
std::string ImageSeed(const char* problem, const Tensor& labels) {
  const Tensor pixels = {SafetensorsDtype::kU8,
                         {2, 2, 1, 3},
                         AsBytes<uint8_t>({0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255})};
  return SeedOf({{"task", "image-classification"},
                 {"problem_type", problem},
                 {"num_labels", "2"},
                 {"names", R"(["cat", "dog"])"},
                 {"rescale", "0.5"},
                 {"mean", "[1, 2.5]"},
                 {"std", "[2, -0.25]"}},
                {{"pixels", pixels}, {"labels", labels}});
}

// Alignments of two sequences of three residues, and what else a task has.
std::string AlignmentSeed(Metadata metadata, Tensors tensors) {
  metadata.emplace("sequences", "2");
  metadata.emplace("residues", "3");
  tensors["tokens"] = {
      SafetensorsDtype::kI32, {2, 2, 3}, AsBytes<int32_t>({1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1})};
  return SeedOf(std::move(metadata), tensors);
}

}  // namespace
}  // namespace gemini::trainer

namespace gemini::fuzz {

std::vector<std::string> Seeds() {
  using trainer::AlignmentSeed;
  using trainer::AsBytes;
  using trainer::ImageSeed;
  using trainer::TextSeed;
  const trainer::Tensor answers = {
      SafetensorsDtype::kU8, {2, 4}, AsBytes<uint8_t>({0, 1, 0, 1, 0, 1, 0, 0})};
  const trainer::Tensor types = {
      SafetensorsDtype::kU8, {2, 4}, AsBytes<uint8_t>({0, 0, 1, 1, 0, 1, 0, 0})};
  const trainer::Tensor classes = {SafetensorsDtype::kI32, {2}, AsBytes<int32_t>({1, 0})};
  const trainer::Tensor numbers = {SafetensorsDtype::kF32, {2, 2}, AsBytes<float>({0, 1, 1, 0})};
  const trainer::Tensor residues = {
      SafetensorsDtype::kU8, {2, 2, 3}, AsBytes<uint8_t>({1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0})};
  const trainer::Tensor bins = {
      SafetensorsDtype::kI32,
      {2, 3, 3},
      AsBytes<int32_t>({-1, 0, 1, 2, -1, 3, 4, 4, -1, -1, -1, 0, -1, -1, 1, 0, 1, -1})};
  const auto labeled = [&](const char* problem, const char* names) {
    return trainer::Metadata{{"task", "sequence-classification"},
                             {"layout", "pad"},
                             {"problem_type", problem},
                             {"num_labels", "2"},
                             {"names", names}};
  };
  return {TextSeed({{"task", "causal"}, {"layout", "pad"}}, {{"answers", answers}}),
          TextSeed({{"task", "causal"}, {"layout", "pack"}}, {{"answers", answers}}),
          TextSeed({{"task", "masked"}, {"layout", "pack"}, {"mask_token", "7"}},
                   {{"answers", answers}}),
          TextSeed(labeled("single_label_classification", R"(["no", "yes"])"),
                   {{"labels", classes}, {"types", types}}),
          TextSeed(labeled("multi_label_classification", ""), {{"labels", numbers}}),
          TextSeed(labeled("regression", ""), {{"labels", numbers}, {"types", types}}),
          ImageSeed("single_label_classification", classes),
          ImageSeed("multi_label_classification", numbers),
          ImageSeed("regression", numbers),
          AlignmentSeed({{"task", "masked"}, {"mask_token", "7"}}, {{"answers", residues}}),
          AlignmentSeed({{"task", "distogram"}, {"num_bins", "5"}}, {{"labels", bins}})};
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < gemini::trainer::kHeadBytes) return 0;
  gemini::trainer::RunInput(gemini::fuzz::BytesOf(data, size));
  return 0;
}

// Half of all changes are as they come, and nearly all of these spoil the header, so that no row is
// read. The others keep all sizes, and change either the header alone or the tensors alone.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  uint64_t header_bytes = 0;
  constexpr size_t kHeader = gemini::trainer::kHeadBytes + sizeof(header_bytes);
  if (size > kHeader)
    std::memcpy(&header_bytes, data + gemini::trainer::kHeadBytes, sizeof(header_bytes));
  if (seed % 2 == 0 || size <= kHeader || header_bytes >= size - kHeader) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const size_t tensors = kHeader + header_bytes;
  const size_t begin = seed % 4 == 1 ? kHeader : tensors;
  const size_t end = seed % 4 == 1 ? tensors : size;
  if (begin < end) LLVMFuzzerMutate(data + begin, end - begin, end - begin);
  return size;
}
