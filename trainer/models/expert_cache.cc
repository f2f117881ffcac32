// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/expert_cache.h"

#include <algorithm>
#include <utility>

#include "c10/util/Exception.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {
namespace {

// One computes while the next one comes. More would hold back others that share the link.
constexpr size_t kAhead = 2;

int64_t BytesOf(const FeedForward& expert) {
  int64_t bytes = 0;
  for (const torch::Tensor& parameter : expert.Parameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

int64_t NumExperts(const ModelSpec& spec) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < spec.num_blocks; ++i) blocks += spec.HasExperts(i) ? 1 : 0;
  return blocks * spec.experts->count;
}

}  // namespace

ExpertCache::ExpertCache(const ModelSpec& spec, LayerSet& layers, int64_t capacity_bytes,
                         const FetchWeights& fetch)
    : fetch_(fetch) {
  FeedForwardSpec feed = spec.feed_forward;
  feed.width = spec.experts->width;
  const FeedNames names = {.gate = "gate", .in = "in", .out = "out"};
  int64_t most = 1;
  do {
    const auto root = std::make_shared<ModuleGroup>();
    entries_.push_back(
        {.root = root, .copy = {*root, names, feed, spec.width, spec.block_matrices, layers}});
    most = std::min(capacity_bytes / BytesOf(entries_.front().copy), NumExperts(spec));
  } while (capacity() < most);
}

ExpertCache::~ExpertCache() {
  for (Entry& entry : entries_) Await(entry);
}

void ExpertCache::Choose(std::vector<const FeedForward*> experts) {
  queue_ = std::move(experts);
  next_ = next_fetch_ = 0;
  for (Entry& entry : entries_) entry.awaited = false;
  // Before any is fetched, so that none of these gives way to another one.
  for (const FeedForward* expert : queue_) {
    if (Entry* const found = Find(expert)) found->used = ++clock_;
  }
  FetchAhead();
}

const FeedForward& ExpertCache::Next() {
  // The forward before has ended.
  if (next_ > 0) Find(queue_[next_ - 1])->awaited = false;
  ++next_;
  FetchAhead();
  Entry& entry = *Find(queue_[next_ - 1]);
  Await(entry);
  return entry.copy;
}

void ExpertCache::Await(Entry& entry) {
  for (const std::function<void()>& arrival : entry.arrivals) arrival();
  entry.arrivals.clear();
}

ExpertCache::Entry* ExpertCache::Find(const FeedForward* expert) {
  const auto found = std::ranges::find(entries_, expert, &Entry::of);
  return found == entries_.end() ? nullptr : &*found;
}

void ExpertCache::FetchAhead() {
  for (; next_fetch_ < std::min(queue_.size(), next_ + kAhead); ++next_fetch_) {
    const FeedForward& expert = *queue_[next_fetch_];
    Entry* entry = Find(&expert);
    if (entry != nullptr) {
      ++hits_;
    } else {
      entry = &*std::ranges::min_element(
          entries_, {}, [](const Entry& one) { return std::pair(one.awaited, one.used); });
      if (entry->awaited) return;
      Fetch(expert, *entry);
    }
    entry->awaited = true;
    entry->used = ++clock_;
  }
}

void ExpertCache::Fetch(const FeedForward& expert, Entry& entry) {
  entry.of = nullptr;  // Until all of it is under way.
  const std::vector<torch::Tensor> from = expert.Parameters();
  const std::vector<torch::Tensor> to = entry.copy.Parameters();
  for (size_t i = 0; i < from.size(); ++i) {
    absl::StatusOr<std::function<void()>> arrival = fetch_(from[i], to[i]);
    TORCH_CHECK(arrival.ok(), "an expert cannot be fetched: ", arrival.status().ToString());
    entry.arrivals.push_back(*std::move(arrival));
  }
  entry.of = &expert;
  fetched_bytes_ += BytesOf(expert);
}

}  // namespace gemini::trainer
