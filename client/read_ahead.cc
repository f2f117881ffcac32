// SPDX-License-Identifier: Apache-2.0
#include "client/read_ahead.h"

#include <pthread.h>

namespace gemini::client {

ReadAhead::ReadAhead(ChunkStore& store) : store_(store) {
  for (std::thread& thread : threads_) {
    thread = std::thread([this] {
      while (store_.ReadAhead()) {
      }
    });
    ::pthread_setname_np(thread.native_handle(), "gemini-ahead");
  }
}

ReadAhead::~ReadAhead() {
  store_.EndReadAhead();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace gemini::client
