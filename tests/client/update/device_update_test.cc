// SPDX-License-Identifier: Apache-2.0
// Updates on DEVICE as plans have them, in jobs that check every byte.
#include "client/update/device_update.h"

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "tests/client/plan/phase_tracker_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

class DeviceUpdateTest : public PhaseTrackerTest {
 protected:
  UpdateRanges RangesOf(BundleId first, int64_t num_bundles) {
    UpdateRanges ranges = {
        .store = &job_->store(), .first = first, .num_bundles = num_bundles, .ranges = {}};
    for (const ChunkKind kind : TrainableKinds(job_->store().format())) {
      ranges.ranges[kind] =
          *session_->residency().FindRange(job_->store(), first, num_bundles, kind);
    }
    return ranges;
  }
  // The first step of a restarted job, which has a trace before it has moments.
  void StepWithKeptTrace(LocalPlans& plans) {
    plans.set_policy({.kind = PolicyKind::kStatic, .optimizer_fraction = 0.5});
    Open(6, /*device_slots=*/50, &plans);
    if (HasFatalFailure()) return;
    Step();
    ASSERT_OK_AND_ASSIGN(Trace trace, job_->phases().TraceOf("train"));
    plans.Keep(std::move(trace));
    job_.reset();
    session_.reset();
    Open(6, /*device_slots=*/50, &plans);
    if (HasFatalFailure()) return;
    Step();
    EXPECT_GT(job_->updates_on_device(), 0);
  }
};

// 18 chunks of parameters: 72 with moments and gradients.
TEST_F(DeviceUpdateTest, UpdatesOnDeviceMoveExactlyThePredictedBytes) {
  const auto fraction = [](double params, double updates) {
    return PolicyOptions{
        .kind = PolicyKind::kStatic, .param_fraction = params, .optimizer_fraction = updates};
  };
  const std::array<std::pair<int64_t, PolicyOptions>, 5> cases = {
      std::pair(int64_t{80}, PolicyOptions{.kind = PolicyKind::kCuda}),
      {80, fraction(0, 1)},
      {30, fraction(0, 0.2)},
      {40, fraction(0.3, 0.4)},
      {24, fraction(0.2, 0.1)}};
  for (const auto& [device_slots, policy] : cases) {
    SCOPED_TRACE(device_slots);
    FollowsExactly(device_slots, policy);
    if (HasFatalFailure()) return;
    EXPECT_GT(job_->updates_on_device(), 0);
  }
}

TEST_F(DeviceUpdateTest, ARoundThatLeavesItsPlanIsUpdatedInHost) {
  LocalPlans plans(kTestChunkBytes);
  plans.set_policy({.kind = PolicyKind::kStatic, .optimizer_fraction = 0.5});
  Open(6, /*device_slots=*/50, &plans);
  if (HasFatalFailure()) return;
  int64_t updates = 0;
  for (const int32_t leave : {-1, -1, 20, -1, 3, -1, 23, -1}) {
    job_->phases().TESTING_ONLY_LeavePlanAt(leave);
    const int64_t before = job_->updates_on_device();
    Step();
    if (HasFatalFailure()) return;
    if (leave >= 0) {
      EXPECT_EQ(job_->updates_on_device(), before) << leave;
    }
    updates += job_->updates_on_device() - before;
  }
  EXPECT_GE(updates, 4);
  EXPECT_EQ(divergences(Divergence::kOperator), 3);
  ASSERT_OK(job_->FinishUpdates());
}

TEST_F(DeviceUpdateTest, MomentsOfAFirstRoundAreZeros) {
  LocalPlans plans(kTestChunkBytes);
  StepWithKeptTrace(plans);
  if (HasFatalFailure()) return;
  EXPECT_EQ(stats().planned_rounds, 1);
  EXPECT_EQ(all_divergences(), 0);
}

// Zeros come, into slots that are full of something else, when somebody waits for them.
class LateZeros : public CopyEngineHost {
 public:
  explicit LateZeros(TimelineShm* timeline) : CopyEngineHost({0, 0}, timeline) {}

