// SPDX-License-Identifier: Apache-2.0
// Writes and reads a managed tensor's fp32 values in HOST slots, for example to load and save a
// checkpoint. It needs no second copy of the model. The tensors of one chunk cost one commit if
// they are written one after another.
// Life: a chunk that is being filled is in a spare slot, and so are the chunks that together hold
// one value. They are committed when all their tensors are written, when others need the slots, or
// by Flush. A commit takes the chunk's copy off DEVICE, and plans reckon with what is there: the
// session calls Flush before an operator begins.
// Thread: any; one lock.
#pragma once
#include <atomic>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/kernels/element_values.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/model_tensors.h"
#include "gemini/system/mutex.h"

namespace gemini::client::hooks {

class TensorWriter {
 public:
  // `tensors` outlives this. At most `max_open_chunks` slots are held between calls; that must be
  // enough for the chunks that together hold one value.
  TensorWriter(ModelTensors& tensors, int64_t max_open_chunks)
      : tensors_(tensors), max_open_chunks_(max_open_chunks) {}

  // As ManagedModel::Write, for tensor `index` and a kind that it has. Commits are at `step` or
  // later.
  absl::Status Write(int64_t index, ChunkKind kind, int64_t step, ManagedModel::ByteSource source);
  // As ManagedModel::ReadRange.
  absl::Status Read(int64_t index, ChunkKind kind, ByteRange range, ManagedModel::ByteSink sink);
  // Commits all open chunks.
  absl::Status Flush();
  // Returns whether a Write has ended that left chunks open. Cheap enough for each operator.
  bool has_open() const { return has_open_.load(std::memory_order_acquire); }

 private:
  struct OpenChunk {
    BundleId bundle;
    ChunkKind kind;  // Kind of the first chunk.
    int64_t step;
    std::vector<std::pair<ChunkKind, HostChunk>> chunks;  // As ModelTensors::KindsOf.
    std::set<int64_t> written;  // Tensors that have a piece here and were written whole.
  };

  absl::Status WriteLocked(int64_t index, ChunkKind kind, int64_t step,
                           ManagedModel::ByteSource source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<OpenChunk*> Open(BundleId bundle, ChunkKind kind, int64_t step,
                                  const ModelTensor& tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<HostChunk> AcquireCopy(ChunkId chunk);
  ValueChunks ValuesOf(const ModelTensor& tensor, ChunkKind kind,
                       absl::Span<const std::pair<ChunkKind, HostChunk>> chunks) const;
  absl::Status Commit(size_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkReady(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ModelTensors& tensors_;
  const int64_t max_open_chunks_;
  Mutex mutex_;
  std::vector<OpenChunk> open_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
  std::atomic<bool> has_open_{false};                    // Of open_. Not while a Write fills them.
};

}  // namespace gemini::client::hooks
