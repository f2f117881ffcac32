// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/tensor_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/torch/model/value_blocks.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {
namespace {

// Offset in the tensor's fp32 values of element `first` of the bundle, which is in the piece.
int64_t ValueOffset(const ModelTensor& tensor, const TensorPiece& piece, int64_t first) {
  const int64_t element_bytes = ElementBytes(tensor.element);
  const int64_t in_tensor =
      first + (piece.tensor_offset_bytes - piece.chunk_offset_bytes) / element_bytes;
  return in_tensor * static_cast<int64_t>(sizeof(float));
}

// Where the bytes of one chunk are the values, those of the piece.
absl::Span<std::byte> BytesOf(const ModelTensor& tensor, const TensorPiece& piece,
                              const ValueChunks& at) {
  if (tensor.element != ElementType::kFp32 || at.chunks.size() != 1 || IsQuantised(at)) return {};
  return {at.chunks[0] + piece.chunk_offset_bytes, static_cast<size_t>(piece.size_bytes)};
}

absl::Span<std::byte> AsBytes(absl::Span<float> values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
}

absl::Status Fill(const ModelTensor& tensor, const TensorPiece& piece, const ValueChunks& to,
                  ManagedModel::ByteSource source) {
  if (const absl::Span<std::byte> bytes = BytesOf(tensor, piece, to); !bytes.empty()) {
    return source(piece.tensor_offset_bytes, bytes);
  }
  return ForValueBlocks(tensor, piece, [&](int64_t first, absl::Span<float> values) {
    GEMINI_RETURN_IF_ERROR(source(ValueOffset(tensor, piece, first), AsBytes(values)));
    StoreValues(to, first, values);
    return absl::OkStatus();
  });
}

void ZeroValues(const ModelTensor& tensor, const TensorPiece& piece, const ValueChunks& to) {
  ForValueBlocks(tensor, piece, [&](int64_t first, absl::Span<float> values) {
    std::ranges::fill(values, 0.0f);
    StoreValues(to, first, values);
    return absl::OkStatus();
  }).IgnoreError();
}

// Whether any value of the piece is in the range.
bool HasAnyOf(const ModelTensor& tensor, const TensorPiece& piece, const ByteRange& range) {
  // The range is of fp32 values, whatever they are stored as.
  const int64_t factor = static_cast<int64_t>(sizeof(float)) / ElementBytes(tensor.element);
  return range.Overlaps(piece.tensor_offset_bytes * factor, piece.size_bytes * factor);
}

// No chunks: zeros.
absl::Status Give(const ModelTensor& tensor, const TensorPiece& piece, const ValueChunks& from,
                  const ByteRange& range, ManagedModel::ByteSink sink) {
  const auto give = [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
    return sink(std::max(offset_bytes, range.offset_bytes), range.PartOf(offset_bytes, bytes));
  };
  if (const absl::Span<std::byte> bytes = BytesOf(tensor, piece, from); !bytes.empty()) {
    return give(piece.tensor_offset_bytes, bytes);
  }
  return ForValueBlocks(tensor, piece, [&](int64_t first, absl::Span<float> values) {
    const int64_t offset_bytes = ValueOffset(tensor, piece, first);
    const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(float));
    if (!range.Overlaps(offset_bytes, size_bytes)) return absl::OkStatus();
    if (from.chunks.empty()) {
      std::ranges::fill(values, 0.0f);
    } else {
      LoadValues(from, first, values);
    }
    return give(offset_bytes, AsBytes(values));
  });
}

}  // namespace

absl::Status TensorWriter::Write(int64_t index, ChunkKind kind, int64_t step,
                                 ManagedModel::ByteSource source) {
  const MutexLock lock(mutex_);
  has_open_.store(false, std::memory_order_release);
  absl::Status status = WriteLocked(index, kind, step, source);
  has_open_.store(!open_.empty(), std::memory_order_release);
  return status;
}

