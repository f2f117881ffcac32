// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/range_max_tree.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

TEST(RangeMaxTreeTest, AgreesWithAPlainRowAfterRandomAdditions) {
  std::mt19937_64 random(/*seed=*/1);
  for (const int32_t size : {1, 2, 3, 7, 64, 100}) {
    std::vector<int32_t> row(size);
    for (int32_t& value : row) value = static_cast<int32_t>(random() % 20) - 10;
    RangeMaxTree tree(row);
    for (int step = 0; step < 500; ++step) {
      const int32_t first = static_cast<int32_t>(random() % (size + 1));
      const int32_t end = first + static_cast<int32_t>(random() % (size + 1 - first));
      const int32_t value = static_cast<int32_t>(random() % 7) - 3;
      tree.Add(first, end, value);
      for (int32_t i = first; i < end; ++i) row[i] += value;
      const int32_t from = static_cast<int32_t>(random() % (size + 1));
      const int32_t to = from + static_cast<int32_t>(random() % (size + 1 - from));
      const int32_t bound = static_cast<int32_t>(random() % 30) - 15;
      int32_t expected = -1;
      for (int32_t i = from; i < to; ++i) {
        if (row[i] > bound) expected = i;
      }
      ASSERT_EQ(tree.LastAbove(from, to, bound), expected) << "size " << size << " step " << step;
    }
  }
}

}  // namespace
}  // namespace gemini::policies
