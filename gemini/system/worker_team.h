// SPDX-License-Identifier: Apache-2.0
// Shares one piece of work among a few threads: the caller and its helpers take parts of it in turn
// until none is left (fork and join). Helpers sleep between calls, after a short spin.
// Thread: any. One call at a time has the helpers. A call made meanwhile, from within the work too,
// does its parts alone. When Run returns the caller sees all that the work wrote.
// Owner: its maker, who destroys it when no thread is in Run.
// Errors: none. If the system refuses some threads, the team is smaller.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace gemini {

class WorkerTeam {
 public:
  using Processors = std::vector<int>;

  // Starts num_threads - 1 helpers (num_threads >= 1), named gemini-team-1 and on. Helper i runs on
  // `places[i]`, or anywhere if that is missing, empty or refused.
  explicit WorkerTeam(int num_threads, const std::vector<Processors>& places = {});
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;
  ~WorkerTeam();

  // Returns the size of the team with the caller.
  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls work(begin, end) once for each part of [0, count): `part_size` items (> 0) from a
  // multiple of it on; the last part may be shorter. Any thread takes any part, so parts must not
  // depend on one another. Returns when all are done. Allocates nothing.
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
  // Valid for a thread that has taken a part and not finished it; read only then.
  const Work* work_ = nullptr;
  // Parts that no thread has taken. Helpers sleep on it while it is 0. A negative value ends the
  // team.
  std::atomic<int> untaken_ = 0;
  // Parts that are not done; the caller sleeps on it.
  std::atomic<int> unfinished_ = 0;
};

}  // namespace gemini
