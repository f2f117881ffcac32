// SPDX-License-Identifier: Apache-2.0
// What the threads that move chunks of a space unasked wait for (client/host/chunk_mover.h).
// Thread: none of its own; the caller locks.
#pragma once
#include <condition_variable>

namespace gemini::client {

struct MoveSignals {
  std::condition_variable readable;    // There may be more to read ahead.
  std::condition_variable going_home;  // There may be more to write.
  // For an update, since that began: who needs the chunk meets the error.
  bool read_failed = false;
  bool write_failed = false;  // Since an update began: who needs the slot meets the error.

  // An update begins, or is tried again.
  void Restart() {
    read_failed = write_failed = false;
    readable.notify_all();
    going_home.notify_all();
  }
};

}  // namespace gemini::client
