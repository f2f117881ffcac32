// SPDX-License-Identifier: Apache-2.0
// Turns the exceptions that Torch and its operators throw into statuses.
#pragma once
#include <exception>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

// RESOURCE_EXHAUSTED: operators found no memory. INTERNAL: anything else. `what` failed, and begins
// the message of INTERNAL.
absl::Status StatusOfFailure(const std::exception& error, absl::string_view what);

// Whether a status is of operators that found no memory. Others are of HOST or a disk, and more
// DEVICE is no help.
bool OperatorsHadNoMemory(const absl::Status& status);

}  // namespace gemini::trainer
