// SPDX-License-Identifier: Apache-2.0
// One NVMe transfer goes wrong, the first, the second, until a run is clean: nobody uses a wrong
// byte, the chunk is named, and the server has everything back afterwards. In the manner of SQLite
// ("How SQLite Is Tested", section 3).
#include <array>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/update/update_queue.h"
#include "gemini/system/status_macros.h"
#include "tests/client/session/faulty_session_fixture.h"

namespace gemini::client {
namespace {

using server::NvmeFault;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBundles = 5;
constexpr int64_t kNvmeSlots = 5 * kBundles;
constexpr int64_t kSteps = 2;
constexpr int64_t kWords = 2 * kPageBytes / 8;

// The arithmetic of the job, in plain memory: a word a chunk, from which all of its words come. A
// wrong byte that was used anywhere shows in what comes of it.
struct PlainBundle {
  uint64_t param, exp_avg, exp_avg_sq, grad;
  void Accumulate(uint64_t micro_batch) { grad += param * 31 + micro_batch; }
  void Update() {
    exp_avg = exp_avg * 3 + grad;
    exp_avg_sq = exp_avg_sq * 5 + grad * grad;
    param += exp_avg ^ exp_avg_sq;
  }
};
uint64_t WordOf(uint64_t value, int64_t index) { return value * 1'000'003 + index; }

// Whether the home of optimizer states is NVME; else what is used last leaves HOST.
class NvmeFaultsTest : public FaultySessionFixture, public ::testing::WithParamInterface<bool> {
 protected:
  NvmeFaultsTest() {
    chunk_bytes_ = kWords * 8;  // Two pages: so that a half can be moved.
    server::ServerOptions options = DefaultServer();
    options.capacity_bytes = LeaseBytes();
    options.nvme_directories[0].capacity_bytes = kNvmeSlots * chunk_bytes_;
    StartServer(WithFaults(options, faults_));
  }
  TierMap<int64_t> LeaseBytes() const {
    return Bytes(4 * chunk_bytes_, host_slots_ * chunk_bytes_, kNvmeSlots * chunk_bytes_);
  }
  // Takes all that the server has: it waits for what is on its way back, and is refused if any is
  // missing.
  void OpenAll() {
    OpenSession(4, host_slots_, kNvmeSlots);
    if (HasFatalFailure()) return;
    auto store = session_->OpenSpace({.name = "job",
                                      .num_bundles = kBundles,
                                      .host_slots = host_slots_,
                                      .nvme_slots = kNvmeSlots,
                                      .states_on_nvme = GetParam()});
    ASSERT_OK(store);
    store_ = *store;
  }

  static void Fill(const HostChunk& chunk, uint64_t value) {
    auto* const words = reinterpret_cast<uint64_t*>(chunk.data());
    for (int64_t i = 0; i < kWords; ++i) words[i] = WordOf(value, i);
  }
  static void ExpectHolds(const HostChunk& chunk, uint64_t value, ChunkKind kind, int64_t bundle) {
    const auto* const words = reinterpret_cast<const uint64_t*>(chunk.data());
    for (int64_t i = 0; i < kWords; ++i) {
      if (words[i] == WordOf(value, i)) continue;
      ADD_FAILURE() << "word " << i << " of " << ChunkKindName(kind) << " of bundle " << bundle;
      return;
    }
  }
  static uint64_t& ValueOf(PlainBundle& plain, ChunkKind kind) {
    return kind == ChunkKind::kParam    ? plain.param
           : kind == ChunkKind::kExpAvg ? plain.exp_avg
           : kind == ChunkKind::kGrad   ? plain.grad
                                        : plain.exp_avg_sq;
  }

