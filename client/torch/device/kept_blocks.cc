// SPDX-License-Identifier: Apache-2.0
#include "client/torch/device/kept_blocks.h"

#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>
#include <iterator>
#include <new>

#include "absl/base/thread_annotations.h"
#include "gemini/system/check.h"
#include "gemini/system/mutex.h"

namespace gemini::client::hooks {
namespace {

namespace intrusive = boost::intrusive;

// Is written to the beginning of each kept block.
struct KeptBlock : intrusive::list_base_hook<intrusive::link_mode<intrusive::normal_link>>,
                   intrusive::set_base_hook<intrusive::link_mode<intrusive::normal_link>> {
  explicit KeptBlock(int64_t size) : size_bytes(size) {}
  int64_t size_bytes;
};
static_assert(sizeof(KeptBlock) <= KeptBlocks::kLeastBytes);

struct SizeOf {
  using type = int64_t;
  int64_t operator()(const KeptBlock& block) const { return block.size_bytes; }
};

}  // namespace

class KeptBlocks::State {
 public:
  explicit State(void (*free)(void* block)) : free_(free) {}

  void Keep(KeptBlock& block) {
    MutexLock lock(mutex_);
    by_age_.push_back(block);
    by_size_.insert(block);  // It comes behind those of the same size.
    kept_bytes_ += block.size_bytes;
  }

  KeptBlock* Take(int64_t size_bytes) {
    MutexLock lock(mutex_);
    const auto behind = by_size_.upper_bound(size_bytes);
    if (behind == by_size_.begin()) return nullptr;
    KeptBlock& block = *std::prev(behind);
    if (block.size_bytes != size_bytes) return nullptr;
    Remove(block);
    return &block;
  }

  bool TrimTo(int64_t most_bytes) {
    ByAge freed;
    {
      MutexLock lock(mutex_);
      while (kept_bytes_ > most_bytes && !by_age_.empty()) {
        KeptBlock& oldest = by_age_.front();
        Remove(oldest);
        freed.push_back(oldest);
      }
    }
    const bool any = !freed.empty();
    // The kernel may take its time.
    freed.clear_and_dispose(free_);
    return any;
  }

 private:
  using ByAge = intrusive::list<KeptBlock>;

  void Remove(KeptBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    by_age_.erase(by_age_.iterator_to(block));
    by_size_.erase(by_size_.iterator_to(block));
    kept_bytes_ -= block.size_bytes;
  }

  void (*const free_)(void* block);
  Mutex mutex_;
  ByAge by_age_ ABSL_GUARDED_BY(mutex_);
  intrusive::multiset<KeptBlock, intrusive::key_of_value<SizeOf>> by_size_ ABSL_GUARDED_BY(mutex_);
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

KeptBlocks::KeptBlocks(void (*free)(void* block)) : state_(std::make_unique<State>(free)) {}

KeptBlocks::~KeptBlocks() { TrimTo(0); }

void KeptBlocks::Keep(void* block, int64_t size_bytes) {
  GEMINI_CHECK(size_bytes >= kLeastBytes);
  state_->Keep(*new (block) KeptBlock(size_bytes));
}

void* KeptBlocks::Take(int64_t size_bytes) { return state_->Take(size_bytes); }

bool KeptBlocks::TrimTo(int64_t most_bytes) { return state_->TrimTo(most_bytes); }

}  // namespace gemini::client::hooks
