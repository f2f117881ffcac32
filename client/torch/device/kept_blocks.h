// SPDX-License-Identifier: Apache-2.0
// Blocks of memory that operators gave back, kept for whoever next asks for one of the same size.
// A training step asks for the same sizes again and again. If a large block goes back to malloc,
// its pages return to the kernel, and the next step gets them anew, one page fault and 4 KiB of
// zeros at a time (docs/adr/0043-blocks-that-operators-gave-back.md).
// Thread: any. Nothing here allocates: what is known of a kept block is written into the block.
// Units:  bytes.
#pragma once
#include <cstdint>
#include <memory>

namespace gemini::client::hooks {

class KeptBlocks {
 public:
  static constexpr int64_t kLeastBytes = 256;

  explicit KeptBlocks(void (*free)(void* block));
  // Frees what is kept.
  ~KeptBlocks();
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  // Takes a block of at least kLeastBytes, aligned as malloc does, until Take returns it.
  void Keep(void* block, int64_t size_bytes);
  // Returns the block of this size that was kept last; null if there is none.
  void* Take(int64_t size_bytes);
  // Frees the blocks that were kept for longest until the others take at most `most_bytes`. Returns
  // whether it freed any.
  bool TrimTo(int64_t most_bytes);

 private:
  class State;
  const std::unique_ptr<State> state_;
};

}  // namespace gemini::client::hooks
