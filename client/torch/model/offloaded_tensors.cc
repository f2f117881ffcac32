// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/offloaded_tensors.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {
namespace {

// Tensors on their way out at one time: enough that the link is never idle, and the memory that
// they hold longer stays small.
constexpr size_t kMaxLeaving = 2;

int64_t BytesOf(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

}  // namespace

absl::StatusOr<std::unique_ptr<OffloadedTensors>> OffloadedTensors::Open(
    Session& session, const OffloadOptions& options) {
  const int64_t chunk_bytes = session.chunk_bytes();
  SpaceOptions space;
  space.name = options.space_name;
  space.host_slots = options.host_bytes / chunk_bytes;
  space.nvme_slots = options.nvme_bytes / chunk_bytes;
  if (space.host_slots < SpareSlots({})) {
    return absl::InvalidArgumentError(absl::StrCat(
        "moving activations to HOST needs ", FormatByteSize(SpareSlots({}) * chunk_bytes),
        " of it for copies under way, and has ", FormatByteSize(options.host_bytes),
        ": raise the host memory"));
  }
  // What is on NVME comes back through HOST slots that must be free then.
  space.num_bundles = space.host_slots + std::max<int64_t>(0, space.nvme_slots - SpareSlots({}));
  GEMINI_ASSIGN_OR_RETURN(ChunkStore * store, session.OpenSpace(space));
  return std::unique_ptr<OffloadedTensors>(
      new OffloadedTensors(session, *store, options.keep_bytes));
}

OffloadedTensors::OffloadedTensors(Session& session, ChunkStore& store, int64_t keep_bytes)
    : copies_(session.copies()), store_(store), keep_bytes_(keep_bytes) {
  for (int64_t i = store.num_bundles(); i-- > 0;) free_chunks_.push_back(BundleId(i));
}

OffloadedTensors::~OffloadedTensors() {
  for (const auto& [key, entry] : entries_) copies_.Wait(entry.last_copy);
  Land(/*all=*/true);
}

absl::StatusOr<int64_t> OffloadedTensors::Put(at::Tensor tensor) {
  const int64_t key = next_key_++;
  Entry& added = entries_[key];
  added.sizes = tensor.sizes().vec();
  added.options = tensor.options();
  added.tensor = tensor.contiguous();
  kept_bytes_ += BytesOf(added.tensor);
  kept_.push_back(key);
  while (kept_bytes_ > keep_bytes_ && !kept_.empty()) {
    const int64_t oldest = kept_.front();
    Reap(kMaxLeaving - 1);
    GEMINI_RETURN_IF_ERROR(Offload(oldest, entries_.at(oldest)));
  }
  return key;
}

absl::Status OffloadedTensors::Offload(int64_t key, Entry& entry) {
  const int64_t size_bytes = BytesOf(entry.tensor);
  const int64_t chunk_bytes = store_.chunk_bytes();
  const auto count = static_cast<size_t>((size_bytes + chunk_bytes - 1) / chunk_bytes);
  Land(/*all=*/free_chunks_.size() < count);
  if (free_chunks_.size() < count) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for ", FormatByteSize(size_bytes), " of activations in HOST and NVME, of which ",
        FormatByteSize(store_.num_bundles() * chunk_bytes),
        " are for them: raise the host memory, or take smaller or fewer micro-batches"));
  }
  const auto* bytes = static_cast<const std::byte*>(entry.tensor.const_data_ptr());
  const CopyEvent computed = copies_.AfterOperators();
  for (size_t i = 0; i < count; ++i) {
    const BundleId chunk = free_chunks_.back();
    absl::StatusOr<HostChunk> host = store_.AcquireToOverwrite(ChunkOf(chunk, ChunkKind::kGrad));
    if (absl::IsResourceExhausted(host.status()) && !landing_.empty()) {
      Land(/*all=*/true);  // They hold HOST slots.
      host = store_.AcquireToOverwrite(ChunkOf(chunk, ChunkKind::kGrad));
    }
    GEMINI_RETURN_IF_ERROR(host.status());
    free_chunks_.erase(std::find(free_chunks_.begin(), free_chunks_.end(), chunk));
    entry.chunks.push_back(chunk);
    const int64_t offset = static_cast<int64_t>(i) * chunk_bytes;
    entry.last_copy = copies_.Copy(CopyStream::kEvict, host->data(), bytes + offset,
                                   std::min(chunk_bytes, size_bytes - offset), computed,
                                   store_.timeline().CopyOf(ChunkOf(chunk, ChunkKind::kGrad)));
    entry.held.push_back(*std::move(host));
  }
  entry.place = Place::kLeaving;
  kept_.pop_front();
  kept_bytes_ -= size_bytes;
  leaving_.push_back(key);
  bytes_to_host_ += size_bytes;
  return absl::OkStatus();
}

