// SPDX-License-Identifier: Apache-2.0
// The store of device memory on a real GPU.
#include "server/tiers/tier_store_cuda.h"

#include <sys/wait.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/device/device_slabs_cuda.h"
#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/probe/driver.h"
#include "tests/gpu/probe/nvml.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/vmm_memory.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int64_t kSlot = 256 * kMiB;
constexpr uint32_t kPattern = 0x5a17c3e9;

// What a client does with extents, from their import to their end.
class Client {
 public:
  explicit Client(absl::Span<const TierExtent> extents)
      : slabs_(*client::DeviceSlabsCuda::Reserve(
            **CudaDriver::Find(), 0,
            {.slab_bytes = kSlot,
             .num_slabs = static_cast<int64_t>(extents.size()),
             .gpu_uuid = *CudaDeviceUuid(**CudaDriver::Find(), 0)})) {
    for (const TierExtent& extent : extents) {
      probe::Need(slabs_->Map(extent.fd.get()), "mapping a slab");
    }
  }
  explicit Client(const TierExtent& extent) : Client(absl::MakeConstSpan(&extent, 1)) {}
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(slabs_->data()); }
  int64_t num_words() const { return slabs_->num_mapped() * kSlot / 4; }
  void Fill() {
    GEMINI_NEED(probe::FillWords(words(), num_words(), kPattern, nullptr));
    GEMINI_NEED(::cudaDeviceSynchronize());
  }
  double FractionFilled() const {
    const nlohmann::json fraction = probe::FractionOf(words(), num_words(), kPattern);
    return fraction.is_number() ? fraction.get<double>() : -1;
  }
  client::DeviceSlabsCuda& slabs() { return *slabs_; }

 private:
  const std::unique_ptr<client::DeviceSlabsCuda> slabs_;
};

class CudaTierStoreOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const CudaDriver* const driver, CudaDriver::Find());
    ASSERT_OK_AND_ASSIGN(store_, MakeCudaTierStore(*driver, /*ordinal=*/0, 4 * kSlot, kSlot));
  }
  std::unique_ptr<TierStore> store_;
};

// First of all: the tests below make one.
TEST_F(CudaTierStoreOnGpu, ItMakesNoContext) {
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 2));
  CUcontext context = nullptr;
  GEMINI_NEED(probe::Driver::Get().CtxGetCurrent(&context));
  EXPECT_EQ(context, nullptr);
  unsigned flags = 0;
  int active = -1;
  GEMINI_NEED(probe::Driver::Get().DevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
  store_->Destroy(std::move(grant));
}

TEST_F(CudaTierStoreOnGpu, WhoeverHasADescriptorSeesTheSameBytes) {
  probe::UseDevice();
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 2));
  Client writer(grant.extents[0]);
  const Client reader(grant.extents[0]);
  const Client other(grant.extents[1]);
  writer.Fill();
  EXPECT_EQ(reader.FractionFilled(), 1);
  EXPECT_LT(other.FractionFilled(), 1e-6);
  store_->Destroy(std::move(grant));
}

TEST_F(CudaTierStoreOnGpu, SlabsBehindEachOtherAreOneBuffer) {
  probe::UseDevice();
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 4));
  Client all(grant.extents);
  all.Fill();  // One kernel over all of them.
  EXPECT_EQ(all.FractionFilled(), 1);
  std::vector<uint32_t> across(1024);
  GEMINI_NEED(::cudaMemcpy(across.data(), all.words() + kSlot / 4 - 512, 4096, cudaMemcpyDefault));
  EXPECT_THAT(across, ::testing::Each(kPattern));
  ASSERT_OK(all.slabs().Keep(1));
  EXPECT_EQ(all.FractionFilled(), 1);
  ASSERT_OK(all.slabs().Map(grant.extents[3].fd.get()));
  EXPECT_EQ(all.FractionFilled(), 1);
  store_->Destroy(std::move(grant));
}

TEST_F(CudaTierStoreOnGpu, AllIsFreeWithinASecondOfTheEnd) {
  probe::UseDevice();
  // What the test before had may still be on its way back.
  int64_t idle = probe::UsedDeviceBytes();
  for (int64_t before = idle + 1; idle < before; absl::SleepFor(absl::Milliseconds(200))) {
    before = std::exchange(idle, probe::UsedDeviceBytes());
  }
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 4));
  EXPECT_GE(probe::UsedDeviceBytes() - idle, 4 * kSlot);
  for (const TierExtent& extent : grant.extents) Client(extent).Fill();
  const absl::Time end = absl::Now();
  store_->Destroy(std::move(grant));
  const nlohmann::json freed = probe::UntilUsedIsAtMost(end, idle);
  ASSERT_TRUE(freed["ms"].is_number()) << freed;
  EXPECT_LT(freed["ms"].get<double>(), 1000) << freed;
}

TEST_F(CudaTierStoreOnGpu, NoForeignBytes) {
  probe::UseDevice();
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 4));
    for (const TierExtent& extent : grant.extents) {
      Client client(extent);
      EXPECT_LT(client.FractionFilled(), 1e-6) << round;
      client.Fill();
    }
    store_->Destroy(std::move(grant));
  }
}

// Slabs of nearly all that the GPU has free, so that the next one gets the same memory.
class NearlyAllOfTheGpu {
 public:
  NearlyAllOfTheGpu() {
    probe::UseDevice();
    size_t free_bytes = 0, total_bytes = 0;
    GEMINI_NEED(::cudaMemGetInfo(&free_bytes, &total_bytes));
    const auto num_slots = static_cast<int64_t>(free_bytes) / 10 * 9 / kSlot;
    store_ = *MakeCudaTierStore(**CudaDriver::Find(), 0, num_slots * kSlot, kSlot);
    grant_ = *store_->Make(kSlot, num_slots);
    client_.emplace(grant_.extents);
  }
  NearlyAllOfTheGpu(const NearlyAllOfTheGpu&) = delete;
  ~NearlyAllOfTheGpu() {
    client_.reset();
    store_->Destroy(std::move(grant_));
  }
  Client& client() { return *client_; }

 private:
  std::unique_ptr<TierStore> store_;
  TierGrant grant_;
  std::optional<Client> client_;
};

// What the next test runs in another process.
TEST(ForeignBytes, DISABLED_FillsAllAndIsKilled) {
  NearlyAllOfTheGpu all;
  all.client().Fill();
  ::raise(SIGKILL);
}

TEST(ForeignBytes, ThereAreNoneOfAProcessThatWasKilled) {
  probe::UseDevice();
  const int64_t idle = probe::UsedDeviceBytes();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int status = std::system(absl::StrCat("'", self,
                                              "' --gtest_also_run_disabled_tests "
                                              "--gtest_filter=*FillsAllAndIsKilled > /dev/null")
                                     .c_str());
  // By its shell, or as the shell itself that became it.
  ASSERT_TRUE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
              (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL))
      << status;
  const nlohmann::json freed = probe::UntilUsedIsAtMost(absl::Now(), idle);
  ASSERT_TRUE(freed["ms"].is_number()) << freed;
  EXPECT_LT(NearlyAllOfTheGpu().client().FractionFilled(), 1e-6);
}

}  // namespace
}  // namespace gemini::server