  // Out of place, as client/update/bundle_update.cc. `before` and `after`: what it is to read, and
  // to write.
  absl::StatusOr<bool> UpdateBundle(BundleId bundle, int64_t step, PlainBundle before,
                                    PlainBundle after) {
    std::vector<HostChunk> old;
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    for (const ChunkKind kind :
         {ChunkKind::kGrad, ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
      GEMINI_ASSIGN_OR_RETURN(HostChunk chunk, store_->AcquireForUpdate(ChunkOf(bundle, kind)));
      ExpectHolds(chunk, ValueOf(before, kind), kind, bundle.value());
      old.push_back(std::move(chunk));
      if (kind == ChunkKind::kGrad) continue;
      GEMINI_ASSIGN_OR_RETURN(HostChunk spare, store_->AcquireSpareForUpdate());
      Fill(spare, ValueOf(after, kind));
      fresh.emplace_back(kind, std::move(spare));
    }
    old.clear();
    GEMINI_RETURN_IF_ERROR(store_->Commit(bundle, step, absl::MakeSpan(fresh)));
    return true;
  }

  // Everything is committed at step 0.
  absl::Status Load() {
    for (int64_t i = 0; i < kBundles; ++i) {
      const auto seed = static_cast<uint64_t>(i);
      plain_[0][i] = {
          .param = 100 + 7 * seed, .exp_avg = 200 + 5 * seed, .exp_avg_sq = 3 * seed, .grad = 0};
      for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
        GEMINI_ASSIGN_OR_RETURN(HostChunk spare, store_->AcquireSpare());
        Fill(spare, ValueOf(plain_[0][i], kind));
        std::pair<ChunkKind, HostChunk> fresh(kind, std::move(spare));
        GEMINI_RETURN_IF_ERROR(store_->Commit(BundleId(i), 0, absl::MakeSpan(&fresh, 1)));
      }
    }
    return absl::OkStatus();
  }
  // Gradients of two micro-batches: the first overwrites, the second adds to what is there.
  absl::Status Backward(int64_t step) {
    for (int64_t i = 0; i < kBundles; ++i) plain_[step][i] = plain_[step - 1][i];
    for (uint64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (int64_t i = 0; i < kBundles; ++i) {
        PlainBundle& plain = plain_[step][i];
        GEMINI_ASSIGN_OR_RETURN(const HostChunk param,
                                store_->Acquire(ChunkOf(BundleId(i), ChunkKind::kParam)));
        ExpectHolds(param, plain.param, ChunkKind::kParam, i);
        const ChunkId id = ChunkOf(BundleId(i), ChunkKind::kGrad);
        GEMINI_ASSIGN_OR_RETURN(const HostChunk grad, micro_batch == 0
                                                          ? store_->AcquireToOverwrite(id)
                                                          : store_->AcquireUncommitted(id));
        if (micro_batch == 0) {
          plain.grad = 0;
        } else {
          ExpectHolds(grad, plain.grad, ChunkKind::kGrad, i);
        }
        plain.Accumulate(micro_batch);
        Fill(grad, plain.grad);
      }
    }
    return absl::OkStatus();
  }
  absl::Status Train(UpdateQueue& queue) {
    GEMINI_RETURN_IF_ERROR(Load());
    for (int64_t step = 1; step <= kSteps; ++step) {
      GEMINI_RETURN_IF_ERROR(Backward(step));
      GEMINI_RETURN_IF_ERROR(queue.Finish());
      before_ = plain_[step];
      for (PlainBundle& plain : plain_[step]) plain.Update();
      step_ = step;
      Intent intent;
      intent.step = step;
      std::vector<BundleId> bundles;
      for (int64_t i = 0; i < kBundles; ++i) bundles.push_back(BundleId(i));
      GEMINI_RETURN_IF_ERROR(store_->updates().Begin(intent, bundles));
      queue.Wake();
    }
    return queue.Finish();
  }
  // Each chunk that can be read has the bytes of its bundle's committed step. Returns the first
  // error of others.
  absl::Status ReadAll() {
    absl::Status status;
    for (int64_t i = 0; i < kBundles; ++i) {
      const int64_t step = store_->CommittedStep(BundleId(i));
      for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
        const ChunkId id = ChunkOf(BundleId(i), kind);
        if (!store_->IsCommitted(id)) continue;
        const absl::StatusOr<HostChunk> chunk = store_->Acquire(id);
        if (chunk.ok()) {
          ExpectHolds(*chunk, ValueOf(plain_[step][i], kind), kind, i);
        } else {
          status.Update(chunk.status());
        }
      }
    }
    return status;
  }
  // One job from its session to its end. Returns its first error.
  absl::Status RunJob() {
    OpenAll();
    if (HasFatalFailure()) return absl::UnknownError("no session");
    absl::Status status;
    {
      UpdateQueue queue(
          *store_, nullptr,
          [this](BundleId bundle) {
            return UpdateBundle(bundle, step_, before_[bundle.value()],
                                plain_[step_][bundle.value()]);
          },
          [](const absl::Status&) {});
      status = Train(queue);
      // As a session does at its end, whatever came before.
      queue.Finish().IgnoreError();
    }
    status.Update(ReadAll());
    if (status.ok()) {
      for (int64_t i = 0; i < kBundles; ++i) EXPECT_EQ(store_->CommittedStep(BundleId(i)), kSteps);
    }
    EXPECT_OK(session_->Close());
    session_.reset();
    return status;
  }

  // With states at home: the other chunks, an update, and two for each bundle whose states pass.
  const int64_t host_slots_ = GetParam() ? 2 * kBundles + 7 + 2 * 2 : 11;
  ChunkStore* store_ = nullptr;
  std::array<std::array<PlainBundle, kBundles>, kSteps + 1> plain_ = {};  // After each step.
  std::array<PlainBundle, kBundles> before_ = {};  // What the update under way reads.
  int64_t step_ = 0;
};

TEST_P(NvmeFaultsTest, WhicheverTransferGoesWrongNoWrongByteIsUsedAndAllComesBack) {
  for (const NvmeFault fault : server::kAllNvmeFaults) {
    int64_t ended = 0, completed = 0;
    for (int64_t nth = 1;; ++nth) {
      SCOPED_TRACE(absl::StrCat("transfer ", nth, " ", server::NvmeFaultName(fault)));
      faults_.Arm(fault, nth);
      const absl::Status status = RunJob();
      if (HasFailure()) return;
      if (!faults_.fired()) {
        ASSERT_OK(status);
        ASSERT_GT(nth, 4 * kBundles);
        break;
      }
      status.ok() ? ++completed : ++ended;
      if (status.ok()) continue;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("chunk "), HasSubstr(" of bundle "), HasSubstr(") of space job"),
                        HasSubstr("NVME slot ")));
      EXPECT_EQ(status.code(), fault == NvmeFault::kNoSpace ? absl::StatusCode::kResourceExhausted
                                                            : absl::StatusCode::kDataLoss)
          << status;
    }
    std::printf("%s: %ld jobs ended with a status, %ld completed with the right bytes\n",
                std::string(server::NvmeFaultName(fault)).c_str(), ended, completed);
    EXPECT_GT(ended, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(StatesOnNvme, NvmeFaultsTest, ::testing::Bool());

}  // namespace
}  // namespace gemini::client
