// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/errno_status.h"

#include <cerrno>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

TEST(ErrnoStatusTest, CodesAreTheProjectsContract) {
  using absl::StatusCode;
  const std::pair<int, StatusCode> contract[] = {
      {ENOMEM, StatusCode::kResourceExhausted},
      {ENOSPC, StatusCode::kResourceExhausted},
      {EDQUOT, StatusCode::kResourceExhausted},
      {EMFILE, StatusCode::kResourceExhausted},
      {ENFILE, StatusCode::kResourceExhausted},
      {EFBIG, StatusCode::kResourceExhausted},
      {ENOENT, StatusCode::kNotFound},
      {EEXIST, StatusCode::kAlreadyExists},
      {EACCES, StatusCode::kPermissionDenied},
      {EPERM, StatusCode::kPermissionDenied},
      {EROFS, StatusCode::kPermissionDenied},
      {EINVAL, StatusCode::kInvalidArgument},
      {ENAMETOOLONG, StatusCode::kInvalidArgument},
      {ELOOP, StatusCode::kInvalidArgument},
      {ENOTDIR, StatusCode::kInvalidArgument},
      {EPIPE, StatusCode::kUnavailable},
      {ECONNRESET, StatusCode::kUnavailable},
      {ECONNREFUSED, StatusCode::kUnavailable},
      {ENOTCONN, StatusCode::kUnavailable},
      {EIO, StatusCode::kDataLoss},
      {ESRCH, StatusCode::kInternal},
      {0, StatusCode::kInternal},
  };
  for (const auto& [error, code] : contract) {
    EXPECT_THAT(ErrnoStatus(error, "call"), StatusIs(code)) << error;
  }
}

TEST(ErrnoStatusTest, TheMessageSaysWhatFailedAndWhy) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "open /a/b").message(), "open /a/b: No such file or directory");
}

}  // namespace
}  // namespace gemini
