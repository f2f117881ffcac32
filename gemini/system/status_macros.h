// SPDX-License-Identifier: Apache-2.0
// Returns early from a function on an absl::Status that is not OK.
#pragma once
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the Status of `expression` from the enclosing function unless it is OK.
#define GEMINI_RETURN_IF_ERROR(expression)     \
  do {                                         \
    absl::Status gemini_status = (expression); \
    if (!gemini_status.ok()) [[unlikely]]      \
      return gemini_status;                    \
  } while (false)

#define GEMINI_CONCAT_INNER(a, b) a##b
#define GEMINI_CONCAT(a, b) GEMINI_CONCAT_INNER(a, b)

// Declares or assigns `target` from a StatusOr, or returns its Status.
#define GEMINI_ASSIGN_OR_RETURN(target, expression) \
  GEMINI_ASSIGN_OR_RETURN_INNER(GEMINI_CONCAT(gemini_result_, __LINE__), target, expression)
#define GEMINI_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) [[unlikely]]                                  \
    return std::move(result).status();                            \
  target = *std::move(result)
