// SPDX-License-Identifier: Apache-2.0
#include "client/torch/device/counting_allocator.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"
#include "client/device/device_budget.h"
#include "client/torch/device/kept_blocks.h"
#include "client/torch/hook/operator_hook.h"
#include "gemini/byte_size.h"
#include "gemini/device_shortage.h"
#include "gemini/system/check.h"
#include "gemini/system/mutex.h"

namespace gemini::client::hooks {
namespace {

constexpr int64_t kAlignmentBytes = 64;  // c10::gAlignment.
// Evicted chunks are up for grabs: another thread may take the room first. So many lost races mean
// that the budget is too small for the threads together.
constexpr int kMaxAttempts = 16;

// Malloc keeps smaller blocks by itself. Larger ones are what its heap shrinks by.
constexpr int64_t kLeastKeptBytes = int64_t{64} << 10;

class Account;
std::atomic<Account*> g_account{nullptr};
c10::Allocator* g_base = nullptr;  // Torch's own, set once before ours is installed.

void* BaseAllocate(size_t size_bytes) {
  return g_base->raw_deleter() != nullptr ? g_base->raw_allocate(size_bytes)
                                          : ::operator new(size_bytes, std::align_val_t(64));
}
void BaseDeallocate(void* block) {
  if (g_base->raw_deleter() != nullptr) {
    g_base->raw_deallocate(block);
  } else {
    ::operator delete(block, std::align_val_t(64));
  }
}

// What blocks are charged to; alive while it is the current one or a block lives. A block keeps the
// budget and nothing else of its session, which may end before it.
class Account {
 public:
  explicit Account(std::shared_ptr<Session> session)
      : budget(session->device_budget().shared_from_this()), session_(std::move(session)) {}

  const std::shared_ptr<DeviceBudget> budget;
  std::atomic<int64_t> references{1};
  std::atomic<int64_t> charged_allocations{0};
  std::atomic<int64_t> over_budget{0};
  std::atomic<int64_t> rooms_made{0};
  std::atomic<int64_t> refused{0};
  KeptBlocks kept{&BaseDeallocate};  // While it is the current one.

