// SPDX-License-Identifier: Apache-2.0
#include "client/host/lru_list.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

// Property: after any additions and removals the order is that of a plain vector.
TEST(LruListTest, KeepsTheOrderOfAdditionUnderRandomRemovals) {
  constexpr int64_t kIds = 12;
  LruList list(kIds - 1);
  list.Grow();
  std::vector<int64_t> model;
  std::mt19937_64 random(/*seed=*/1);
  for (int step = 0; step < 5000; ++step) {
    const int64_t id = static_cast<int64_t>(random() % kIds);
    const auto at = std::find(model.begin(), model.end(), id);
    ASSERT_EQ(list.contains(id), at != model.end());
    if (at == model.end()) {
      list.Add(id);
      model.push_back(id);
    } else {
      list.Remove(id);
      model.erase(at);
    }
    std::vector<int64_t> order;
    for (int64_t i = list.oldest(); i != LruList::kNone; i = list.newer(i)) order.push_back(i);
    ASSERT_EQ(order, model) << "step " << step;
  }
}

TEST(LruListDeathTest, AddingTwiceOrRemovingWhatIsNotThereStops) {
  LruList list(2);
  list.Add(1);
  EXPECT_DEATH(list.Add(1), "broken invariant");
  EXPECT_DEATH(list.Remove(0), "broken invariant");
}

}  // namespace
}  // namespace gemini::client
