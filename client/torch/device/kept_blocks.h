// SPDX-License-Identifier: Apache-2.0
// Keeps blocks of memory that operators have freed, for the next allocation of the same size.
// A training step allocates the same sizes again and again. If a large block were returned to
// malloc, its pages would return to the kernel, and the next step would get pages anew, one page
// fault and 4 KiB of zeros at a time (docs/adr/0043-blocks-that-operators-gave-back.md).
// Thread: any. Nothing here allocates: what is known of a kept block is written into the block.
// Units:  bytes.
#pragma once
#include <cstdint>
#include <memory>

namespace gemini::client::hooks {

class KeptBlocks {
 public:
  static constexpr int64_t kLeastBytes = 256;

  // `free` frees a block.
  explicit KeptBlocks(void (*free)(void* block));
  // Frees what is kept.
  ~KeptBlocks();
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  // Keeps a block of size_bytes >= kLeastBytes, aligned as by malloc, until Take returns it or it
  // is freed.
  void Keep(void* block, int64_t size_bytes);
  // Returns the block of exactly this size that was kept last, or null if there is none.
  void* Take(int64_t size_bytes);
  // Frees the blocks that were kept for longest until the others take at most `most_bytes`. Returns
  // whether it freed any.
  bool TrimTo(int64_t most_bytes);

 private:
  class State;
  const std::unique_ptr<State> state_;
};

}  // namespace gemini::client::hooks