  // Frees what has no room beside what is in use.
  void TrimKept() {
    kept.TrimTo(std::min(budget->budget_bytes() - budget->used_bytes(),
                         budget->non_model_peak_bytes() - budget->non_model_bytes()));
  }
  // Returns null once another session, or none, is the current one.
  std::shared_ptr<Session> session() {
    MutexLock lock(mutex_);
    return session_;
  }
  void EndSession() {
    std::shared_ptr<Session> ended;  // It may end with this, without the lock.
    MutexLock lock(mutex_);
    ended.swap(session_);
  }
  void Release() {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  Mutex mutex_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
};

// Lies before each block. Blocks made without a session have it too: the deleter must be one
// function for all, or raw_deallocate would not know which.
struct alignas(kAlignmentBytes) BlockHeader {
  Account* account;
  int64_t charged_bytes;
};
static_assert(sizeof(BlockHeader) == kAlignmentBytes);

void DeleteBlock(void* data) {
  if (data == nullptr) return;
  auto* const header = reinterpret_cast<BlockHeader*>(static_cast<std::byte*>(data)) - 1;
  Account* const account = header->account;
  const int64_t charged_bytes = header->charged_bytes;
  const bool keeps = account != nullptr && charged_bytes >= kLeastKeptBytes &&
                     account == g_account.load(std::memory_order_acquire);
  if (!keeps) BaseDeallocate(header);
  if (account == nullptr) return;
  account->budget->Release(DeviceBudget::Use::kNonModel, charged_bytes);
  if (keeps) {
    account->kept.Keep(header, charged_bytes);
    account->TrimKept();
  }
  account->Release();
}

[[noreturn]] void Refuse(Account& account, const absl::Status& status) {
  account.refused.fetch_add(1, std::memory_order_relaxed);
  if (const std::shared_ptr<Session> session = account.session(); session != nullptr) {
    session->Latch(status);
  }
  C10_THROW_ERROR(OutOfMemoryError, std::string(status.message()));
}

void Charge(Account& account, int64_t size_bytes) {
  // An operator that runs on scratch for want of room ends here.
  if (absl::Status failure = CurrentOperatorFailure();
      failure.code() == absl::StatusCode::kResourceExhausted) {
    Refuse(account, failure);
  }
  DeviceBudget& budget = *account.budget;
  for (int attempt = 0; !budget.TryCharge(DeviceBudget::Use::kNonModel, size_bytes); ++attempt) {
    const std::shared_ptr<Session> session = account.session();
    if (attempt == kMaxAttempts || session == nullptr ||
        !session->residency().MakeRoom(size_bytes)) {
      const int64_t non_model_bytes = budget.non_model_bytes();
      Refuse(account, DeviceTooSmall({.who = absl::StrCat(CurrentOperatorName(), ", with ",
                                                          FormatByteSize(size_bytes), " more,"),
                                      .chunk_bytes = budget.used_bytes() - non_model_bytes,
                                      .non_model_bytes = non_model_bytes + size_bytes},
                                     budget.budget_bytes()));
    }
    account.rooms_made.fetch_add(1, std::memory_order_relaxed);
  }
  account.charged_allocations.fetch_add(1, std::memory_order_relaxed);
  if (budget.used_bytes() > budget.budget_bytes()) {
    account.over_budget.fetch_add(1, std::memory_order_relaxed);
  }
}

void* AllocateBlock(Account* account, int64_t block_bytes) {
  if (account != nullptr && block_bytes >= kLeastKeptBytes) {
    void* const kept = account->kept.Take(block_bytes);
    account->TrimKept();
    if (kept != nullptr) return kept;
  }
  const size_t size_bytes = static_cast<size_t>(block_bytes) + sizeof(BlockHeader);
  try {
    return BaseAllocate(size_bytes);
  } catch (const std::exception&) {
    // The machine has no more, unless it is what is kept.
    if (account == nullptr || !account->kept.TrimTo(0)) throw;
    return BaseAllocate(size_bytes);
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    if (size_bytes == 0) return {nullptr, nullptr, &DeleteBlock, c10::DeviceType::CPU};
    Account* const account = g_account.load(std::memory_order_acquire);
    const int64_t block_bytes = RoundUp(static_cast<int64_t>(size_bytes), kAlignmentBytes);
    const int64_t charged_bytes = account == nullptr ? 0 : block_bytes;
    if (account != nullptr) Charge(*account, charged_bytes);
    void* block = nullptr;
    try {
      block = AllocateBlock(account, block_bytes);
    } catch (...) {
      if (account != nullptr) {
        account->budget->Release(DeviceBudget::Use::kNonModel, charged_bytes);
      }
      throw;
    }
    if (account != nullptr) account->references.fetch_add(1, std::memory_order_relaxed);
    auto* const header = new (block) BlockHeader{account, charged_bytes};
    void* const data = header + 1;
    return {data, data, &DeleteBlock, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &DeleteBlock; }
  void copy_data(void* destination, const void* source, size_t size_bytes) const override {
    default_copy_data(destination, source, size_bytes);
  }
};

}  // namespace

void BeginChargingAllocations(std::shared_ptr<Session> session) {
  static const bool installed = [] {
    g_base = c10::GetCPUAllocator();
    // The highest priority, so that no other replaces it and blocks go uncounted.
    c10::SetCPUAllocator(new CountingAllocator, /*priority=*/255);
    return true;
  }();
  GEMINI_CHECK(installed && g_account.load() == nullptr);
  g_account.store(new Account(std::move(session)), std::memory_order_release);
}

void EndChargingAllocations() {
  Account* const account = g_account.exchange(nullptr);
  if (account == nullptr) return;
  account->kept.TrimTo(0);
  account->EndSession();
  account->Release();
}

AllocationStats GetAllocationStats() {
  AllocationStats stats;
  if (const Account* const account = g_account.load(); account != nullptr) {
    stats.charged_allocations = account->charged_allocations.load();
    stats.over_budget = account->over_budget.load();
    stats.rooms_made = account->rooms_made.load();
    stats.refused = account->refused.load();
  }
  return stats;
}

}  // namespace gemini::client::hooks
