// SPDX-License-Identifier: Apache-2.0
// Moves one at a time, without threads.
#include "client/host/chunk_mover.h"

#include <utility>
#include <vector>

#include "gemini/plan/spare_slots.h"
#include "gemini/state_format.h"
#include "tests/client/session/faulty_session_fixture.h"

namespace gemini::client {
namespace {

constexpr int64_t kBundles = 3;

class ChunkMoverTest : public FaultySessionFixture {
 protected:
  // A space of bf16 parameters whose masters' home is NVME, all committed.
  void SetUp() override {
    const int64_t host_slots = 2 * kBundles + SpareSlots(format_) + StateWindowSlots(format_);
    const int64_t nvme_slots = kBundles * (UpdatedKinds(format_).size() - 1);
    OpenSession(/*device_slots=*/4, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    ASSERT_OK_AND_ASSIGN(store_, session_->OpenSpace({.name = "space",
                                                      .num_bundles = kBundles,
                                                      .host_slots = host_slots,
                                                      .nvme_slots = nvme_slots,
                                                      .num_tensors = kBundles,
                                                      .format = format_,
                                                      .states_on_nvme = true}));
    for (int64_t i = 0; i < kBundles; ++i) {
      std::vector<std::pair<ChunkKind, HostChunk>> fresh;
      for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kMaster}) {
        ASSERT_OK_AND_ASSIGN(HostChunk chunk, store_->AcquireSpare());
        FillChunk(chunk.data(), static_cast<uint64_t>(ChunkOf(BundleId(i), kind).value()));
        fresh.emplace_back(kind, std::move(chunk));
      }
      ASSERT_OK(store_->Commit(BundleId(i), 0, absl::MakeSpan(fresh)));
    }
  }
  void WriteAllBehind() {
    ChunkMover mover(*store_);
    for (int64_t i = 0; i < kBundles; ++i) ASSERT_TRUE(mover.WriteBehind());
  }
  void BeginUpdate(absl::Span<const BundleId> bundles) {
    Intent intent;
    intent.step = 1;
    intent.tensors.resize(kBundles);
    ASSERT_OK(store_->updates().Begin(intent, bundles));
  }
  Tier TierOf(int64_t bundle, ChunkKind kind) {
    return Look("space").at(ChunkOf(BundleId(bundle), kind).value()).tier;
  }

  static constexpr StateFormat format_ = {.element = ElementType::kBf16};
  ChunkStore* store_ = nullptr;
};

TEST_F(ChunkMoverTest, StatesAreWrittenHomeAndNothingElse) {
  WriteAllBehind();
  EXPECT_EQ(store_->stored_bytes().nvme_written_bytes, kBundles * kTestChunkBytes);
  for (int64_t i = 0; i < kBundles; ++i) {
    EXPECT_EQ(TierOf(i, ChunkKind::kMaster), Tier::kNvme) << i;
    EXPECT_EQ(TierOf(i, ChunkKind::kParam), Tier::kHost) << i;
    EXPECT_EQ(store_->CommittedPlace(ChunkOf(BundleId(i), ChunkKind::kMaster))->tier, Tier::kNvme);
  }
}

TEST_F(ChunkMoverTest, StatesAreReadInTheOrderOfTheUpdates) {
  WriteAllBehind();
  BeginUpdate({BundleId(2), BundleId(0), BundleId(1)});
  if (HasFatalFailure()) return;
  ChunkMover mover(*store_);
  for (const int64_t bundle : {2, 0, 1}) {
    ASSERT_EQ(TierOf(bundle, ChunkKind::kMaster), Tier::kNvme);
    ASSERT_TRUE(mover.ReadForUpdate());
    ASSERT_EQ(TierOf(bundle, ChunkKind::kMaster), Tier::kHost) << bundle;
  }
  mover.End();
  EXPECT_FALSE(mover.ReadForUpdate());
}

// Whoever updates its bundle meets the loss; reading goes on with what comes behind it.
TEST_F(ChunkMoverTest, ALostChunkIsReadOnce) {
  WriteAllBehind();
  BeginUpdate({BundleId(2), BundleId(0), BundleId(1)});
  if (HasFatalFailure()) return;
  faults_.Arm(server::NvmeFault::kFails, 1);
  ChunkMover mover(*store_);
  ASSERT_TRUE(mover.ReadForUpdate());
  EXPECT_TRUE(faults_.fired());
  EXPECT_EQ(store_->stored_bytes().nvme_read_bytes, 0);
  for (int64_t read = 1; read < kBundles; ++read) {
    ASSERT_TRUE(mover.ReadForUpdate());
    ASSERT_EQ(store_->stored_bytes().nvme_read_bytes, read * kTestChunkBytes);
  }
  EXPECT_THAT(store_->AcquireForUpdate(ChunkOf(BundleId(2), ChunkKind::kMaster)),
              StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace gemini::client
