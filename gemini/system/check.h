// SPDX-License-Identifier: Apache-2.0
// Stops the process when one of our own invariants is broken: a wrong thread, a count below zero.
// Never for what a peer, a file, the environment or a driver said: that is an absl::Status.
#pragma once
#include <cstdio>
#include <cstdlib>

// Prints the condition and its place to stderr and aborts if it does not hold. Active in every
// build.
#define GEMINI_CHECK(condition)                                                              \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
