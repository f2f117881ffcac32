// SPDX-License-Identifier: Apache-2.0
// Turns a Status into the exception that LibTorch's users expect, and keeps every c10::Error of the
// process quick to read: LibTorch looks for the symbols of a backtrace when what() is first called,
// which takes seconds in a program that has all of LibTorch.
// Thread: any; the first QuickErrors begins, and the last ends, with no other thread that throws.
#pragma once
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemini::client::front {

// Throws c10::Error with the status's message unless the status is OK.
void ThrowIfError(const absl::Status& status);

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

// While one lives, errors carry no backtrace. The process-wide fetcher that LibTorch starts with is
// put back at the end of the last: the one that was set can be replaced, but not read.
class QuickErrors {
 public:
  QuickErrors();
  ~QuickErrors();
  QuickErrors(const QuickErrors&) = delete;
  QuickErrors& operator=(const QuickErrors&) = delete;
};

}  // namespace gemini::client::front