  using CopyEngine::Copy;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after, CopySubject subject) override {
    if (source != nullptr || size_bytes == 0) {
      return CopyEngineHost::Copy(stream, destination, source, size_bytes, after, subject);
    }
    CopyEngineHost::Wait(after);
    std::memset(destination, 0xff, static_cast<size_t>(size_bytes));
    MutexLock lock(mutex_);
    zeros_.emplace_back(destination, size_bytes);
    return CopyEvent::Behind(kOperatorOrder, zeros_.size());
  }
  bool Done(CopyEvent event) const override {
    MutexLock lock(mutex_);
    return done_ >= event.sequences[kOperatorOrder] && CopyEngineHost::Done(event);
  }
  void Wait(CopyEvent event) override {
    {
      MutexLock lock(mutex_);
      for (; done_ < event.sequences[kOperatorOrder]; ++done_) {
        std::memset(zeros_[done_].first, 0, static_cast<size_t>(zeros_[done_].second));
      }
    }
    CopyEngineHost::Wait(event);
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<void*, int64_t>> zeros_ ABSL_GUARDED_BY(mutex_);
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(DeviceUpdateTest, AnUpdateWaitsForTheZerosOfItsMoments) {
  make_copies_ = [](TimelineShm* timeline) { return std::make_unique<LateZeros>(timeline); };
  LocalPlans plans(kTestChunkBytes);
  StepWithKeptTrace(plans);
}

// The server makes plans, and nothing that it says may end this process.
TEST_F(DeviceUpdateTest, ARangeThatAPlanNamesTwiceIsTakenOnce) {
  Open(2, /*device_slots=*/12, nullptr);
  if (HasFatalFailure()) return;
  Step();
  ASSERT_OK(job_->FinishUpdates());
  const UpdateRanges ranges = RangesOf(BundleId(0), 1);
  DeviceUpdate update(session_->residency());
  ASSERT_OK(update.Add(ranges));
  EXPECT_THAT(update.Add(ranges), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(update.versions().size(), 1u);
  const int64_t begin_ns = TimelineNowNs();
  update.Update(
      [](const BundleInPlace& bundle) { *bundle.chunks[ChunkKind::kParam] ^= std::byte{1}; });
  const std::optional<TimelineEvent> shown =
      ReadTimelineEvent(*session_->timeline(), session_->timeline()->written);
  ASSERT_TRUE(shown.has_value());
  EXPECT_EQ(shown->lane, TimelineLane::kDeviceUpdate);
  EXPECT_EQ(shown->subject, 0u);
  EXPECT_EQ(shown->size_bytes, kTestChunkBytes);
  EXPECT_GE(shown->begin_ns, begin_ns);
  update.Undo();  // Each range goes, which it could not while it is pinned twice.
}

// Plans an update of other chunks than the space has.
class PlansOfAnotherFormat : public LocalPlans {
 public:
  using LocalPlans::LocalPlans;
  absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) override {
    Trace other = trace;
    for (TracedTensor& tensor : other.tensors) tensor.format.optimizer = OptimizerKind::kSgd;
    absl::StatusOr<Plan> plan = LocalPlans::MakePlan(other, device_bytes);
    if (plan.ok()) plan->fingerprint = Fingerprint(trace);
    return plan;
  }
};

TEST_F(DeviceUpdateTest, APlanWithOtherChunksThanTheSpaceHasIsRefused) {
  PlansOfAnotherFormat plans(kTestChunkBytes);
  plans.set_policy({.kind = PolicyKind::kStatic, .optimizer_fraction = 0.5});
  Open(6, /*device_slots=*/50, &plans);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 3; ++round) {
    Step();
    if (HasFatalFailure()) return;
  }
  EXPECT_THAT(job_->phases().plan_status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("on DEVICE without chunks of exp_avg_sq")));
  EXPECT_EQ(job_->updates_on_device(), 0);
}

