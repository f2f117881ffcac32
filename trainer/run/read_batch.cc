// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/read_batch.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {

absl::StatusOr<TokenBatch> ReadBatch(const TrainingData& data, absl::Span<const int64_t> rows,
                                     int64_t num_labeled, torch::Device device) {
  const auto length = static_cast<size_t>(data.sequence_tokens());
  const std::vector<int64_t> sizes = {static_cast<int64_t>(rows.size()), data.sequence_tokens()};
  const torch::TensorOptions options = torch::dtype(torch::kInt64);
  const torch::Tensor tokens = at::empty(sizes, options);
  const auto labels = std::make_shared<std::vector<int64_t>>();
  if (!data.labels_all()) labels->resize(rows.size() * length);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto of_row = [&](int64_t* values) {
      return absl::MakeSpan(values + i * length, length);
    };
    GEMINI_RETURN_IF_ERROR(
        data.Read(rows[i], of_row(tokens.mutable_data_ptr<int64_t>()),
                  data.labels_all() ? absl::Span<int64_t>() : of_row(labels->data())));
  }
  TokenBatch batch = {.tokens = tokens.to(device), .labels = {}};
  if (data.has_documents()) {
    RowDocuments documents;
    for (const int64_t row : rows) {
      GEMINI_ASSIGN_OR_RETURN(documents.lengths.emplace_back(), data.ReadDocuments(row));
    }
    batch.documents = std::make_shared<RowDocuments>(std::move(documents));
  }
  if (data.labels_all()) {
    batch.labels = Labels::OfFirst(batch.tokens, num_labeled);
    return batch;
  }
  std::fill(labels->begin() + num_labeled * data.sequence_tokens(), labels->end(), -1);
  batch.labels.count = std::ranges::count_if(*labels, [](int64_t label) { return label >= 0; });
  const torch::Tensor ids = at::from_blob(
      labels->data(), sizes, /*deleter=*/[labels](void*) {}, options);
  batch.labels.ids = ids.to(device);
  return batch;
}

}  // namespace gemini::trainer
