// SPDX-License-Identifier: Apache-2.0
// Ends a program that has done its work without the destructors of static objects: those of Torch
// take a tenth of a second to free tables whose memory the system takes back in any case.
#pragma once
#include <cstdio>
#include <cstdlib>

namespace gemini {

// Writes out what streams hold, and ends the process with `status`, or with 1 where that was 0 and
// something cannot be written. Whatever must end in order has ended before: sessions, ranks, files.
[[noreturn]] inline void EndProcess(int status) {
  const bool is_written = std::fflush(nullptr) == 0;
  std::_Exit(is_written || status != 0 ? status : 1);
}

}  // namespace gemini
