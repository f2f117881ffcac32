// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/read_batch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "gemini/system/status_macros.h"
#include "trainer/tasks/masking.h"

namespace gemini::trainer {
namespace {

// Values outside of Torch's allocator, which a tensor keeps.
template <typename T>
struct OutsideTensor {
  explicit OutsideTensor(size_t count) : values(std::make_shared<std::vector<T>>(count)) {}

  torch::Tensor On(torch::Device device, const std::vector<int64_t>& sizes) const {
    return at::from_blob(
               values->data(), sizes, /*deleter=*/[kept = values](void*) {},
               torch::dtype(c10::CppTypeToScalarType<T>::value))
        .to(device);
  }

  std::shared_ptr<std::vector<T>> values;
};

// Reads a row of examples or an alignment, of a task of that kind; `place`: among those that are
// read. Returns how many labels are predicted.
template <typename Data>
absl::StatusOr<int64_t> ReadExample(const Data& data, TaskKind kind, int64_t row, int64_t place,
                                    const RowMasks& masks, absl::Span<int64_t> tokens,
                                    absl::Span<int64_t> labels) {
  GEMINI_RETURN_IF_ERROR(data.Read(row, tokens, labels));
  if (kind != TaskKind::kMasked) {
    return std::ranges::count_if(labels, [](int64_t label) { return label >= 0; });
  }
  return MaskTokensOfRow({masks.seed, masks.first_row + place, masks.is_evaluation},
                         {data.mask_token(), masks.vocab_size}, tokens, labels);
}

// Returns what the labels of rows are; null where tokens are predicted.
const TaskSpec* LabelsOf(const TrainingData& data) {
  if (data.images() != nullptr) return &data.images()->task();
  return data.labeled() != nullptr ? &data.labeled()->task() : nullptr;
}

// Reads the labels of the first `num_labeled` rows; the others get none.
template <typename Data>
absl::StatusOr<Labels> ReadLabels(const Data& data, absl::Span<const int64_t> rows,
                                  int64_t num_labeled, torch::Device device) {
  const TaskSpec& task = data.task();
  const auto num_rows = static_cast<int64_t>(rows.size());
  const bool is_single = task.problem == ProblemType::kSingleLabel;
  const int64_t width = is_single ? 1 : task.num_labels;
  OutsideTensor<float> numbers(static_cast<size_t>(num_rows * width));
  std::ranges::fill(*numbers.values, std::nanf(""));
  auto next = numbers.values->begin();
  for (const int64_t row : rows.first(static_cast<size_t>(num_labeled))) {
    GEMINI_ASSIGN_OR_RETURN(const std::vector<float> of_row, data.ReadLabels(row));
    next = std::ranges::copy(of_row, next).out;
  }
  Labels labels = {.values = {}, .count = num_labeled * width};
  if (!is_single) {
    labels.values = numbers.On(device, {num_rows, width});
    return labels;
  }
  OutsideTensor<int64_t> classes(rows.size());
  std::ranges::transform(*numbers.values, classes.values->begin(), [](float number) {
    return std::isnan(number) ? -1 : static_cast<int64_t>(number);
  });
  labels.values = classes.On(device, {num_rows});
  return labels;
}

absl::StatusOr<Batch> ReadImages(const ImageData& data, absl::Span<const int64_t> rows,
                                 int64_t num_labeled, torch::Device device) {
  std::vector<int64_t> sizes = data.image_sizes();
  sizes.insert(sizes.begin(), static_cast<int64_t>(rows.size()));
  const torch::Tensor pixels = at::empty(sizes, torch::dtype(torch::kFloat32));
  auto* next = pixels.mutable_data_ptr<float>();
  for (const int64_t row : rows) {
    const auto size = static_cast<size_t>(data.image_elements());
    GEMINI_RETURN_IF_ERROR(data.Read(row, absl::MakeSpan(next, size)));
    next += size;
  }
  Batch batch = {.inputs = pixels.to(device)};
  GEMINI_ASSIGN_OR_RETURN(batch.labels, ReadLabels(data, rows, num_labeled, device));
  return batch;
}

absl::StatusOr<Batch> ReadAlignments(const AlignmentData& data, absl::Span<const int64_t> rows,
                                     int64_t num_labeled, const RowMasks& masks,
                                     torch::Device device) {
  const auto num_rows = static_cast<int64_t>(rows.size());
  const int64_t residues = data.num_residues();
  const std::vector<int64_t> sizes = {num_rows, data.num_sequences(), residues};
  const torch::Tensor tokens = at::empty(sizes, torch::dtype(torch::kInt64));
  const TaskKind kind = data.task().kind;
  torch::Tensor labels;
  if (kind == TaskKind::kMasked) {
    labels = OutsideTensor<int64_t>(static_cast<size_t>(tokens.numel())).On(torch::kCPU, sizes);
  } else {
    labels = at::empty({num_rows, residues, residues}, torch::dtype(torch::kInt64));
  }
  Batch batch;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto of_row = [i](const torch::Tensor& all, int64_t size) {
      return absl::MakeSpan(all.mutable_data_ptr<int64_t>() + static_cast<int64_t>(i) * size,
                            static_cast<size_t>(size));
    };
    const absl::Span<int64_t> labels_of_row = of_row(labels, data.labels_per_row());
    GEMINI_ASSIGN_OR_RETURN(const int64_t count,
                            ReadExample(data, kind, rows[i], static_cast<int64_t>(i), masks,
                                        of_row(tokens, data.tokens_per_row()), labels_of_row));
    if (static_cast<int64_t>(i) < num_labeled) {
      batch.labels.count += count;
    } else {
      std::ranges::fill(labels_of_row, -1);
    }
  }
  batch.inputs = tokens.to(device);
  batch.labels.values = labels.to(device);
  return batch;
}

}  // namespace

