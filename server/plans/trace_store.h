// SPDX-License-Identifier: Apache-2.0
// Stores the traces that the server has verified, by space, phase and tensors, so that a job that
// is started again begins with a plan. Traces are kept in memory, and in files if there is a state
// directory.
// Thread: one at a time (the plan worker); blocks on the disk.
// Bounds: max_bytes and kMaxKeptTraces in all. Beyond them, the space that takes the most loses its
//         least recently used trace and that trace's file.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::server {

struct TraceKey {
  std::string space;
  std::string phase;
  uint64_t tensors_hash = 0;  // As TensorsHash.
  auto operator<=>(const TraceKey&) const = default;
};

struct KeptTrace {
  TraceKey key;
  std::string trace;  // The bytes of one that was verified.
};

// Returns the bytes of its file. The key's phase and tensors are not apart in it: the trace has
// them.
std::string EncodeKeptTrace(const KeptTrace& kept);
// DATA_LOSS: they are no such file, or were changed. Others: as DecodeTrace. `bytes` begin at a
// multiple of 8.
absl::StatusOr<KeptTrace> DecodeKeptTrace(absl::string_view bytes);

// A trace is a file that is read at the next start, and takes some 500 bytes of memory beside its
// own: with 4,096 of them a start takes a second. A job has one a phase.
inline constexpr int64_t kMaxKeptTraces = 4'096;

class TraceStore {
 public:
  // An empty directory: memory only. Reads what is kept there; a file that is damaged is left out
  // with a line in the log.
  TraceStore(std::string directory, int64_t max_bytes);
  TraceStore(const TraceStore&) = delete;
  TraceStore& operator=(const TraceStore&) = delete;

  // Keeps `trace`, the bytes of one that was verified, in place of the key's last. One that cannot
  // be written to the directory is kept in memory, with a line in the log.
  void Keep(const TraceKey& key, std::string trace);
  // Returns its bytes until the next call, or null. A tensors_hash of 0: the latest that was kept
  // or found of that space and phase.
  const std::string* Find(const TraceKey& key);

  int64_t kept_bytes() const { return sum_.bytes; }
  int64_t num_traces() const { return sum_.traces; }

 private:
  struct Taken {
    int64_t bytes = 0;
    int64_t traces = 0;
  };
  using Position = std::list<KeptTrace>::iterator;
  void Insert(const TraceKey& key, std::string trace);
  void Remove(Position at);
  // Whose turn it is to go, of all but the latest. O(traces).
  Position FindVictim();
  void Count(const KeptTrace& kept, int sign);
  void Load();

  const std::string directory_;
  const int64_t max_bytes_;
  Taken sum_;
  std::map<std::string, Taken> by_space_;
  std::list<KeptTrace> recent_;  // The latest used first.
  std::map<TraceKey, Position> by_key_;
};

}  // namespace gemini::server
