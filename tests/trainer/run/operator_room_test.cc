// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/operator_room.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "tests/trainer/store/forwarding_store.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/run/torch_failure.h"
#include "trainer/store/parameter_store_reference.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status NoMemory() {
  return StatusOfFailure(c10::OutOfMemoryError({__func__, __FILE__, 0}, "nothing is left"),
                         "forward");
}

// Has more memory for operators a few times, and counts what it is told.
class CountingStore final : public ForwardingStore {
 public:
  CountingStore(std::unique_ptr<ParameterStore> store, int gives)
      : ForwardingStore(std::move(store)), gives_(gives) {}
  client::TrainingStats usage() const override {
    client::TrainingStats usage = ForwardingStore::usage();
    usage.device_budget_bytes = int64_t{3} << 20;
    return usage;
  }
  void BeginPhase(absl::string_view name) override { phases.emplace_back(name); }
  bool GiveWay() override { return ++num_asked <= gives_; }
  void ForgetGradients() override { ++num_forgotten; }

  int num_asked = 0;
  int num_forgotten = 0;
  std::vector<std::string> phases;

 private:
  const int gives_;
};

// A model, its store, and a room for them.
struct Rank {
  Rank(const RankAgreement& ranks, int gives)
      : model(*MakeStagedModel(
            ParseHfConfig(R"({"model_type":"gpt2","vocab_size":64,"n_positions":16,"n_embd":16,
                              "n_layer":1,"n_head":2})",
                          "config")
                ->spec,
            torch::kFloat)),
        store(*ReferenceParameterStore::Create(*model, {}, {}), gives),
        room(*model, store, activations, ranks,
             [this](const std::string& line) { lines.push_back(line); }) {}
  // Leaves a gradient, as an attempt does.
  void LeaveGradient() {
    torch::Tensor parameter = model->parameters().front();
    parameter.mutable_grad() = torch::ones_like(parameter);
  }
  bool has_gradient() const { return model->parameters().front().grad().defined(); }

  std::unique_ptr<StagedModel> model;
  CountingStore store;
  ActivationsInPlace activations;
  std::vector<std::string> lines;
  OperatorRoom room;
};

TEST(OperatorRoomTest, WhatFindsNoMemoryIsBegunAgainWithoutItsGradients) {
  Rank rank(RankAgreement(), 2);
  int attempts = 0;
  const auto loss = rank.room.Run("step 7", [&]() -> absl::StatusOr<LossSum> {
    EXPECT_FALSE(rank.has_gradient());
    rank.LeaveGradient();
    if (++attempts < 3) return NoMemory();
    return LossSum();
  });
  EXPECT_OK(loss);
  EXPECT_EQ(attempts, 3);
  EXPECT_EQ(rank.store.num_forgotten, 2);
  EXPECT_TRUE(rank.has_gradient());  // Of the attempt that counts.
  EXPECT_THAT(rank.lines, ElementsAre(AllOf(HasSubstr("step 7"), HasSubstr("nothing is left")),
                                      HasSubstr("step 7")));
}

TEST(OperatorRoomTest, OtherErrorsAndALackOfMoreAreReturned) {
  Rank rank(RankAgreement(), 1);
  const auto fail = [](absl::Status status) {
    return [status] { return absl::StatusOr<LossSum>(status); };
  };
  EXPECT_THAT(rank.room.Run("step 1", fail(absl::InternalError("a fault"))),
              StatusIs(absl::StatusCode::kInternal, "a fault"));
  EXPECT_EQ(rank.store.num_asked, 0);
  EXPECT_THAT(rank.room.Run("step 1", fail(NoMemory())),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("nothing is left")));
  EXPECT_EQ(rank.store.num_asked, 2);
}

TEST(OperatorRoomTest, InTheMiddleOfWhatOthersTakePartInNothingIsBegunAgain) {
  RunThreadRanks(2, [](Communicator& me) {
    Rank rank(RankAgreement(me), 5);
    EXPECT_FALSE(rank.room.is_by_itself());
    EXPECT_THAT(rank.room.Run("step 1", [] { return absl::StatusOr<LossSum>(NoMemory()); }),
                StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_EQ(rank.store.num_asked, 0);
  });
}

TEST(OperatorRoomTest, ARehearsalIsByItselfAndLeavesNothing) {
  RunThreadRanks(2, [](Communicator& me) {
    Rank rank(RankAgreement(me), 5);
    int attempts = 0;
    EXPECT_OK(rank.room.Rehearse([&]() -> absl::StatusOr<LossSum> {
      EXPECT_TRUE(rank.room.is_rehearsing() && rank.room.is_by_itself());
      rank.LeaveGradient();
      // Each rank sums as often as it likes: nobody hears of it.
      float value = 1;
      for (int64_t i = 0; i <= me.rank(); ++i) {
        EXPECT_OK(me.AllReduce(me.world(), SumType::kFp32, &value, 1, "silent")->Wait());
      }
      EXPECT_EQ(value, 1);
      if (me.rank() == 1 && ++attempts < 3) return NoMemory();
      return LossSum();
    }));
    EXPECT_FALSE(rank.room.is_rehearsing());
    EXPECT_FALSE(rank.has_gradient());
    EXPECT_THAT(rank.store.phases, ElementsAre("rehearsal"));
    EXPECT_EQ(rank.store.num_forgotten, me.rank() == 1 ? 3 : 1);
    if (me.rank() == 0) {
      EXPECT_THAT(rank.lines, ElementsAre(AllOf(HasSubstr("rehearsed a step"),
                                                HasSubstr("in rank 1 2 times"))));
    }
    float value = 1;
    EXPECT_OK(me.AllReduce(me.world(), SumType::kFp32, &value, 1, "heard")->Wait());
    EXPECT_EQ(value, 2);
  });
}

TEST(OperatorRoomTest, WhatOneRankCannotRehearseAllReturn) {
  RunThreadRanks(2, [](Communicator& me) {
    Rank rank(RankAgreement(me), 1);
    EXPECT_THAT(rank.room.Rehearse([&] {
      return me.rank() == 1 ? absl::StatusOr<LossSum>(NoMemory()) : LossSum();
    }),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("rank 1: a step does not fit in DEVICE of 3 MiB"),
                               HasSubstr("--device-memory"), HasSubstr("nothing is left"))));
    EXPECT_THAT(rank.room.Rehearse([&] {
      return me.rank() == 0 ? absl::StatusOr<LossSum>(absl::InternalError("a fault")) : LossSum();
    }),
                StatusIs(absl::StatusCode::kInternal, "rank 0: a fault"));
    EXPECT_EQ(rank.lines.size(), static_cast<size_t>(me.rank()));  // What was begun again, once.
  });
}

}  // namespace
}  // namespace gemini::trainer
