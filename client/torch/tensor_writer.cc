// SPDX-License-Identifier: Apache-2.0
#include "client/torch/tensor_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/status_macros.h"

namespace gemini::client::hooks {

absl::Status TensorWriter::Write(int64_t index, ChunkKind kind, int64_t step,
                                 ManagedModel::ByteSource source) {
  const MutexLock lock(mutex_);
  ModelTensor& tensor = tensors_.tensors()[index];
  const bool is_param = kind == ChunkKind::kParam;
  for (int64_t i = 0; i < tensor.place.num_bundles; ++i) {
    const BundleId bundle(tensor.place.first_bundle.value() + i);
    GEMINI_ASSIGN_OR_RETURN(OpenChunk * open, Open(bundle, kind, step, tensor.range));
    for (const TensorPiece& piece : tensors_.pieces(bundle)) {
      if (piece.tensor != index) continue;
      // Not before: a write that is refused for want of a slot leaves the tensor as it was.
      if (is_param) tensor.written = false;
      const absl::Span<std::byte> bytes(open->chunk.data() + piece.chunk_offset_bytes,
                                        static_cast<size_t>(piece.size_bytes));
      if (absl::Status status = source(piece.tensor_offset_bytes, bytes); !status.ok()) {
        std::memset(bytes.data(), 0, bytes.size());
        return status;
      }
    }
    open->written.insert(index);
  }
  if (is_param) {
    tensor.written = true;
    tensor.tensor.unsafeGetTensorImpl()->bump_version();
  }
  for (size_t i = 0; i < open_.size();) {
    const bool complete = std::ranges::all_of(
        tensors_.pieces(open_[i].bundle),
        [&](const TensorPiece& piece) { return open_[i].written.contains(piece.tensor); });
    if (!complete) {
      ++i;
      continue;
    }
    GEMINI_RETURN_IF_ERROR(Commit(i));
  }
  if (is_param) MarkReady(index);
  return absl::OkStatus();
}

absl::StatusOr<TensorWriter::OpenChunk*> TensorWriter::Open(BundleId bundle, ChunkKind kind,
                                                            int64_t step, int64_t range) {
  for (OpenChunk& open : open_) {
    if (open.bundle == bundle && open.kind == kind) {
      open.step = std::max(open.step, step);
      return &open;
    }
  }
  if (static_cast<int64_t>(open_.size()) >= max_open_chunks_) GEMINI_RETURN_IF_ERROR(Commit(0));
  ChunkStore& store = tensors_.store();
  const auto chunk_bytes = static_cast<size_t>(store.chunk_bytes());
  GEMINI_RETURN_IF_ERROR(tensors_.residency().Flush(tensors_.ranges()[range].of(kind)));
  GEMINI_ASSIGN_OR_RETURN(HostChunk fresh, store.AcquireSpare());
  if (store.IsCommitted(ChunkOf(bundle, kind))) {
    GEMINI_ASSIGN_OR_RETURN(const HostChunk old, store.Acquire(ChunkOf(bundle, kind)));
    std::memcpy(fresh.data(), old.data(), chunk_bytes);
  } else {
    std::memset(fresh.data(), 0, chunk_bytes);
  }
  if (kind == ChunkKind::kParam) {
    // From here to the commit nobody may use or change the chunk's other tensors either. Only now, when
    // nothing can fail any more: a refused write leaves them usable.
    for (const TensorPiece& piece : tensors_.pieces(bundle)) {
      tensors_.tensors()[piece.tensor].managed().set_ready(false);
    }
  }
  open_.push_back({bundle, kind, step, std::move(fresh), {}});
  return &open_.back();
}

absl::Status TensorWriter::Commit(size_t position) {
  OpenChunk& chunk = open_[position];
  ChunkStore& store = tensors_.store();
  std::array<std::pair<ChunkKind, HostChunk>, 1> fresh = {
      std::pair(chunk.kind, std::move(chunk.chunk))};
  if (absl::Status status =
          store.Commit(chunk.bundle, std::max(chunk.step, store.CommittedStep(chunk.bundle)),
                       absl::MakeSpan(fresh));
      !status.ok()) {
    chunk.chunk = std::move(fresh[0].second);  // Stays open: nothing that was written is lost.
    return status;
  }
  const OpenChunk open = std::move(chunk);
  open_.erase(open_.begin() + static_cast<ptrdiff_t>(position));
  const std::vector<TensorPiece>& pieces = tensors_.pieces(open.bundle);
  const int64_t range = tensors_.tensors()[pieces.front().tensor].range;
  GEMINI_RETURN_IF_ERROR(tensors_.residency().Drop(tensors_.ranges()[range].of(open.kind)));
  if (open.kind != ChunkKind::kParam) return absl::OkStatus();
  for (const TensorPiece& piece : pieces) MarkReady(piece.tensor);
  return absl::OkStatus();
}

void TensorWriter::MarkReady(int64_t index) {
  const ModelTensor& tensor = tensors_.tensors()[index];
  const int64_t first = tensor.place.first_bundle.value();
  const bool is_open = std::ranges::any_of(open_, [&](const OpenChunk& open) {
    return open.kind == ChunkKind::kParam && open.bundle.value() >= first &&
           open.bundle.value() < first + tensor.place.num_bundles;
  });
  tensor.managed().set_ready(tensor.written && !is_open);
}

absl::Status TensorWriter::FlushLocked() {
  while (!open_.empty()) GEMINI_RETURN_IF_ERROR(Commit(0));
  return absl::OkStatus();
}

absl::Status TensorWriter::Flush() {
  const MutexLock lock(mutex_);
  return FlushLocked();
}

absl::Status TensorWriter::Read(int64_t index, ChunkKind kind, ManagedModel::ByteSink sink) {
  const MutexLock lock(mutex_);
  GEMINI_RETURN_IF_ERROR(FlushLocked());
  const ModelTensor& tensor = tensors_.tensors()[index];
  if (kind == ChunkKind::kParam) {
    if (!tensor.written) {
      return absl::FailedPreconditionError(
          absl::StrCat(tensor.info.name, " was never written: nothing to read"));
    }
  }
  GEMINI_RETURN_IF_ERROR(tensors_.residency().Flush(tensors_.ranges()[tensor.range].of(kind)));
  const bool has_bytes = kind != ChunkKind::kGrad || tensor.tensor.grad().defined();
  ChunkStore& store = tensors_.store();
  std::vector<std::byte> zeros;
  for (int64_t i = 0; i < tensor.place.num_bundles; ++i) {
    const BundleId bundle(tensor.place.first_bundle.value() + i);
    HostChunk chunk;
    if (has_bytes && store.HasPayload(ChunkOf(bundle, kind))) {
      GEMINI_ASSIGN_OR_RETURN(chunk, store.Acquire(ChunkOf(bundle, kind)));
    }
    for (const TensorPiece& piece : tensors_.pieces(bundle)) {
      if (piece.tensor != index) continue;
      const auto size = static_cast<size_t>(piece.size_bytes);
      if (!chunk) zeros.resize(size);  // Before the first update, or no gradient.
      const std::byte* const data = chunk ? chunk.data() + piece.chunk_offset_bytes : zeros.data();
      GEMINI_RETURN_IF_ERROR(sink(piece.tensor_offset_bytes, {data, size}));
    }
  }
  return absl::OkStatus();
}

}  // namespace gemini::client::hooks
