// SPDX-License-Identifier: Apache-2.0
// Keeps the tensors of one managed model and where their bytes are stored: which pieces of which
// tensors fill each bundle, and which ranges operators pin.
// Owner: the model. One thread uses it, except for the tensors' storages, which any thread uses.
// Units: tensors and ranges by index, bundles by BundleId, bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "client/plan/phase_tracker.h"
#include "client/torch/hook/managed_storage.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/module_tensors.h"
#include "client/update/bundle_update.h"
#include "gemini/element_type.h"
#include "gemini/layout.h"
#include "gemini/state_format.h"

namespace gemini::client::hooks {

struct ModelTensor {
  ManagedTensorInfo info;
  ElementType element = ElementType::kFp32;
  std::vector<int64_t> strides;
  at::Tensor tensor;
  TensorPlace place;
  int64_t range = 0;                                  // Index in ModelTensors::ranges().
  c10::intrusive_ptr<c10::StorageImpl> storage;       // Null until adopted.
  c10::intrusive_ptr<c10::StorageImpl> grad_storage;  // Null until the first gradient.
  int64_t step = 0;                                   // Updates so far.
  bool decayed = false;                               // Whether weight decay applies.
  int group = 0;                                      // Its parameter group.
  bool written = false;  // Whether it has values, copied at Manage or given by Write.

  int64_t size_bytes() const { return info.num_elements * ElementBytes(element); }
  ManagedStorage& managed() const { return *ManagedStorage::Of(storage.get()); }
};

// A range that is pinned as a whole: one bundle's chunk, or all of a spanning tensor's.
struct ModelRange {
  BundleId first;
  int64_t num_bundles = 1;
  TensorGroup group = TensorGroup::kTrainable;
  KindMap<RangeId> ids;  // For the kinds that the group has.

  RangeId param() const { return ids[ChunkKind::kParam]; }
  RangeId grad() const { return ids[ChunkKind::kGrad]; }
};

class ModelTensors {
 public:
  // Places the tensors as `layout` says, adds their ranges to `residency`, and adds the tensors to
  // `phases` if it is not null. `store`, `residency` and `phases` outlive this. No tensor changes
  // yet. `device`: where operators will find the tensors.
  static std::unique_ptr<ModelTensors> Make(std::vector<ModuleTensor> tensors, const Layout& layout,
                                            ChunkStore& store, Residency& residency,
                                            int64_t decay_min_dimensions, c10::Device device,
                                            PhaseTracker* phases = nullptr);

  // Copies the bytes of tensors on the CPU into chunks committed at step 0, and turns all tensors
  // into managed ones, each as soon as its bytes are copied. Tensors on meta stay unwritten. On an
  // error some are managed and some are not: the model is lost.
  absl::Status MoveIntoChunks(StorageOwner& owner);

  std::vector<ModelTensor>& tensors() { return tensors_; }
  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  const std::vector<ModelRange>& ranges() const { return ranges_; }
  const std::vector<TensorPiece>& pieces(BundleId bundle) const { return pieces_[bundle.value()]; }
  // Returns the index of the range of the bundle's first tensor; there is one.
  int64_t range_number(BundleId bundle) const {
    return tensors_[pieces(bundle).front().tensor].range;
  }
  const ModelRange& range_of(BundleId bundle) const { return ranges_[range_number(bundle)]; }
  int64_t num_bundles() const { return static_cast<int64_t>(pieces_.size()); }
  ChunkStore& store() { return store_; }
  const ChunkStore& store() const { return store_; }
  Residency& residency() { return residency_; }
  c10::Device device() const { return device_; }
  // May be null if nothing is traced.
  PhaseTracker* phases() { return phases_; }
  // A tensor's index in the session's traces; -1 without phases.
  int32_t traced_index(int64_t tensor) const {
    return phases_ == nullptr ? -1 : first_traced_ + static_cast<int32_t>(tensor);
  }

  // Returns the kinds of the chunks of a bundle that together hold the tensor's fp32 values of kind
  // `value`, which the tensor must have.
  KindList KindsOf(const ModelTensor& tensor, ChunkKind value) const;

  // Returns the tensor's index. NOT_FOUND: no such name.
  absl::StatusOr<int64_t> Find(absl::string_view name) const;

  // Check that the tensor, or each tensor, has the storage, sizes and strides that it was given.
  // FAILED_PRECONDITION: it does not (names it).
  absl::Status CheckStorage(int64_t index) const;
  absl::Status CheckStorages() const;
  // Checks that no ScopedFetch and no operator pins a tensor or its gradient. FAILED_PRECONDITION:
  // one does (names the tensor and says `outcome`).
  absl::Status CheckUnpinned(absl::string_view outcome) const;

  // Makes a tensor over `storage` with the sizes and strides of tensor `index`.
  at::Tensor MakeView(int64_t index, c10::intrusive_ptr<c10::StorageImpl> storage) const;

  // Disconnects all storages, for the session's end.
  void RetireAll(absl::string_view reason);

 private:
  ModelTensors(ChunkStore& store, Residency& residency, c10::Device device)
      : store_(store), residency_(residency), device_(device) {}
  // Commits the parameters that a bundle's tensors on the CPU hold, and their masters, at step 0.
  absl::Status CommitValues(BundleId bundle);
  void AdoptTensor(int64_t index, StorageOwner& owner);

  ChunkStore& store_;
  Residency& residency_;
  const c10::Device device_;
  PhaseTracker* phases_ = nullptr;
  int32_t first_traced_ = 0;
  std::vector<ModelTensor> tensors_;
  std::vector<ModelRange> ranges_;
  std::vector<std::vector<TensorPiece>> pieces_;  // By BundleId, in chunk order.
  std::unordered_map<std::string, int64_t> by_name_;
};

}  // namespace gemini::client::hooks
