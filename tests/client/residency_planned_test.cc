// SPDX-License-Identifier: Apache-2.0
// What Residency offers to whoever moves ranges by a plan, where the executor's own tests cannot meet the
// moment.
#include <vector>

#include "client/residency.h"
#include "tests/client/session_fixture.h"

namespace gemini::client {
namespace {

class ResidencyPlannedTest : public SessionFixture {};

// A plan that ends just after a look at whether it goes on, as another thread may end it.
class EndingMoves : public PlannedMoves {
 public:
  bool active() const override { return looks_++ == 0; }
  bool paused() const override { return false; }
  bool IsComing(RangeId, bool) override { return false; }
  bool IsEvicting() const override { return false; }
  StallCause WaitingFor() const override { return StallCause::kTransfer; }
  void Interrupt(Divergence) override {}

 private:
  mutable int looks_ = 0;
};

TEST_F(ResidencyPlannedTest, AFetchWhosePlanEndsMeanwhileChargesNoMoreThanItTakes) {
  OpenSession(/*device_slots=*/1, /*host_slots=*/4, 0);
  ASSERT_NE(session_, nullptr);
  ChunkStore* const store = OpenSpace("space", 1, 4, 0);
  ASSERT_NE(store, nullptr);
  ASSERT_OK(CommitTag(*store, BundleId(0), ChunkKind::kParam, 0, 1));
  CopyEngineHost copies;
  DeviceBudget own_budget(kTestChunkBytes);
  std::vector<std::byte> arena(kTestChunkBytes);
  Residency own(own_budget, copies, arena.data(), /*num_slots=*/1, kTestChunkBytes);
  EndingMoves moves;
  own.set_planned_moves(&moves);
  const RangeId range = own.AddRange(*store, BundleId(0), 1, ChunkKind::kParam);
  const Residency::FetchStart start = own.BeginFetch(range, SlotId(0));
  EXPECT_EQ(own_budget.used_bytes(),
            start == Residency::FetchStart::kStarted ? kTestChunkBytes : 0);
  if (start == Residency::FetchStart::kStarted) {
    own.EndFetch(range, {}, /*all=*/false);
    EXPECT_EQ(own_budget.used_bytes(), 0);
  }
  own.set_planned_moves(nullptr);
}

}  // namespace
}  // namespace gemini::client
