// SPDX-License-Identifier: Apache-2.0
#include "client/host/read_ahead.h"

#include <pthread.h>

namespace gemini::client {

ReadAhead::ReadAhead(ChunkStore& store) : mover_(store) {
  for (std::thread& thread : threads_) {
    thread = std::thread([this] {
      while (mover_.ReadForeseen()) {
      }
    });
    ::pthread_setname_np(thread.native_handle(), "gemini-ahead");
  }
}

ReadAhead::~ReadAhead() {
  mover_.End();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace gemini::client
