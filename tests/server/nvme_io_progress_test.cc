// SPDX-License-Identifier: Apache-2.0
#include "server/nvme_io_progress.h"

#include <cerrno>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr NvmeTransfer kRead = {
    .operation = IoOperation::kRead, .nvme_offset_bytes = kMiB, .size_bytes = kMiB};

TEST(NvmeIoProgressTest, WholePagesOfAShortAnswerCountAndTheRestIsAskedForAgain) {
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, kMiB), IsOkAndHolds(kMiB));
  EXPECT_THAT(MovedBytes(kRead, 4096, 12288, 8192), IsOkAndHolds(8192));
  EXPECT_THAT(MovedBytes(kRead, 4096, 12288, 8191), IsOkAndHolds(4096));
}

TEST(NvmeIoProgressTest, WhatWasInterruptedIsAskedForAgain) {
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, -EINTR), IsOkAndHolds(0));
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, -EAGAIN), IsOkAndHolds(0));
}

TEST(NvmeIoProgressTest, AnAnswerOfLessThanAPageIsTheEndOfTheData) {
  for (const int64_t result : {0, 1, 4095}) {
    EXPECT_THAT(
        MovedBytes(kRead, 8192, 65536, result),
        StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(std::to_string(kMiB + 8192 + result)),
                                                    HasSubstr(std::to_string(65536 - result)))));
  }
}

TEST(NvmeIoProgressTest, AnErrorSaysWhatWasAskedForAndWhere) {
  NvmeTransfer write = kRead;
  write.operation = IoOperation::kWrite;
  EXPECT_THAT(MovedBytes(kRead, 4096, 8192, -EIO),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("read 8192 bytes at 1052672")));
  EXPECT_THAT(MovedBytes(write, 0, 8192, -ENOSPC),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("write 8192 bytes")));
  EXPECT_THAT(MovedBytes(write, 0, 8192, -ECANCELED), StatusIs(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace gemini::server
