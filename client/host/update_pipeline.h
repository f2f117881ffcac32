// SPDX-License-Identifier: Apache-2.0
// Threads that read what the next updates use from NVME while one is computed, and write behind it
// the states whose home is there (client/host/chunk_mover.h): so that reading, updating and writing
// overlap.
// Threads: gemini-ahead and gemini-behind, four each: one moves a chunk at a time and takes its
//          checksum, and a disk wants several at once.
// Owner:  what it moves chunks of outlives it.
// Source: the read, update, write pipeline of ZeRO-Infinity (Rajbhandari et al., arXiv:2104.07857,
//         section 5.2.2).
#pragma once
#include <array>
#include <thread>

#include "client/host/chunk_mover.h"

namespace gemini::client {

class UpdatePipeline {
 public:
  explicit UpdatePipeline(ChunkStore& store);
  ~UpdatePipeline();  // What is under way ends first.
  UpdatePipeline(const UpdatePipeline&) = delete;
  UpdatePipeline& operator=(const UpdatePipeline&) = delete;

 private:
  ChunkMover mover_;
  std::array<std::thread, 4> readers_, writers_;
};

}  // namespace gemini::client
