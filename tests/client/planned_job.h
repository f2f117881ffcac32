// SPDX-License-Identifier: Apache-2.0
// A training job without Torch, whose tensors name their bytes: every operator checks what it reads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/phase_tracker.h"
#include "client/plan_source.h"
#include "client/update_queue.h"
#include "gemini/layout.h"
#include "tests/client/local_plans.h"
#include "tests/client/session_fixture.h"

namespace gemini::client {

class PlannedJob {
 public:
  // Opens a space for the tensors, with slots beside those that it needs, and commits all parameters.
  PlannedJob(Session& session, std::vector<TracedTensor> tensors, PlanSource* plans,
             int64_t host_slots, int64_t nvme_slots)
      : session_(session), tensors_(std::move(tensors)) {
    std::vector<TensorSpec> specs;
    for (const TracedTensor& tensor : tensors_)
      specs.push_back({"", tensor.size_bytes, tensor.group});
    layout_ = *Layout::Pack(specs, session.chunk_bytes());
    auto store = session.OpenSpace({.name = "job",
                                    .num_bundles = layout_.num_bundles(),
                                    .host_slots = host_slots,
                                    .nvme_slots = nvme_slots,
                                    .num_tensors = static_cast<int64_t>(tensors_.size())});
    EXPECT_OK(store);
    store_ = *store;
    tags_.resize(tensors_.size());
    grad_tags_.resize(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) tags_[i] = NewTag();
    for (int64_t bundle = 0; bundle < layout_.num_bundles(); ++bundle) {
      EXPECT_OK(CommitBundle(BundleId(bundle), 0, tags_, *store_->AcquireSpare()));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const TensorPlace& place = layout_.place(static_cast<int64_t>(i));
      Residency& residency = session_.residency();
      params_.push_back(
          residency.AddRange(*store_, place.first_bundle, place.num_bundles, ChunkKind::kParam));
      grads_.push_back(!trainable(i) ? RangeId()
                                     : residency.AddRange(*store_, place.first_bundle,
                                                          place.num_bundles, ChunkKind::kGrad));
    }
    updates_ = std::make_unique<UpdateQueue>(
        *store_,
        [this](BundleId bundle) {
          auto spare = store_->AcquireSpareForUpdate();
          if (!spare.ok()) return spare.status();
          return CommitBundle(bundle, step_, tags_, *std::move(spare));
        },
        [](const absl::Status& status) { EXPECT_OK(status); });
    phases_ = std::make_unique<PhaseTracker>(session.residency(), session.device_budget(), plans,
                                             session.timeline());
    EXPECT_EQ(phases_->AddTensors(*store_, tensors_), 0);
  }
  ~PlannedJob() {
    updates_.reset();
    phases_.reset();
  }

  // Pins the tensors, compares what is there, writes to those that are to be written.
  absl::Status Operator(const std::vector<TensorUse>& uses, bool gradients_enabled = true) {
    const int64_t op = phases_->BeginOperator(uses, gradients_enabled);
    std::vector<RangeId> ranges;
    for (const TensorUse& use : uses) ranges.push_back(RangeOf(use));
    std::vector<std::byte*> addresses(ranges.size());
    const absl::Status status = session_.residency().Pin(ranges, absl::MakeSpan(addresses));
    if (status.ok()) {
      for (size_t i = 0; i < uses.size(); ++i) {
        std::byte* const at = addresses[i] + layout_.place(uses[i].tensor).offset_bytes;
        uint64_t& tag = TagOf(uses[i]);
        EXPECT_TRUE(Holds(at, tensors_[uses[i].tensor].size_bytes, tag))
            << "tensor " << uses[i].tensor << " kind " << static_cast<int>(uses[i].kind);
        if (!uses[i].written) continue;
        tag = NewTag();
        Fill(at, 0, tensors_[uses[i].tensor].size_bytes, tag);
      }
      for (size_t i = 0; i < uses.size(); ++i) {
        session_.residency().Unpin(ranges[i], uses[i].written);
      }
    }
    phases_->EndOperator(op);
    return status;
  }

  // The tensor's gradient is complete and goes to its chunk.
  absl::Status Gradient(int32_t tensor) {
    phases_->GradientLeaves(tensor);
    grad_tags_[tensor] = NewTag();
    std::vector<std::byte> bytes(tensors_[tensor].size_bytes);
    Fill(bytes.data(), 0, tensors_[tensor].size_bytes, grad_tags_[tensor]);
    return session_.residency().Write(grads_[tensor], layout_.place(tensor).offset_bytes,
                                      bytes.data(), tensors_[tensor].size_bytes);
  }

