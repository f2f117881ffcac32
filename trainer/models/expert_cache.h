// SPDX-License-Identifier: Apache-2.0
// Copies of the experts that were chosen last, for forwards that run no others (ExpertRouting). A
// block says which experts it will run; those that are missing are fetched at once, two ahead of
// the operators, in place of the least recently used ones.
// Memory: the copies are tensors of their own, all of which exist from the beginning. So a plan of
//         the round leaves them their room, and has no expert in it.
// Values: those of the parameters at the time of the fetch. It is made anew behind an update.
// Thread: one at a time.
// Errors: exceptions of Torch; c10::Error with the message of a fetch that failed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/feed_forward.h"

namespace gemini::trainer {

// Begins to copy a parameter into `to`, a tensor of its shape, behind the operators that the
// calling thread has begun. Returns what makes those that it begins next run behind the copy.
using FetchWeights = std::function<absl::StatusOr<std::function<void()>>(
    const torch::Tensor& parameter, const torch::Tensor& to)>;

class ExpertCache {
 public:
  // Holds as many experts of `spec` as `capacity_bytes` have room for, at least one, and no more
  // than there are. `layers` makes the copies' layers, and is not kept. `fetch` outlives this.
  ExpertCache(const ModelSpec& spec, LayerSet& layers, int64_t capacity_bytes,
              const FetchWeights& fetch);
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;
  // Waits for the copies under way.
  ~ExpertCache();

  // Says which experts of the model run next, each once and in this order.
  void Choose(std::vector<const FeedForward*> experts);
  // Returns a copy of the next of them, valid until the next call.
  const FeedForward& Next();

  int64_t capacity() const { return static_cast<int64_t>(entries_.size()); }  // In experts.
  // Bytes fetched, and experts that needed no fetch, ever.
  int64_t fetched_bytes() const { return fetched_bytes_; }
  int64_t hits() const { return hits_; }

 private:
  struct Entry {
    std::shared_ptr<torch::nn::Module> root;
    FeedForward copy;
    const FeedForward* of = nullptr;                   // The model's own. Null: it holds none.
    int64_t used = 0;                                  // When it was chosen last, by clock_.
    bool awaited = false;                              // Its forward has not ended.
    std::vector<std::function<void()>> arrivals = {};  // Of copies that may be under way.
  };

  Entry* Find(const FeedForward* expert);
  // Fetches what is next in the queue, as far ahead as it may.
  void FetchAhead();
  void Fetch(const FeedForward& expert, Entry& entry);
  static void Await(Entry& entry);

  const FetchWeights& fetch_;
  std::vector<Entry> entries_;
  std::vector<const FeedForward*> queue_;
  size_t next_ = 0;        // In the queue, what Next returns.
  size_t next_fetch_ = 0;  // In the queue, what is looked at next.
  int64_t clock_ = 0;
  int64_t fetched_bytes_ = 0;
  int64_t hits_ = 0;
};

}  // namespace gemini::trainer
