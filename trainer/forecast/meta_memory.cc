// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/meta_memory.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "c10/core/Allocator.h"
#include "c10/core/DeviceType.h"
#include "gemini/byte_size.h"

namespace gemini::trainer {

struct MetaCount {
  int64_t grain_bytes = 1;
  std::atomic<int64_t> live_bytes = 0;
  // Of the thread that allocates.
  int64_t aside_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t needed_peak_bytes = 0;

  void Add(int64_t size_bytes) {
    const int64_t live = live_bytes += size_bytes;
    peak_bytes = std::max(peak_bytes, live);
    needed_peak_bytes = std::max(needed_peak_bytes, live - aside_bytes);
  }
};

namespace {

thread_local std::shared_ptr<MetaCount> t_count;

struct Block {
  std::shared_ptr<MetaCount> count;
  int64_t size_bytes = 0;
};

void FreeBlock(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (block != nullptr) block->count->live_bytes -= block->size_bytes;
}

// In place of Torch's own, which gives a null address, too.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    Block* block = nullptr;
    if (t_count != nullptr && size_bytes > 0) {
      block = new Block{t_count, RoundUp(static_cast<int64_t>(size_bytes), t_count->grain_bytes)};
      t_count->Add(block->size_bytes);
    }
    return {nullptr, block, &FreeBlock, c10::DeviceType::Meta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*size_bytes*/) const override {}
};

void InstallAllocator() {
  static const bool installed = [] {
    static MetaAllocator allocator;
    c10::SetAllocator(c10::DeviceType::Meta, &allocator, /*priority=*/255);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

MetaMemory::MetaMemory(int64_t grain_bytes)
    : count_(std::make_shared<MetaCount>()), outer_(t_count) {
  InstallAllocator();
  count_->grain_bytes = grain_bytes;
  t_count = count_;
}

MetaMemory::~MetaMemory() { t_count = outer_; }

int64_t MetaMemory::live_bytes() const { return count_->live_bytes; }
int64_t MetaMemory::peak_bytes() const { return count_->peak_bytes; }
int64_t MetaMemory::needed_peak_bytes() const { return count_->needed_peak_bytes; }
void MetaMemory::ResetPeaks() {
  count_->peak_bytes = count_->live_bytes;
  count_->needed_peak_bytes = count_->live_bytes - count_->aside_bytes;
}
void MetaMemory::Add(int64_t size_bytes) { count_->Add(size_bytes); }
void MetaMemory::SetAside(int64_t size_bytes) { count_->aside_bytes += size_bytes; }

MetaMemory::Pause::Pause() : paused_(std::exchange(t_count, nullptr)) {}
MetaMemory::Pause::~Pause() { t_count = std::move(paused_); }

}  // namespace gemini::trainer