absl::Status TensorWriter::WriteLocked(int64_t index, ChunkKind kind, int64_t step,
                                       ManagedModel::ByteSource source) {
  ModelTensor& tensor = tensors_.tensors()[index];
  const bool is_param = kind == ChunkKind::kParam;
  for (int64_t i = 0; i < tensor.place.num_bundles; ++i) {
    const BundleId bundle(tensor.place.first_bundle.value() + i);
    GEMINI_ASSIGN_OR_RETURN(OpenChunk * open, Open(bundle, kind, step, tensor));
    const ValueChunks to = ValuesOf(tensor, kind, open->chunks);
    for (const TensorPiece& piece : tensors_.pieces(bundle)) {
      if (piece.tensor != index) continue;
      // Not before: a write that is refused for want of a slot leaves the tensor as it was.
      if (is_param) tensor.written = false;
      if (absl::Status status = Fill(tensor, piece, to, source); !status.ok()) {
        ZeroValues(tensor, piece, to);
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

ValueChunks TensorWriter::ValuesOf(const ModelTensor& tensor, ChunkKind kind,
                                   absl::Span<const std::pair<ChunkKind, HostChunk>> chunks) const {
  ValueChunks values = {.format = tensors_.store().format(),
                        .value = kind,
                        .chunk_bytes = tensors_.store().chunk_bytes()};
  values.format.element = tensor.element;
  for (const auto& [_, chunk] : chunks) values.chunks.push_back(chunk.data());
  return values;
}

absl::StatusOr<HostChunk> TensorWriter::AcquireCopy(ChunkId chunk) {
  ChunkStore& store = tensors_.store();
  const auto chunk_bytes = static_cast<size_t>(store.chunk_bytes());
  GEMINI_ASSIGN_OR_RETURN(HostChunk fresh, store.AcquireSpare());
  if (store.IsCommitted(chunk)) {
    GEMINI_ASSIGN_OR_RETURN(const HostChunk old, store.Acquire(chunk));
    std::memcpy(fresh.data(), old.data(), chunk_bytes);
  } else {
    std::memset(fresh.data(), 0, chunk_bytes);
  }
  return fresh;
}

absl::StatusOr<TensorWriter::OpenChunk*> TensorWriter::Open(BundleId bundle, ChunkKind kind,
                                                            int64_t step,
                                                            const ModelTensor& tensor) {
  const KindList kinds = tensors_.KindsOf(tensor, kind);
  for (OpenChunk& open : open_) {
    if (open.bundle == bundle && open.kind == *kinds.begin()) {
      open.step = std::max(open.step, step);
      return &open;
    }
  }
  const auto num_open = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int64_t slots = 0;
    for (const OpenChunk& open : open_) slots += static_cast<int64_t>(open.chunks.size());
    return slots;
  };
  while (!open_.empty() && num_open() + kinds.size() > max_open_chunks_) {
    GEMINI_RETURN_IF_ERROR(Commit(0));
  }
  std::vector<std::pair<ChunkKind, HostChunk>> chunks;
  for (const ChunkKind of_value : kinds) {
    GEMINI_RETURN_IF_ERROR(
        tensors_.residency().Flush(tensors_.ranges()[tensor.range].ids[of_value]));
    GEMINI_ASSIGN_OR_RETURN(HostChunk fresh, AcquireCopy(ChunkOf(bundle, of_value)));
    chunks.emplace_back(of_value, std::move(fresh));
  }
  if (kind == ChunkKind::kParam) {
    // From here to the commit nobody may use or change the chunk's other tensors either. Only now,
    // when nothing can fail any more: a refused write leaves them usable.
    for (const TensorPiece& piece : tensors_.pieces(bundle)) {
      tensors_.tensors()[piece.tensor].managed().set_ready(false);
    }
  }
  open_.push_back({bundle, *kinds.begin(), step, std::move(chunks), {}});
  return &open_.back();
}

absl::Status TensorWriter::Commit(size_t position) {
  OpenChunk& chunk = open_[position];
  ChunkStore& store = tensors_.store();
  // On an error it stays open: nothing that was written is lost.
  GEMINI_RETURN_IF_ERROR(store.Commit(chunk.bundle,
                                      std::max(chunk.step, store.CommittedStep(chunk.bundle)),
                                      absl::MakeSpan(chunk.chunks)));
  const OpenChunk open = std::move(chunk);
  open_.erase(open_.begin() + static_cast<ptrdiff_t>(position));
  const std::vector<TensorPiece>& pieces = tensors_.pieces(open.bundle);
  const int64_t range = tensors_.tensors()[pieces.front().tensor].range;
  for (const auto& [kind, _] : open.chunks) {
    GEMINI_RETURN_IF_ERROR(tensors_.residency().Drop(tensors_.ranges()[range].ids[kind]));
  }
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
  has_open_.store(false, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status TensorWriter::Flush() {
  const MutexLock lock(mutex_);
  return FlushLocked();
}

absl::Status TensorWriter::Read(int64_t index, ChunkKind kind, ByteRange range,
                                ManagedModel::ByteSink sink) {
  const MutexLock lock(mutex_);
  GEMINI_RETURN_IF_ERROR(FlushLocked());
  const ModelTensor& tensor = tensors_.tensors()[index];
  if (kind == ChunkKind::kParam) {
    if (!tensor.written) {
      return absl::FailedPreconditionError(
          absl::StrCat(tensor.info.name, " was never written: nothing to read"));
    }
  }
  const bool has_bytes = kind != ChunkKind::kGrad || tensor.tensor.grad().defined();
  ChunkStore& store = tensors_.store();
  const KindList kinds = tensors_.KindsOf(tensor, kind);
  for (const ChunkKind of_value : kinds) {
    GEMINI_RETURN_IF_ERROR(
        tensors_.residency().Flush(tensors_.ranges()[tensor.range].ids[of_value]));
  }
  for (int64_t i = 0; i < tensor.place.num_bundles; ++i) {
    const BundleId bundle(tensor.place.first_bundle.value() + i);
    if (std::ranges::none_of(tensors_.pieces(bundle), [&](const TensorPiece& piece) {
          return piece.tensor == index && HasAnyOf(tensor, piece, range);
        })) {
      continue;
    }
    std::vector<std::pair<ChunkKind, HostChunk>> chunks;
    // Without: before the first update, or no gradient.
    for (const ChunkKind of_value : kinds) {
      if (!has_bytes || !store.HasPayload(ChunkOf(bundle, of_value))) break;
      GEMINI_ASSIGN_OR_RETURN(HostChunk chunk, store.Acquire(ChunkOf(bundle, of_value)));
      chunks.emplace_back(of_value, std::move(chunk));
    }
    const ValueChunks from = ValuesOf(tensor, kind, chunks);
    for (const TensorPiece& piece : tensors_.pieces(bundle)) {
      if (piece.tensor != index || !HasAnyOf(tensor, piece, range)) continue;
      GEMINI_RETURN_IF_ERROR(Give(tensor, piece, from, range, sink));
    }
  }
  return absl::OkStatus();
}

}  // namespace gemini::client::hooks
