// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/row_documents.h"

#include <algorithm>
#include <numeric>

#include "ATen/ops/empty.h"

namespace gemini::trainer {

int64_t RowDocuments::longest() const {
  int64_t most = 0;
  for (const std::vector<int64_t>& row : lengths) {
    for (const int64_t length : row) most = std::max(most, length);
  }
  return most;
}

RowDocuments RowDocuments::RowsFrom(int64_t first, int64_t count) const {
  const auto begin = lengths.begin() + first;
  return {.lengths = {begin, begin + count}};
}

torch::Tensor RowDocuments::Positions(int64_t sequence) const {
  torch::Tensor positions =
      at::empty({static_cast<int64_t>(lengths.size()), sequence}, torch::kInt64);
  auto* next = positions.mutable_data_ptr<int64_t>();
  for (const std::vector<int64_t>& row : lengths) {
    int64_t left = sequence;
    const auto count_up = [&](int64_t length) {
      std::iota(next, next + length, 0);
      next += length;
      left -= length;
    };
    for (const int64_t length : row) {
      TORCH_CHECK(length > 0 && length <= left, "documents of a row of ", sequence,
                  " tokens: one of ", length, " where ", left, " are left");
      count_up(length);
    }
    count_up(left);
  }
  return positions;
}

}  // namespace gemini::trainer
