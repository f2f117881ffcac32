// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/model_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/core/TensorImpl.h"
#include "client/kernels/element_values.h"
#include "client/torch/model/value_blocks.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {

std::unique_ptr<ModelTensors> ModelTensors::Make(std::vector<ModuleTensor> tensors,
                                                 const Layout& layout, ChunkStore& store,
                                                 Residency& residency, int64_t decay_min_dimensions,
                                                 c10::Device device, PhaseTracker* phases) {
  auto model = std::unique_ptr<ModelTensors>(new ModelTensors(store, residency, device));
  model->pieces_.resize(layout.num_bundles());
  std::vector<int64_t> range_of_bundle(layout.num_bundles(), -1);
  for (ModuleTensor& from : tensors) {
    const auto index = static_cast<int64_t>(model->tensors_.size());
    ModelTensor& tensor = model->tensors_.emplace_back();
    tensor.info = {from.names.front(), from.tensor.sizes().vec(), from.group, from.tensor.numel()};
    tensor.element = from.element;
    tensor.strides = from.tensor.strides().vec();
    tensor.tensor = from.tensor;
    tensor.place = layout.place(index);
    tensor.decayed = from.tensor.dim() >= decay_min_dimensions;
    for (std::string& name : from.names) model->by_name_[std::move(name)] = index;

    int64_t& range = range_of_bundle[tensor.place.first_bundle.value()];
    if (range < 0) {
      range = static_cast<int64_t>(model->ranges_.size());
      ModelRange& added = model->ranges_.emplace_back();
      added.first = tensor.place.first_bundle;
      added.num_bundles = tensor.place.num_bundles;
      added.group = from.group;
      KindList kinds;
      kinds.Add(ChunkKind::kParam);
      if (from.group == TensorGroup::kTrainable) kinds = TrainableKinds(store.format());
      for (const ChunkKind kind : kinds) {
        added.ids[kind] = residency.AddRange(store, added.first, added.num_bundles, kind);
      }
    }
    tensor.range = range;

    int64_t done_bytes = 0;
    for (int64_t i = 0; i < tensor.place.num_bundles; ++i) {
      TensorPiece piece;
      piece.tensor = index;
      piece.chunk_offset_bytes = i == 0 ? tensor.place.offset_bytes : 0;
      piece.tensor_offset_bytes = done_bytes;
      piece.size_bytes = std::min(layout.payload_bytes() - piece.chunk_offset_bytes,
                                  tensor.size_bytes() - done_bytes);
      done_bytes += piece.size_bytes;
      model->pieces_[tensor.place.first_bundle.value() + i].push_back(piece);
    }
  }
  if (phases != nullptr) {
    std::vector<TracedTensor> traced;
    for (const ModelTensor& tensor : model->tensors_) {
      traced.push_back({.size_bytes = tensor.size_bytes(),
                        .group = tensor.info.group,
                        .format = store.format(),
                        .states_on_nvme = store.memory().shape().states_on_nvme});
    }
    model->phases_ = phases;
    model->first_traced_ = phases->AddTensors(store, traced);
  }
  return model;
}