void OffloadedTensors::Reap(size_t most) {
  while (leaving_.size() > most) {
    Entry& entry = entries_.at(leaving_.front());
    leaving_.pop_front();
    copies_.Wait(entry.last_copy);
    entry.held.clear();
    entry.tensor.reset();
    entry.place = Place::kHost;
  }
}

void OffloadedTensors::Land(bool all) {
  while (!landing_.empty() && (all || copies_.Done(landing_.front().last_copy))) {
    Landing landing = std::move(landing_.front());
    landing_.pop_front();
    copies_.Wait(landing.last_copy);
    landing.held.clear();
    for (const BundleId chunk : landing.chunks) {
      store_.Free(ChunkOf(chunk, ChunkKind::kGrad));
      free_chunks_.push_back(chunk);
    }
  }
}

void OffloadedTensors::Clear() {
  for (auto& [key, entry] : entries_) {
    copies_.Wait(entry.last_copy);  // Its tensor is freed now.
    landing_.push_back({entry.last_copy, std::move(entry.chunks), std::move(entry.held)});
  }
  entries_.clear();
  kept_.clear();
  kept_bytes_ = 0;
  leaving_.clear();
  Land(/*all=*/true);
}

absl::Status OffloadedTensors::Prefetch(int64_t key) {
  Entry& entry = entries_.at(key);
  if (entry.place == Place::kLeaving) Reap(0);
  if (entry.place != Place::kHost) return absl::OkStatus();
  Land(/*all=*/true);  // So that HOST slots are held for one tensor at a time.
  entry.tensor = at::empty(entry.sizes, entry.options);
  // Its memory may be another tensor's until then.
  const CopyEvent allocated = copies_.AfterOperators();
  auto* bytes = static_cast<std::byte*>(entry.tensor.mutable_data_ptr());
  const int64_t size_bytes = BytesOf(entry.tensor);
  for (size_t i = 0; i < entry.chunks.size(); ++i) {
    GEMINI_ASSIGN_OR_RETURN(HostChunk host,
                            store_.Acquire(ChunkOf(entry.chunks[i], ChunkKind::kGrad)));
    const int64_t offset = static_cast<int64_t>(i) * store_.chunk_bytes();
    entry.last_copy =
        copies_.Copy(CopyStream::kFetch, bytes + offset, host.data(),
                     std::min(store_.chunk_bytes(), size_bytes - offset), allocated,
                     store_.timeline().CopyOf(ChunkOf(entry.chunks[i], ChunkKind::kGrad)));
    entry.held.push_back(std::move(host));
  }
  entry.place = Place::kComing;
  bytes_to_device_ += size_bytes;
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> OffloadedTensors::Take(int64_t key) {
  Entry& entry = entries_.at(key);
  GEMINI_RETURN_IF_ERROR(Prefetch(key));
  if (entry.place == Place::kDevice) {
    kept_.erase(std::find(kept_.begin(), kept_.end(), key));
    kept_bytes_ -= BytesOf(entry.tensor);
  }
  copies_.MakeOperatorsWait(entry.last_copy);
  at::Tensor tensor = std::move(entry.tensor);
  landing_.push_back({entry.last_copy, std::move(entry.chunks), std::move(entry.held)});
  entries_.erase(key);
  Land(/*all=*/false);
  return tensor;
}

}  // namespace gemini::client::hooks
