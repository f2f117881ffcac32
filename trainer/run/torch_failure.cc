// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/torch_failure.h"

#include <new>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace gemini::trainer {
namespace {

constexpr absl::string_view kNoMemory = "gemini.operators_had_no_memory";

}  // namespace

absl::Status StatusOfFailure(const std::exception& error, absl::string_view what) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      of_torch != nullptr ? of_torch->what_without_backtrace() : std::string(error.what());
  const bool is_of_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                            dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (!is_of_memory) return absl::InternalError(absl::StrCat(what, " failed: ", text));
  absl::Status status =
      absl::ResourceExhaustedError(absl::StrCat("no memory in ", what, ": ", text));
  status.SetPayload(kNoMemory, absl::Cord());
  return status;
}

bool OperatorsHadNoMemory(const absl::Status& status) {
  return status.GetPayload(kNoMemory).has_value();
}

}  // namespace gemini::trainer