  // Begins the update of all trainable tensors, in the order of the layout; a thread goes on with it.
  absl::Status Update() {
    absl::Status status = updates_->Finish();
    if (!status.ok()) return status;
    phases_->BeginUpdate();
    std::vector<BundleId> bundles;
    std::vector<int32_t> updated;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!trainable(i)) continue;
      updated.push_back(static_cast<int32_t>(i));
      status.Update(session_.residency().Flush(grads_[i]));
      status.Update(session_.residency().Flush(params_[i]));
    }
    Intent intent;
    intent.step = ++step_;
    intent.tensors.resize(tensors_.size());
    for (int64_t i = 0; i < layout_.num_bundles(); ++i) {
      if (layout_.group(BundleId(i)) == TensorGroup::kTrainable) bundles.push_back(BundleId(i));
    }
    if (status.ok()) status = store_->BeginUpdate(intent, bundles);
    if (status.ok()) {
      for (const int32_t tensor : updated) {
        tags_[tensor] = NewTag();
        status.Update(session_.residency().Drop(params_[tensor]));
      }
      updates_->Wake();
    }
    phases_->EndUpdate(status.ok() ? updated : std::vector<int32_t>());
    return status;
  }
  absl::Status FinishUpdates() { return updates_->Finish(); }

  bool trainable(size_t tensor) const { return tensors_[tensor].group == TensorGroup::kTrainable; }
  bool has_gradient(int32_t tensor) const { return grad_tags_[tensor] != 0; }
  const std::vector<TracedTensor>& tensors() const { return tensors_; }
  const Layout& layout() const { return layout_; }
  PhaseTracker& phases() { return *phases_; }
  ChunkStore& store() { return *store_; }
  RangeId RangeOf(const TensorUse& use) const {
    return use.kind == ChunkKind::kParam ? params_[use.tensor] : grads_[use.tensor];
  }

 private:
  static void Fill(std::byte* at, int64_t first_byte, int64_t size_bytes, uint64_t tag) {
    uint64_t* const words = reinterpret_cast<uint64_t*>(at);
    for (int64_t i = 0; i < size_bytes / 8; ++i) words[i] = tag * 1'000'003 + first_byte / 8 + i;
  }
  static bool Holds(const std::byte* at, int64_t size_bytes, uint64_t tag) {
    const uint64_t* const words = reinterpret_cast<const uint64_t*>(at);
    for (int64_t i = 0; i < size_bytes / 8; ++i) {
      if (words[i] != tag * 1'000'003 + i) return false;
    }
    return true;
  }
  uint64_t NewTag() { return ++last_tag_; }
  uint64_t& TagOf(const TensorUse& use) {
    return use.kind == ChunkKind::kParam ? tags_[use.tensor] : grad_tags_[use.tensor];
  }
  absl::Status CommitBundle(BundleId bundle, int64_t step, const std::vector<uint64_t>& tags,
                            HostChunk chunk) {
    const int64_t chunk_bytes = session_.chunk_bytes();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const TensorPlace& place = layout_.place(static_cast<int64_t>(i));
      const int64_t index = bundle.value() - place.first_bundle.value();
      if (index < 0 || index >= place.num_bundles) continue;
      const int64_t begin = index * chunk_bytes;
      Fill(chunk.data() + (index == 0 ? place.offset_bytes : 0), begin,
           std::min(tensors_[i].size_bytes - begin, chunk_bytes), tags[i]);
    }
    std::pair<ChunkKind, HostChunk> fresh(ChunkKind::kParam, std::move(chunk));
    return store_->Commit(bundle, step, absl::MakeSpan(&fresh, 1));
  }

  Session& session_;
  const std::vector<TracedTensor> tensors_;
  Layout layout_;
  ChunkStore* store_ = nullptr;
  std::vector<RangeId> params_, grads_;
  std::vector<uint64_t> tags_, grad_tags_;  // grad_tags_: 0 before the first gradient.
  uint64_t last_tag_ = 0;
  int64_t step_ = 0;
  std::unique_ptr<UpdateQueue> updates_;
  std::unique_ptr<PhaseTracker> phases_;
};

}  // namespace gemini::client
