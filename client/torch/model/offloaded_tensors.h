// SPDX-License-Identifier: Apache-2.0
// Keeps tensors that are not needed for a while: the latest stay where they are, and older ones
// move to HOST, and to NVME if HOST is full. It has a space of its own in the session, and its
// copies share the session's link.
// Memory: DEVICE holds `keep_bytes` of tensors, those in flight out, and those taken or prefetched.
// Order: it is made for tensors that are taken in the reverse order, such as the activations
// between blocks, which are put in forward and taken in backward.
// Thread: one at a time.
// Errors: absl::Status, except for memory that Torch's allocator refuses: its exception passes
// through. After an error the tensors are lost.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/host/chunk_store.h"
#include "client/session/session.h"

namespace gemini::client::hooks {

struct OffloadOptions {
  std::string space_name;  // As in ManageOptions; different from all others.
  int64_t keep_bytes = 0;  // Bytes of tensors that stay on DEVICE.
  // Bytes of the session's HOST, and of its NVME, for tensors that leave DEVICE. Each tensor takes
  // whole chunks.
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
};

class OffloadedTensors {
 public:
  // Opens a space. `session` outlives this. Errors: as Session::OpenSpace. INVALID_ARGUMENT: there
  // is no room for the copies in flight of one tensor.
  static absl::StatusOr<std::unique_ptr<OffloadedTensors>> Open(Session& session,
                                                                const OffloadOptions& options);
  OffloadedTensors(const OffloadedTensors&) = delete;
  OffloadedTensors& operator=(const OffloadedTensors&) = delete;
  // Waits for the copies in flight.
  ~OffloadedTensors();

  // Takes a tensor of the session's device that no later operator writes, and returns its key. May
  // begin copies of older ones, and wait for those that began long ago. RESOURCE_EXHAUSTED: HOST
  // and NVME are full.
  absl::StatusOr<int64_t> Put(at::Tensor tensor);
  // Begins to fetch the tensor. Does nothing if it is on DEVICE or in flight to it. May wait for
  // earlier copies.
  absl::Status Prefetch(int64_t key);
  // Returns the tensor, for operators that the calling thread begins next, and removes the key.
  absl::StatusOr<at::Tensor> Take(int64_t key);
  // Drops all tensors, once the copies in flight have ended.
  void Clear();

  // Bytes of tensors moved, ever.
  int64_t bytes_to_host() const { return bytes_to_host_; }
  int64_t bytes_to_device() const { return bytes_to_device_; }

 private:
  // DEVICE -> leaving -> HOST -> coming.
  enum class Place : uint8_t { kDevice, kLeaving, kHost, kComing };
  struct Entry {
    Place place = Place::kDevice;
    at::Tensor tensor;  // Undefined in kHost.
    std::vector<int64_t> sizes;
    at::TensorOptions options;
    // Where its bytes are in HOST: the gradient chunks of these bundles.
    std::vector<BundleId> chunks;
    std::vector<HostChunk> held;  // While copies are in flight.
    CopyEvent last_copy;
  };
  // The HOST memory of a tensor that was taken.
  struct Landing {
    CopyEvent last_copy;
    std::vector<BundleId> chunks;
    std::vector<HostChunk> held;
  };

  OffloadedTensors(Session& session, ChunkStore& store, int64_t keep_bytes);
  absl::Status Offload(int64_t key, Entry& entry);
  // Waits until at most `most` tensors are leaving.
  void Reap(size_t most);
  // Releases the HOST memory of taken tensors whose copies are done. `all`: waits for the copies.
  void Land(bool all);

  CopyEngine& copies_;
  ChunkStore& store_;
  const int64_t keep_bytes_;
  std::unordered_map<int64_t, Entry> entries_;  // By key; references to entries stay valid.
  int64_t next_key_ = 0;
  std::deque<int64_t> kept_;  // Keys in kDevice, oldest first.
  int64_t kept_bytes_ = 0;
  std::deque<int64_t> leaving_;  // Oldest first.
  std::deque<Landing> landing_;  // Oldest first.
  std::vector<BundleId> free_chunks_;
  int64_t bytes_to_host_ = 0;
  int64_t bytes_to_device_ = 0;
};

}  // namespace gemini::client::hooks