absl::StatusOr<Batch> ReadBatch(const TrainingData& data, absl::Span<const int64_t> rows,
                                int64_t num_labeled, const RowMasks& masks, torch::Device device) {
  if (data.images() != nullptr) return ReadImages(*data.images(), rows, num_labeled, device);
  if (data.alignments() != nullptr) {
    return ReadAlignments(*data.alignments(), rows, num_labeled, masks, device);
  }
  const auto length = static_cast<size_t>(data.sequence_tokens());
  const std::vector<int64_t> sizes = {static_cast<int64_t>(rows.size()), data.sequence_tokens()};
  const auto of_row = [length](size_t row, int64_t* values) {
    return absl::MakeSpan(values + row * length, length);
  };
  const torch::Tensor tokens = at::empty(sizes, torch::dtype(torch::kInt64));
  auto* const ids = tokens.mutable_data_ptr<int64_t>();
  Batch batch;
  if (const ExampleData* const examples = data.examples()) {
    const OutsideTensor<int64_t> labels(rows.size() * length);
    for (size_t i = 0; i < rows.size(); ++i) {
      GEMINI_ASSIGN_OR_RETURN(
          const int64_t count,
          ReadExample(*examples, examples->rows().task(), rows[i], static_cast<int64_t>(i), masks,
                      of_row(i, ids), of_row(i, labels.values->data())));
      if (static_cast<int64_t>(i) < num_labeled) batch.labels.count += count;
    }
    std::fill(labels.values->begin() + num_labeled * data.sequence_tokens(), labels.values->end(),
              -1);
    batch.labels.values = labels.On(device, sizes);
    batch.inputs = tokens.to(device);
  } else if (const LabeledData* const labeled = data.labeled()) {
    const OutsideTensor<int64_t> types(labeled->has_types() ? rows.size() * length : 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      GEMINI_RETURN_IF_ERROR(labeled->Read(
          rows[i], of_row(i, ids),
          labeled->has_types() ? of_row(i, types.values->data()) : absl::Span<int64_t>()));
    }
    if (labeled->has_types()) batch.types = types.On(device, sizes);
    GEMINI_ASSIGN_OR_RETURN(batch.labels, ReadLabels(*labeled, rows, num_labeled, device));
    batch.inputs = tokens.to(device);
  } else {
    for (size_t i = 0; i < rows.size(); ++i) {
      GEMINI_RETURN_IF_ERROR(data.text().Read(rows[i], of_row(i, ids)));
    }
    batch.inputs = tokens.to(device);
    batch.labels = Labels::OfFirst(batch.inputs, num_labeled);
  }
  if (!data.has_documents()) return batch;
  RowDocuments documents;
  for (const int64_t row : rows) {
    GEMINI_ASSIGN_OR_RETURN(documents.lengths.emplace_back(), data.ReadDocuments(row));
  }
  batch.documents = std::make_shared<RowDocuments>(std::move(documents));
  return batch;
}

absl::StatusOr<int64_t> CountLabels(const TrainingData& data, int64_t row, const RowMasks& masks) {
  if (const TaskSpec* const labels = LabelsOf(data)) {
    return labels->problem == ProblemType::kSingleLabel ? 1 : labels->num_labels;
  }
  const TaskKind kind = data.task().kind;
  if (const AlignmentData* const alignments = data.alignments()) {
    if (kind != TaskKind::kMasked) return alignments->CountLabels(row);
    std::vector<int64_t> tokens(static_cast<size_t>(alignments->tokens_per_row()));
    std::vector<int64_t> labels(tokens.size());
    return ReadExample(*alignments, kind, row, /*place=*/0, masks, absl::MakeSpan(tokens),
                       absl::MakeSpan(labels));
  }
  const ExampleData* const examples = data.examples();
  if (examples == nullptr) return data.sequence_tokens() - 1;
  if (kind != TaskKind::kMasked) return examples->CountAnswers(row);
  std::vector<int64_t> tokens(static_cast<size_t>(data.sequence_tokens())), labels(tokens.size());
  return ReadExample(*examples, kind, row, /*place=*/0, masks, absl::MakeSpan(tokens),
                     absl::MakeSpan(labels));
}

}  // namespace gemini::trainer
