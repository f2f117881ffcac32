// SPDX-License-Identifier: Apache-2.0
// Defines the numbers of the control protocol that both ends must agree on.
#pragma once
#include <cstdint>

#include "absl/time/time.h"

namespace gemini {

// Is raised with every change that an older peer would misread. A peer with another number is
// refused.
inline constexpr uint32_t kProtocolVersion = 13;
inline constexpr int64_t kMaxHelloBytes = 4 * 1024;
inline constexpr absl::Duration kHelloTimeout = absl::Seconds(2);
// The most spaces of one session. It bounds the status message, the descriptors of one tenant, and
// the spaces that a trace may name.
inline constexpr int64_t kMaxSpacesPerSession = 64;
// The upper limit of a server's --epoch-timeout: how long a lease may wait for others to give up
// memory before its own is made, and, before that, for memory that the kernel is given back.
inline constexpr absl::Duration kMaxEpochTimeout = absl::Minutes(1);
// The unit of grant, registration and return of HOST memory. Why 256 MiB: docs/architecture.md.
inline constexpr int64_t kHostSlabBytes = int64_t{256} << 20;

}  // namespace gemini
