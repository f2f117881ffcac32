// SPDX-License-Identifier: Apache-2.0
// Clients that are killed while slabs of DEVICE are made or destroyed for them, with a driver whose
// memory is the process's own.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "server/runtime_claim.h"
#include "server/server.h"
#include "server/tiers/tier_store_cuda.h"
#include "tests/fake_cuda_driver.h"
#include "tests/server/child_process.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int64_t kSlab = 2 * kMiB;
constexpr int64_t kSlabs = 32;

class SlabDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "slabs_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = kSlabs * kSlab;
    options.make_device = [this](int64_t capacity_bytes) {
      return MakeCudaTierStore(fake_.driver(), 0, capacity_bytes, kSlab);
    };
    ASSERT_OK_AND_ASSIGN(server_, Server::Make(std::move(options)));
    ASSERT_OK_AND_ASSIGN(RuntimeClaim claim, RuntimeClaim::Take(directory_));
    claim_ = std::make_unique<RuntimeClaim>(std::move(claim));
    ASSERT_OK(server_->Listen(claim_->TakeListener()));
    thread_ = std::thread([this] { server_->Run(); });
  }
  ~SlabDeathTest() override {
    if (thread_.joinable()) {
      server_->loop().Stop();
      thread_.join();
      server_->loop().Adopt();
    }
    server_.reset();
    claim_.reset();
    std::filesystem::remove_all(directory_);
  }
  FakeCudaDriver fake_{/*memory_bytes=*/kGiB, /*granularity_bytes=*/64 * kKiB};
  std::string directory_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<RuntimeClaim> claim_;
  std::thread thread_;
};

TEST_F(SlabDeathTest, WhateverTheServerIsDoingItIsAllFreeAfterwards) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 40; ++round) {
    ASSERT_OK_AND_ASSIGN(ChildProcess holder,
                         ChildProcess::Start({GEMINI_SLAB_HOLDER_PATH, claim_->socket_path(),
                                              absl::StrCat(kSlabs), absl::StrCat(kSlab)}));
    ASSERT_THAT(holder.ReadLine(absl::Seconds(60)), IsOkAndHolds("ready"));
    // So that the moment is another one each time.
    const int64_t calls = fake_.num_calls() + static_cast<int64_t>(random() % 300);
    while (fake_.num_calls() < calls) {
    }
    holder.Signal(SIGKILL);
    ASSERT_OK_AND_ASSIGN(WireClient next, WireClient::ConnectTo(claim_->socket_path()));
    ASSERT_OK(next.Hello("next"));
    absl::Status granted;
    do {  // Refused until the server has seen the death, and waits for its bytes then.
      granted = next.OpenLease({{kSlabs * kSlab, 0, 0}}, {{kSlabs * kSlab, 0, 0}}).status();
    } while (absl::IsResourceExhausted(granted));
    ASSERT_OK(granted);
    EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 0) << round;
    EXPECT_THAT(next.TakeDeviceSlabs(0, kSlabs), IsOkAndHolds(static_cast<size_t>(kSlabs)));
    ASSERT_OK(next.CloseSession());
    if (HasFailure()) return;
  }
  EXPECT_EQ(fake_.num_handles(), 0);
}

}  // namespace
}  // namespace gemini::server
