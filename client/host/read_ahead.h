// SPDX-License-Identifier: Apache-2.0
// Threads that bring the chunks of a space from NVME ahead of the uses that a plan foresees.
// Threads: gemini-ahead, two: one may spill what leaves while the other reads what comes.
// Owner:  what it reads for outlives it.
#pragma once
#include <array>
#include <thread>

#include "client/host/chunk_mover.h"

namespace gemini::client {

class ReadAhead {
 public:
  explicit ReadAhead(ChunkStore& store);
  ~ReadAhead();  // What is under way ends first.
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

 private:
  ChunkMover mover_;
  std::array<std::thread, 2> threads_;
};

}  // namespace gemini::client