absl::Status ModelTensors::MoveIntoChunks(StorageOwner& owner) {
  for (int64_t bundle = 0; bundle < num_bundles(); ++bundle) {
    const std::vector<TensorPiece>& pieces = pieces_[bundle];
    const bool has_values = std::ranges::any_of(
        pieces, [&](const TensorPiece& piece) { return !tensors_[piece.tensor].tensor.is_meta(); });
    if (has_values) GEMINI_RETURN_IF_ERROR(CommitValues(BundleId(bundle)));
    for (const TensorPiece& piece : pieces) {
      const ModelTensor& tensor = tensors_[piece.tensor];
      if (piece.tensor_offset_bytes + piece.size_bytes == tensor.size_bytes()) {
        AdoptTensor(piece.tensor, owner);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ModelTensors::CommitValues(BundleId bundle) {
  const std::vector<TensorPiece>& pieces = pieces_[bundle.value()];
  const KindList kinds = KindsOf(tensors_[pieces.front().tensor], ChunkKind::kParam);
  std::vector<std::pair<ChunkKind, HostChunk>> fresh;
  for (const ChunkKind kind : kinds) {
    GEMINI_ASSIGN_OR_RETURN(HostChunk chunk, store_.AcquireSpare());
    std::memset(chunk.data(), 0, static_cast<size_t>(store_.chunk_bytes()));
    fresh.emplace_back(kind, std::move(chunk));
  }
  for (const TensorPiece& piece : pieces) {
    const ModelTensor& tensor = tensors_[piece.tensor];
    if (tensor.tensor.is_meta()) continue;
    std::memcpy(
        fresh.front().second.data() + piece.chunk_offset_bytes,
        static_cast<const std::byte*>(tensor.tensor.const_data_ptr()) + piece.tensor_offset_bytes,
        static_cast<size_t>(piece.size_bytes));
    if (fresh.size() == 1) continue;
    // A master that gives each parameter as it is.
    ValueChunks to = {.format = store_.format(), .chunk_bytes = store_.chunk_bytes()};
    for (const auto& [kind, chunk] : fresh) to.chunks.push_back(chunk.data());
    ValueChunks from = to;
    from.chunks.resize(1);
    ForValueBlocks(tensor, piece, [&](int64_t first, absl::Span<float> values) {
      LoadValues(from, first, values);
      StoreValues(to, first, values);
      return absl::OkStatus();
    }).IgnoreError();
  }
  return store_.Commit(bundle, 0, absl::MakeSpan(fresh));
}

KindList ModelTensors::KindsOf(const ModelTensor& tensor, ChunkKind value) const {
  if (tensor.info.group == TensorGroup::kTrainable) return KindsOfValue(store_.format(), value);
  KindList alone;  // Frozen tensors and buffers are of any type, and have one chunk.
  alone.Add(ChunkKind::kParam);
  return alone;
}

void ModelTensors::AdoptTensor(int64_t index, StorageOwner& owner) {
  ModelTensor& tensor = tensors_[index];
  const bool on_meta = tensor.tensor.is_meta();
  const bool is_buffer = tensor.info.group == TensorGroup::kBuffer;
  const ManagedStorage::Place place = {ranges_[tensor.range].param(), tensor.place.offset_bytes,
                                       tensor.size_bytes(), traced_index(index),
                                       /*is_gradient=*/false};
  ManagedStorage::Traits traits = {
      absl::StrCat(is_buffer ? "buffer " : "parameter ", tensor.info.name), is_buffer, !on_meta};
  if (on_meta || !device_.is_cpu()) {
    tensor.storage = ManagedStorage::Make(place, std::move(traits), owner, device_);
    // set_data refuses to go from meta to another device, since a tensor that was used there may be
    // saved in a graph. A parameter fresh from a build scope is not; it must stay this very
    // TensorImpl, which the module and its submodules hold. Nor do views that were made on the CPU
    // follow one to a GPU.
    tensor.tensor.unsafeGetTensorImpl()->shallow_copy_from(
        MakeView(index, tensor.storage).getIntrusivePtr());
  } else {
    // In place, so that views made before follow.
    tensor.storage = tensor.tensor.storage().getWeakStorageImpl().lock();
    ManagedStorage::Adopt(*tensor.storage, place, std::move(traits), owner);
  }
  tensor.written = !on_meta;
  tensor.managed().set_version(tensor.tensor.unsafeGetTensorImpl()->version_counter());
}

at::Tensor ModelTensors::MakeView(int64_t index,
                                  c10::intrusive_ptr<c10::StorageImpl> storage) const {
  const ModelTensor& tensor = tensors_[index];
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)),
      c10::DispatchKeySet(device_.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA),
      tensor.tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.info.sizes, tensor.strides);
  return view;
}

absl::StatusOr<int64_t> ModelTensors::Find(absl::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) {
    return absl::NotFoundError(absl::StrCat("the model manages no tensor named ", name));
  }
  return found->second;
}

absl::Status ModelTensors::CheckStorage(int64_t index) const {
  const ModelTensor& tensor = tensors_[index];
  if (tensor.tensor.storage().unsafeGetStorageImpl() == tensor.storage.get() &&
      ManagedStorage::Of(tensor.storage.get()) != nullptr && tensor.tensor.storage_offset() == 0 &&
      tensor.tensor.sizes() == at::IntArrayRef(tensor.info.sizes) &&
      tensor.tensor.strides() == at::IntArrayRef(tensor.strides)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      tensor.info.name,
      " is no longer as it was managed: torch::load, set_data, module.to() or a swap of its "
      "storage gave it other bytes, or t_(), resize_ or as_strided_ another shape. Change values "
      "in place (under NoGradGuard: tensor.copy_; or ManagedModel::Write), load within a "
      "gemini::PlainMemory, or convert the module before it is managed"));
}

absl::Status ModelTensors::CheckStorages() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    GEMINI_RETURN_IF_ERROR(CheckStorage(static_cast<int64_t>(i)));
  }
  return absl::OkStatus();
}

absl::Status ModelTensors::CheckUnpinned(absl::string_view outcome) const {
  for (const ModelTensor& tensor : tensors_) {
    for (const auto& storage : {tensor.storage, tensor.grad_storage}) {
      const ManagedStorage* const managed = ManagedStorage::Of(storage.get());
      if (managed == nullptr || !managed->pinned()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          managed->name(), " is pinned by a ScopedFetch, or by an operator on another ",
          "thread: ", outcome, ". End the fetch first (Release, or its scope)"));
    }
  }
  return absl::OkStatus();
}

void ModelTensors::RetireAll(absl::string_view reason) {
  for (ModelTensor& tensor : tensors_) {
    for (const auto& storage : {tensor.storage, tensor.grad_storage}) {
      if (ManagedStorage* managed = ManagedStorage::Of(storage.get())) managed->Retire(reason);
    }
  }
}

}  // namespace gemini::client::hooks
