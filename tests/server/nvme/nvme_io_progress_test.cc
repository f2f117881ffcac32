// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_io_progress.h"

#include <cerrno>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr NvmeTransfer kRead = {
    .operation = IoOperation::kRead, .nvme_offset_bytes = kMiB, .size_bytes = kMiB};

class NvmeIoProgressTest : public ::testing::Test {
 protected:
  int refusals_ = 0;
};

TEST_F(NvmeIoProgressTest, WholePagesOfAShortAnswerCountAndTheRestIsAskedForAgain) {
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, kMiB, refusals_), IsOkAndHolds(kMiB));
  EXPECT_THAT(MovedBytes(kRead, 4096, 12288, 8192, refusals_), IsOkAndHolds(8192));
  EXPECT_THAT(MovedBytes(kRead, 4096, 12288, 8191, refusals_), IsOkAndHolds(4096));
}

TEST_F(NvmeIoProgressTest, WhatWasInterruptedIsAskedForAgain) {
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, -EINTR, refusals_), IsOkAndHolds(0));
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, -EAGAIN, refusals_), IsOkAndHolds(0));
}

TEST_F(NvmeIoProgressTest, WhatIsNeverTakenFails) {
  for (int i = 1; i < kMaxNvmeRefusals; ++i) {
    ASSERT_THAT(MovedBytes(kRead, 0, kMiB, -EAGAIN, refusals_), IsOkAndHolds(0));
  }
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, -EAGAIN, refusals_),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000 times in a row")));
  // Any page that is moved begins the count again.
  EXPECT_THAT(MovedBytes(kRead, 0, kMiB, 4096, refusals_), IsOkAndHolds(4096));
  EXPECT_THAT(MovedBytes(kRead, 4096, kMiB - 4096, -EINTR, refusals_), IsOkAndHolds(0));
}

TEST_F(NvmeIoProgressTest, AnAnswerOfLessThanAPageIsTheEndOfTheData) {
  for (const int64_t result : {0, 1, 4095}) {
    EXPECT_THAT(
        MovedBytes(kRead, 8192, 65536, result, refusals_),
        StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(std::to_string(kMiB + 8192 + result)),
                                                    HasSubstr(std::to_string(65536 - result)))));
  }
}

TEST_F(NvmeIoProgressTest, AnErrorSaysWhatWasAskedForAndWhere) {
  NvmeTransfer write = kRead;
  write.operation = IoOperation::kWrite;
  EXPECT_THAT(MovedBytes(kRead, 4096, 8192, -EIO, refusals_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("read 8192 bytes at 1052672")));
  EXPECT_THAT(MovedBytes(write, 0, 8192, -ENOSPC, refusals_),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("write 8192 bytes")));
  EXPECT_THAT(MovedBytes(write, 0, 8192, -ECANCELED, refusals_),
              StatusIs(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace gemini::server
