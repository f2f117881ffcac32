// SPDX-License-Identifier: Apache-2.0
// Spreads the pages that the calling thread allocates in a scope over NUMA nodes, page by page:
// those of slabs, which threads of every node work on. The pages stay where they are.
// Thread: the one that makes it also destroys it. One at a time on a thread.
// Errors: a policy that is refused, as in containers, is logged once and does without. A thread
//         that has a policy, by numactl for one, keeps it.
#pragma once
#include <vector>

#include "absl/types/span.h"

namespace gemini::server {

// The nodes of this machine that slabs are spread over; none where there are fewer than two.
std::vector<int> NodesOfSlabs();

class InterleavedPages {
 public:
  // Over `nodes`; none: nothing is called.
  explicit InterleavedPages(absl::Span<const int> nodes);
  InterleavedPages(const InterleavedPages&) = delete;
  InterleavedPages& operator=(const InterleavedPages&) = delete;
  ~InterleavedPages();

  bool is_active() const { return is_active_; }

 private:
  bool is_active_ = false;
};

}  // namespace gemini::server
