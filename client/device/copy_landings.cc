// SPDX-License-Identifier: Apache-2.0
#include "client/device/copy_landings.h"

#include <pthread.h>

#include <utility>

#include "gemini/plan/spare_slots.h"

namespace gemini::client {

CopyLandings::CopyLandings(CopyEngine& copies) : copies_(copies), thread_([this] { Run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "gemini-land");
}

CopyLandings::~CopyLandings() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    added_.notify_one();
  }
  thread_.join();
}

void CopyLandings::AwaitRoom() {
  MutexLock lock(mutex_);
  while (under_way_.size() >= kFetchCopies) mutex_.WaitFor(landed_);
}

void CopyLandings::AwaitAll() {
  MutexLock lock(mutex_);
  const int64_t all = num_landed_ + static_cast<int64_t>(under_way_.size());
  while (num_landed_ < all) mutex_.WaitFor(landed_);
}

void CopyLandings::Add(CopyEvent copied, HostChunk source) {
  source.EndsByItself();
  MutexLock lock(mutex_);
  under_way_.push_back({copied, std::move(source)});
  added_.notify_one();
}

void CopyLandings::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (under_way_.empty() && !ending_) mutex_.WaitFor(added_);
    if (under_way_.empty()) return;
    Landing& first = under_way_.front();  // Stays where it is while others are added.
    mutex_.Unlock();
    copies_.Wait(first.copied);
    first.source = {};
    mutex_.Lock();
    under_way_.pop_front();
    ++num_landed_;
    landed_.notify_all();
  }
}

}  // namespace gemini::client
