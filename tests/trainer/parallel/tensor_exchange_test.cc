// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_exchange.h"

#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

RankLine LineOf(Communicator& me) { return {&me, &me.world()}; }

TEST(TensorShiftTest, BringsWhatThePreviousRankHas) {
  RunThreadRanks(3, [](Communicator& me) {
    const Tensor own = torch::full({4}, static_cast<double>(me.rank()));
    TensorShift shift(own, LineOf(me), "it");
    EXPECT_TRUE(
        torch::equal(shift.Await(), torch::full({4}, static_cast<double>((me.rank() + 2) % 3))));
  });
}

// What an attempt that found no memory has left is not kept: nobody reads it.
TEST(TensorShiftTest, InSilenceNothingIsKept) {
  RunThreadRanks(2, [](Communicator& me) {
    me.set_silent(true);
    const Tensor own = torch::ones({4});
    std::optional<TensorShift> shift(std::in_place, own, LineOf(me), "it");
    EXPECT_EQ(own.use_count(), 2);
    shift.reset();
    EXPECT_EQ(own.use_count(), 1);
    me.set_silent(false);
  });
}

TEST(GatherOverRanksTest, PutsPartsInTheirOrder) {
  RunThreadRanks(3, [](Communicator& me) {
    const Tensor all =
        GatherOverRanks(torch::full({2}, static_cast<double>(me.rank())), LineOf(me), "it");
    EXPECT_TRUE(torch::equal(all.select(1, 0), torch::arange(3, torch::kFloat32)));
  });
}

TEST(AddOverRanksTest, AddsInPlace) {
  RunThreadRanks(3, [](Communicator& me) {
    const Tensor own = torch::full({2}, static_cast<double>(me.rank() + 1));
    AddOverRanks(own, LineOf(me), "it");
    EXPECT_TRUE(torch::equal(own, torch::full({2}, 6.0)));
  });
}

}  // namespace
}  // namespace gemini::trainer