// Of 8-bit moments, or where the trust ratio is made of gradient and parameter before.
TEST_F(DeviceUpdateTest, APlanThatKeepsGradientsOfAFormatThatCannotIsRefused) {
  chunk_bytes_ = 2 * kTestChunkBytes;  // Of a block of 8-bit moments.
  OpenSession(/*device_slots=*/8, /*host_slots=*/24, /*nvme_slots=*/0);
  if (HasFatalFailure()) return;
  const std::vector<StateFormat> formats = {{.optimizer = OptimizerKind::kLamb},
                                            {.moments = MomentFormat::k8Bit}};
  std::vector<ChunkStore*> stores;
  for (const StateFormat& format : formats) {
    const auto store = session_->OpenSpace({.name = absl::StrCat("space-", stores.size()),
                                            .num_bundles = 1,
                                            .host_slots = 12,
                                            .num_tensors = 1,
                                            .format = format});
    ASSERT_OK(store);
    // Those that the plan has, which was made for another format.
    for (const ChunkKind kind : TrainableKinds({})) {
      session_->residency().AddRange(**store, BundleId(0), 1, kind);
    }
    stores.push_back(*store);
  }
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{.size_bytes = chunk_bytes_}};
  trace.operators = {{0, 1, 1000, 0}, {1, 1, 1000, 0}, {2, 0, 10, 0}};
  trace.uses = {{.tensor = 0}, {.tensor = 0}};
  trace.gradient_outs = {{.position = 1, .tensor = 0}};
  trace.updated = {0};
  LocalPlans plans(chunk_bytes_);
  plans.set_policy({.kind = PolicyKind::kCuda});
  ASSERT_OK_AND_ASSIGN(const Plan updates, plans.MakePlan(trace, 8 * chunk_bytes_));
  ASSERT_EQ(updates.device_updates.size(), 1u);
  const auto bound = [&](const Plan& plan, ChunkStore* store) {
    ChunkStore* const of_plan[] = {store};
    return BindPlan(plan, trace, of_plan, session_->residency(), 8 * chunk_bytes_).status();
  };
  EXPECT_OK(bound(updates, stores[0]));
  EXPECT_THAT(bound(updates, stores[1]),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("updated in HOST alone")));
  Plan late = updates;
  late.late_gradients = {updates.device_updates[0].grad()};
  late.updated = {updates.device_updates[0].param()};
  late.device_updates.clear();
  late.ranges.resize(2);
  late.uses.resize(2);
  late.uses.push_back(late.late_gradients[0]);
  late.first_use = {0, 1, 2, 3};
  late.initial = {};
  late.fetches = {
      {.range = late.updated[0], .slot = SlotId(0), .needed_at = 0},
      {.range = late.late_gradients[0], .slot = SlotId(1), .needed_at = 1, .blank = true}};
  late.evictions = {{.range = late.late_gradients[0], .after = 2, .writes_back = true}};
  EXPECT_THAT(bound(late, stores[0]), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("whose updates read them before")));
}

// The order of a plan is that of first use.
TEST_F(DeviceUpdateTest, EachBundleIsFoundInItsRangeInWhateverOrderTheyCome) {
  Open(2, /*device_slots=*/16, nullptr);
  if (HasFatalFailure()) return;
  Step();
  ASSERT_OK(job_->FinishUpdates());
  // Tensors of one bundle and of two in turn; nothing of the one in bundle 3.
  DeviceUpdate update(session_->residency());
  ASSERT_OK(update.Add(RangesOf(BundleId(4), 2)));
  ASSERT_OK(update.Add(RangesOf(BundleId(0), 1)));
  const RangeId late =
      *session_->residency().FindRange(job_->store(), BundleId(1), 2, ChunkKind::kGrad);
  ASSERT_OK(update.AddLateGradient(
      {.store = &job_->store(), .first = BundleId(1), .num_bundles = 2, .grad = late}));
  for (const int64_t bundle : {0, 1, 2, 3, 4, 5}) {
    EXPECT_EQ(update.updates(BundleId(bundle)), bundle == 0 || bundle > 3) << bundle;
    EXPECT_EQ(update.has_late_gradient(BundleId(bundle)), bundle == 1 || bundle == 2) << bundle;
    EXPECT_EQ(update.gradient(BundleId(bundle)) == nullptr, bundle == 3) << bundle;
  }
  EXPECT_EQ(update.gradient(BundleId(5)), update.gradient(BundleId(4)) + kTestChunkBytes);
  EXPECT_THAT(update.Add(RangesOf(BundleId(4), 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bundle 4")));
  std::vector<int64_t> bundles;
  for (const DeviceVersion& version : update.versions()) bundles.push_back(version.bundle.value());
  EXPECT_THAT(bundles, ::testing::ElementsAre(0, 4, 5));
}

TEST_F(DeviceUpdateTest, ARefusedStepLeavesTheVersionBefore) {
  LocalPlans plans(kTestChunkBytes);
  plans.set_policy({.kind = PolicyKind::kStatic, .optimizer_fraction = 0.5});
  Open(6, /*device_slots=*/50, &plans);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 3; ++round) {
    Step();
    if (HasFatalFailure()) return;
  }
  ASSERT_GT(job_->updates_on_device(), 0);
  ASSERT_OK_AND_ASSIGN(const Plan plan, job_->phases().PlanOf("train"));
  const BundleId bundle = plan.ranges[plan.device_updates[0].param()].first;
  Forward();
  Backward();
  if (HasFatalFailure()) return;
  job_->phases().AwaitPlannedMoves();
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk held,
                         job_->store().Acquire(ChunkOf(bundle, ChunkKind::kParam)));
    EXPECT_THAT(job_->Update(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("held in HOST")));
  }
  EXPECT_EQ(job_->store().CommittedStep(bundle), 3);
  ASSERT_OK(job_->Operator({Param(0)}));
  ASSERT_OK(job_->Update());
  for (int round = 0; round < 3; ++round) {
    Step();
    if (HasFatalFailure()) return;
  }
  ASSERT_OK(job_->FinishUpdates());
}

}  // namespace
}  // namespace gemini::client
