// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/tier_store_cuda.h"

#include <fcntl.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_cuda_driver.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

int64_t NumOpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class CudaTierStoreTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSlot = 4 * kMiB;
  absl::StatusOr<std::unique_ptr<TierStore>> MakeStore() {
    return MakeCudaTierStore(fake_.driver(), /*ordinal=*/0, /*capacity_bytes=*/kGiB, kSlot);
  }
  FakeCudaDriver fake_{/*memory_bytes=*/64 * kMiB, /*granularity_bytes=*/2 * kMiB};
};

TEST_F(CudaTierStoreTest, ADescriptorIsAllThatIsKeptOfASlot) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TierStore> store, MakeStore());
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store->Make(kSlot, 3));
  EXPECT_EQ(fake_.num_handles(), 0);
  ASSERT_EQ(grant.extents.size(), 3u);
  for (const TierExtent& extent : grant.extents) {
    EXPECT_EQ(extent.num_slots, 1);
    EXPECT_EQ(::fcntl(extent.fd.get(), F_GETFD), FD_CLOEXEC);
  }
  store->Destroy(std::move(grant));
}

TEST_F(CudaTierStoreTest, ASlabIsOfMultiplesThatTheGpuHas) {
  EXPECT_THAT(MakeCudaTierStore(fake_.driver(), 0, kGiB, 3 * kMiB),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiples of 2097152")));
  EXPECT_EQ(CudaSlabBytes(6 * kGiB, 2 * kMiB), 64 * kMiB);
  EXPECT_EQ(CudaSlabBytes(24 * kGiB, 2 * kMiB), 128 * kMiB);
  EXPECT_EQ(CudaSlabBytes(80 * kGiB, 2 * kMiB), 512 * kMiB);
  EXPECT_EQ(CudaSlabBytes(80 * kGiB + kMiB, 2 * kMiB), 410 * kMiB);  // Nothing near divides it.
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TierStore> store, MakeStore());
  EXPECT_EQ(store->slab_bytes(), kSlot);
}

TEST_F(CudaTierStoreTest, AGpuThatIsNoneIsNamed) {
  EXPECT_THAT(MakeCudaTierStore(fake_.driver(), /*ordinal=*/1, kGiB, kSlot),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("GPU 1")));
}

TEST_F(CudaTierStoreTest, WhatCannotBeSharedIsFoundAtTheStart) {
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0);
  EXPECT_THAT(MakeStore(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("cannot be shared between processes here")));
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  EXPECT_THAT(MakeStore(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("virtual memory management")));
}

// The attributes promise it, and the import is refused: the last but one call, before the release.
TEST_F(CudaTierStoreTest, SharingIsTriedAtTheStart) {
  const int64_t calls = fake_.num_calls();
  ASSERT_OK(MakeStore());
  const int64_t import = fake_.num_calls() - calls - 2;
  for (const CUresult refusal :
       {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_OPERATING_SYSTEM,
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE}) {
    fake_.FailCall(import, refusal);
    EXPECT_THAT(MakeStore(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("cannot be shared between processes here"),
                                            HasSubstr("cuMemImportFromShareableHandle"))))
        << refusal;
    fake_.FailCall(import - 2, refusal);  // The export; its handle is let go of behind it.
    EXPECT_THAT(MakeStore(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("cuMemExportToShareableHandle")))
        << refusal;
    EXPECT_EQ(fake_.num_handles(), 0);
  }
  // The allocation, which is asked for as one that can be exported.
  for (const CUresult refusal : {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED}) {
    fake_.FailCall(import - 3, refusal);
    EXPECT_THAT(MakeStore(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cuMemCreate")))
        << refusal;
  }
}

// That is no reason to do without sharing.
TEST_F(CudaTierStoreTest, ADriverInTroubleIsNotTakenForOneThatCannotShare) {
  const int64_t calls = fake_.num_calls();
  ASSERT_OK(MakeStore());
  const int64_t num_calls = fake_.num_calls() - calls;
  for (int64_t call = 0; call < num_calls; ++call) {
    fake_.FailCall(call, CUDA_ERROR_UNKNOWN);
    EXPECT_THAT(MakeStore(), StatusIs(absl::StatusCode::kUnavailable)) << call;
  }
}

// Documents do not say whether an import takes a context, and the server makes none.
TEST_F(CudaTierStoreTest, AnImportThatWantsAContextSaysNothing) {
  const int64_t calls = fake_.num_calls();
  ASSERT_OK(MakeStore());
  fake_.FailCall(fake_.num_calls() - calls - 2, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_OK(MakeStore());
  EXPECT_EQ(fake_.num_handles(), 0);
}

TEST_F(CudaTierStoreTest, ASlotThatIsNoMultipleOfTheGranularityIsRefused) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TierStore> store, MakeStore());
  EXPECT_THAT(store->Make(kMiB, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiples of 2097152")));
  EXPECT_EQ(store->granted_bytes(), 0);
}

// The GPU is used by others, too: it may have less than the capacity.
TEST_F(CudaTierStoreTest, AFullGpuIsAnAnswerWithTheNumbersAndNothingIsHeld) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TierStore> store, MakeStore());
  const int64_t descriptors = NumOpenDescriptors();
  EXPECT_THAT(store->Make(128 * kMiB, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("slot 0 of 1, 128 MiB each"), HasSubstr("OUT_OF_MEMORY"),
                             HasSubstr("nvidia-smi"))));
  EXPECT_EQ(store->granted_bytes(), 0);
  EXPECT_EQ(NumOpenDescriptors(), descriptors);
}

// Each call fails in turn, until a run is clean.
TEST_F(CudaTierStoreTest, AFailedCallIsAnAnswerAndNothingIsHeld) {
  const int64_t descriptors = NumOpenDescriptors();
  bool failed = true;
  int64_t number = 0;
  for (; failed; ++number) {
    const int64_t calls = fake_.num_calls();
    fake_.FailCall(number, CUDA_ERROR_UNKNOWN);
    {
      absl::StatusOr<std::unique_ptr<TierStore>> store = MakeStore();
      absl::Status status = store.status();
      if (store.ok()) {
        absl::StatusOr<TierGrant> grant = (*store)->Make(kSlot, 2);
        status = grant.status();
        EXPECT_EQ((*store)->granted_bytes(), grant.ok() ? 2 * kSlot : 0) << number;
        if (grant.ok()) (*store)->Destroy(*std::move(grant));
      }
      failed = fake_.num_calls() > calls + number;
      EXPECT_EQ(status.ok(), !failed) << number;
      if (failed) {
        EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_UNKNOWN")) << number;
        EXPECT_FALSE(absl::IsInternal(status)) << status;
      }
    }
    EXPECT_EQ(fake_.num_handles(), 0) << number;
    EXPECT_EQ(NumOpenDescriptors(), descriptors) << number;
  }
  EXPECT_GT(number, 10);
}

}  // namespace
}  // namespace gemini::server
