// SPDX-License-Identifier: Apache-2.0
// A job with plans, updates and reading ahead, of whose NVMe transfers one goes wrong: PlannedJob
// compares every byte that it uses. Beside tests/client/host/nvme_faults_test.cc, which does that
// for each transfer of a smaller job.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/plan/phase_tracker_fixture.h"
#include "tests/server/nvme/nvme_io_faulty.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using server::NvmeFault;
using ::testing::HasSubstr;

constexpr int kLayers = 6;
constexpr int64_t kDeviceSlots = 10;
constexpr int64_t kHostSlots = SpareSlots({}) + 2;
constexpr int64_t kNvmeSlots = 3 * kLayers * 4 + SpareSlots({});
constexpr int kRounds = 5;
constexpr int64_t kStride = 13;  // Of the transfers that go wrong: their kinds follow no period.

class PlannedNvmeFaultsTest : public PhaseTrackerTest {
 protected:
  PlannedNvmeFaultsTest() {
    chunk_bytes_ = 2 * kTestChunkBytes;
    server::ServerOptions options = DefaultServer();
    // All that a job takes: the next one waits for it, and is refused if any is missing.
    options.capacity_bytes = Bytes(kDeviceSlots * chunk_bytes_, kHostSlots * chunk_bytes_, 0);
    options.nvme_directories[0].capacity_bytes = kNvmeSlots * chunk_bytes_;
    StartServer(server::WithFaults(options, faults_));
    plans_.set_host_bytes(kHostSlots * chunk_bytes_);
  }
  ~PlannedNvmeFaultsTest() override {
    job_.reset();
    session_.reset();
    server_.reset();
  }

  absl::Status Round() {
    job_->ZeroGradients();
    absl::Status status;
    for (int32_t i = 0; i < 2 * kLayers && status.ok(); ++i) {
      status = job_->Operator({Param(i)});
    }
    for (int32_t i = 2 * kLayers - 1; i >= 0 && status.ok(); --i) {
      status = job_->Operator({Param(i)});
      if (status.ok()) status = job_->Gradient(i);
    }
    return status.ok() ? job_->Update() : status;
  }
  absl::Status RunJob(NvmeFault fault, int64_t nth) {
    faults_.Arm(fault, 0);
    OpenBelow(kLayers, kDeviceSlots, kHostSlots, kNvmeSlots, &plans_);
    if (HasFatalFailure()) return absl::UnknownError("no job");
    job_->MayFail();
    faults_.Arm(fault, nth);
    absl::Status status;
    for (int round = 0; round < kRounds && status.ok(); ++round) status = Round();
    // As a session does at its end, whatever came before.
    status.Update(job_->FinishUpdates());
    job_.reset();
    EXPECT_OK(session_->Close());
    session_.reset();
    return status;
  }

  server::NvmeFaults faults_;
  LocalPlans plans_{2 * kTestChunkBytes};
};

TEST_F(PlannedNvmeFaultsTest, NoWrongByteIsUsedAndAllComesBack) {
  for (const NvmeFault fault : server::kAllNvmeFaults) {
    int64_t ended = 0, completed = 0;
    for (int64_t nth = 1 + static_cast<int64_t>(fault);; nth += kStride) {
      SCOPED_TRACE(absl::StrCat("transfer ", nth, " ", server::NvmeFaultName(fault)));
      const absl::Status status = RunJob(fault, nth);
      if (HasFailure()) return;
      if (!faults_.fired()) {
        ASSERT_OK(status);
        ASSERT_GT(nth, 4 * kStride);
        break;
      }
      status.ok() ? ++completed : ++ended;
      if (!status.ok()) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(") of space job"));
      }
    }
    std::printf("%s: %ld jobs ended with a status, %ld completed with the right bytes\n",
                std::string(server::NvmeFaultName(fault)).c_str(), ended, completed);
  }
}

}  // namespace
}  // namespace gemini::client
