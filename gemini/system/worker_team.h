// SPDX-License-Identifier: Apache-2.0
// A few threads that share one piece of work: the caller and its helpers take parts of it in turn
// until none is left (fork and join). Helpers sleep between calls, after a short spin.
// Thread: any. One call at a time has the helpers; another that comes meanwhile, from within the
//         work too, does its parts alone. All that the work writes is seen by the caller when Run
//         returns.
// Owner:  whoever made it; nobody is in Run when it is destroyed.
// Errors: none. Where the system makes fewer threads than asked for, there are fewer.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace gemini {

class WorkerTeam {
 public:
  // Numbers of processors; empty: any that the process may use.
  using Processors = std::vector<int>;

  // Starts num_threads - 1 helpers (num_threads >= 1), named gemini-team-1 and on. Helper i runs on
  // `places[i]`; anywhere where that is missing, empty or refused.
  explicit WorkerTeam(int num_threads, const std::vector<Processors>& places = {});
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;
  ~WorkerTeam();

  // The caller's included.
  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls work(begin, end) once for each part of [0, count): part_size items (> 0) from a multiple
  // of it on, the last one maybe fewer. Any thread takes any part, so parts must not depend on one
  // another. Returns when all are done. Allocates nothing.
  void Run(int64_t count, int64_t part_size,
           absl::FunctionRef<void(int64_t begin, int64_t end)> work);

 private:
  struct Work {
    absl::FunctionRef<void(int64_t begin, int64_t end)> part;
    int64_t count;
    int64_t part_size;
    int num_parts;

    void Do(int index) const;
  };

  void Help();
  void FinishPart(int index);
  bool TakePart(int& index);

  std::vector<std::thread> helpers_;
  std::atomic<bool> has_caller_ = false;
  // Valid for whoever has taken a part and not finished it: only then it is looked at.
  const Work* work_ = nullptr;
  // Parts that nobody has taken; what helpers sleep on while it is 0. Below 0: the team ends.
  std::atomic<int> untaken_ = 0;
  // Parts that are not done; what the caller sleeps on.
  std::atomic<int> unfinished_ = 0;
};

}  // namespace gemini
