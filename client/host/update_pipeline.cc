// SPDX-License-Identifier: Apache-2.0
#include "client/host/update_pipeline.h"

#include <pthread.h>

namespace gemini::client {

UpdatePipeline::UpdatePipeline(ChunkStore& store) : mover_(store) {
  for (std::thread& thread : readers_) {
    thread = std::thread([this] {
      while (mover_.ReadForUpdate()) {
      }
    });
    ::pthread_setname_np(thread.native_handle(), "gemini-ahead");
  }
  for (std::thread& thread : writers_) {
    thread = std::thread([this] {
      while (mover_.WriteBehind()) {
      }
    });
    ::pthread_setname_np(thread.native_handle(), "gemini-behind");
  }
}

UpdatePipeline::~UpdatePipeline() {
  mover_.End();
  for (std::thread& thread : readers_) thread.join();
  for (std::thread& thread : writers_) thread.join();
}

}  // namespace gemini::client
