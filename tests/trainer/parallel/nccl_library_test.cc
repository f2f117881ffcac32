// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_library.h"

#include <stdlib.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/nccl_ranks.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclLibraryTest, WhereThereIsNoneItSaysWhatToInstall) {
  EXPECT_THAT(LoadNccl("libnccl_that_is_not_there.so.2"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("libnccl_that_is_not_there.so.2"),
                             HasSubstr("pip install nvidia-nccl"), HasSubstr("LD_LIBRARY_PATH"))));
}

TEST(NcclLibraryTest, ALibraryThatIsAnotherIsRefused) {
  EXPECT_THAT(LoadNccl("libm.so.6"), StatusIs(absl::StatusCode::kUnimplemented,
                                              HasSubstr("libm.so.6 has no ncclGetVersion")));
}

TEST(NcclLibraryTest, AnOldOneIsRefusedWithBothVersions) {
  TheFakeNccl().Reset();
  for (const auto& [version, name] :
       {std::pair(21703, "2.17.3"), std::pair(2804, "2.8.4"), std::pair(21799, "2.17.99")}) {
    TheFakeNccl().SetVersion(version);
    EXPECT_THAT(LoadNccl(GEMINI_FAKE_NCCL),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr(std::string("is NCCL ") + name + ", and 2.18.0"))));
  }
  TheFakeNccl().SetVersion(21800);
  EXPECT_OK(LoadNccl(GEMINI_FAKE_NCCL));
}

TEST(NcclLibraryTest, ErrorsSayWhatNcclSays) {
  const NcclLibrary& nccl = FakeNcclLibrary();
  EXPECT_OK(NcclStatus(nccl, NcclResult::kSuccess, "ncclSend", nullptr));
  EXPECT_OK(NcclStatus(nccl, NcclResult::kInProgress, "ncclSend", nullptr));
  EXPECT_THAT(NcclStatus(nccl, NcclResult::kRemoteError, "ncclSend", nullptr),
              StatusIs(absl::StatusCode::kUnavailable,
                       "ncclSend: remote process exited or there was a network error: the library "
                       "in NCCL's place"));
  EXPECT_THAT(NcclStatus(nccl, NcclResult::kInvalidUsage, "ncclSend", nullptr),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("ncclSend: ")));
}

std::string Variable(const char* name) {
  const char* const value = ::getenv(name);
  return value == nullptr ? "" : value;
}

// Megatron's recipes ask for one connection, and NVIDIA's manual for an order of launches.
TEST(NcclLibraryTest, WhatTheExchangeReliesOnIsSetWhateverTheUserHasSet) {
  for (const auto& [name, needed] :
       {std::pair("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        std::pair("NCCL_LAUNCH_ORDER_IMPLICIT", "0"),
        std::pair("NCCL_COMM_SPLIT_SHARE_RESOURCES", "0"), std::pair("NCCL_COMM_BLOCKING", "0")}) {
    ::setenv(name, "1", 1);
    SetNcclEnvironment({});
    EXPECT_EQ(Variable(name), needed) << name;
    ::unsetenv(name);
    SetNcclEnvironment({});
    EXPECT_EQ(Variable(name), needed) << name;
  }
}

TEST(NcclLibraryTest, RanksThatShareAGpuAreMachinesUnlessTheUserSaysMore) {
  for (const char* const name : {"NCCL_HOSTID", "NCCL_NET", "NCCL_SOCKET_IFNAME"}) {
    ::unsetenv(name);
  }
  SetNcclEnvironment({.rank = 3, .shares_gpu = false});
  EXPECT_EQ(Variable("NCCL_HOSTID"), "");
  ::setenv("NCCL_NET", "IB", 1);
  SetNcclEnvironment({.rank = 3, .shares_gpu = true});
  EXPECT_EQ(Variable("NCCL_HOSTID"), "gemini-rank-3");
  EXPECT_EQ(Variable("NCCL_NET"), "IB");
  EXPECT_EQ(Variable("NCCL_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(Variable("NCCL_MAX_CTAS"), "1");
}

}  // namespace
}  // namespace gemini::trainer
