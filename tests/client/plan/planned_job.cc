// SPDX-License-Identifier: Apache-2.0
#include "tests/client/plan/planned_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gemini::client {
namespace {

// So many copies are not waited for, where operators may be late.
constexpr size_t kGradientsUnderWay = 3;

// Moments of step 0 are zeros.
uint64_t MomentTag(int64_t step, const TensorPiece& piece, ChunkKind kind) {
  return step == 0 ? 0 : 1'000'000'007u * step + 2 * piece.tensor + (kind == ChunkKind::kExpAvg);
}

}  // namespace

PlannedJob::PlannedJob(Session& session, std::vector<TracedTensor> tensors, PlanSource* plans,
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
  for (int64_t i = 0; i < layout_.num_bundles(); ++i) {
    auto spare = store_->AcquireSpare();
    EXPECT_OK(spare);
    FillParams(BundleId(i), spare->data(), host_);
    std::pair<ChunkKind, HostChunk> fresh(ChunkKind::kParam, *std::move(spare));
    EXPECT_OK(store_->Commit(BundleId(i), 0, absl::MakeSpan(&fresh, 1)));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorPlace& place = layout_.place(static_cast<int64_t>(i));
    const auto add = [&](ChunkKind kind) {
      return session_.residency().AddRange(*store_, place.first_bundle, place.num_bundles, kind);
    };
    params_.push_back(add(ChunkKind::kParam));
    for (const ChunkKind kind : {ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
      if (trainable(i)) moments_.push_back(add(kind));
    }
    grads_.push_back(trainable(i) ? add(ChunkKind::kGrad) : RangeId());
  }
  updates_ = std::make_unique<UpdateQueue>(
      *store_,
      [this](BundleId bundle) {
        return session_.residency().WriteBack(grads_[Pieces(bundle).front().tensor]);
      },
      [this](BundleId bundle) { return UpdateInHost(bundle); },
      [this](const absl::Status& status) { EXPECT_TRUE(may_fail_ || status.ok()) << status; });
  phases_ = std::make_unique<PhaseTracker>(session.residency(), session.device_budget(), plans,
                                           session.timeline());
  EXPECT_EQ(phases_->AddTensors(*store_, tensors_), 0);
}

PlannedJob::~PlannedJob() {
  updates_.reset();
  phases_.reset();
}

absl::Status PlannedJob::Operator(const std::vector<TensorUse>& uses, bool gradients_enabled) {
  const int64_t waits_before = operators_->num_waits();
  const int64_t op = phases_->BeginOperator(uses, gradients_enabled);
  std::vector<RangeId> ranges;
  for (const TensorUse& use : uses) ranges.push_back(RangeOf(use));
  std::vector<std::byte*> addresses(ranges.size());
  const absl::Status status = session_.residency().Pin(ranges, absl::MakeSpan(addresses));
  if (status.ok()) {
    for (size_t i = 0; i < uses.size(); ++i) {
      std::byte* const at = addresses[i] + layout_.place(uses[i].tensor).offset_bytes;
      const int64_t size_bytes = tensors_[uses[i].tensor].size_bytes;
      uint64_t& tag = TagOf(uses[i]);
      if (tag != 0 || uses[i].kind != ChunkKind::kGrad) {
        operators_->Check(at, size_bytes, {.tag = tag},
                          absl::StrCat(ChunkKindName(uses[i].kind), " of tensor ", uses[i].tensor));
      }
      if (!uses[i].written) continue;
      tag = NewTag();
      operators_->Fill(at, size_bytes, {.tag = tag});
    }
    for (size_t i = 0; i < uses.size(); ++i) {
      session_.residency().Unpin(ranges[i], uses[i].written);
    }
  }
  phases_->EndOperator(op);
  waits_in_operators_ += operators_->num_waits() - waits_before;
  return status;
}

absl::Status PlannedJob::Gradient(int32_t tensor) {
  phases_->GradientLeaves(tensor);
  grad_tags_[tensor] = NewTag();
  const int64_t size_bytes = tensors_[tensor].size_bytes;
  std::byte* const bytes = operators_->MakeBuffer(size_bytes);
  operators_->Fill(bytes, size_bytes, {.tag = grad_tags_[tensor]});
  const auto is_written = [&](const TensorPiece& piece) {
    return piece.tensor != tensor && grad_tags_[piece.tensor] != 0;
  };
  const bool alone = std::ranges::none_of(Pieces(layout_.place(tensor).first_bundle), is_written);
  auto write = session_.residency().BeginWrite(grads_[tensor], layout_.place(tensor).offset_bytes,
                                               bytes, size_bytes, alone);
  if (!write.ok()) return write.status();
  gradient_writes_.push_back(*std::move(write));
  const size_t most = operators_->may_be_late() ? kGradientsUnderWay : 0;
  while (gradient_writes_.size() > most) gradient_writes_.pop_front();  // Waits for it.
  if (most == 0) operators_->Finish();
  return absl::OkStatus();
}

absl::Status PlannedJob::Update() {
  absl::Status status = updates_->Finish();
  if (!status.ok()) return status;
  gradient_writes_.clear();
  operators_->Finish();  // What is done in HOST is no operator.
  const KeptForUpdate kept = phases_->BeginUpdate(*store_);
  std::vector<int32_t> updated;
  {
    DeviceUpdate on_device(session_.residency());
    for (const UpdateRanges& ranges : kept.updates) status.Update(on_device.Add(ranges));
    for (const GradientRange& late : kept.late_gradients) {
      status.Update(on_device.AddLateGradient(late));
    }
    phases_->PauseMoves();
    std::vector<BundleId> bundles, late;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!trainable(i)) continue;
      updated.push_back(static_cast<int32_t>(i));
      const BundleId first = layout_.place(static_cast<int64_t>(i)).first_bundle;
      if (on_device.updates(first)) continue;
      for (const RangeId range : RangesOf(i)) {
        if (range == grads_[i] && on_device.has_late_gradient(first)) continue;
        status.Update(session_.residency().Flush(range));
      }
    }
    for (int64_t i = 0; i < layout_.num_bundles(); ++i) {
      if (layout_.group(BundleId(i)) != TensorGroup::kTrainable) continue;
      if (!on_device.updates(BundleId(i))) bundles.push_back(BundleId(i));
      if (on_device.has_late_gradient(BundleId(i))) late.push_back(BundleId(i));
    }
    old_tags_ = tags_;
    old_grad_tags_ = grad_tags_;
    old_moments_ = moments_step_;
    if (status.ok()) {
      for (const int32_t tensor : updated) tags_[tensor] = NewTag();
      moments_step_ = step_ + 1;
      on_device.Update([this](const BundleInPlace& chunks) { UpdateOnDevice(chunks); });
      operators_->Finish();  // The intent says that it is done.
      updates_on_device_ += static_cast<int64_t>(kept.updates.size());
      late_gradients_ += static_cast<int64_t>(kept.late_gradients.size());
      Intent intent;
      intent.step = ++step_;
      intent.tensors.resize(tensors_.size());
      status = store_->updates().Begin(intent, bundles, on_device.versions(), late);
    }
    if (!status.ok()) {
      on_device.Undo();
      tags_ = old_tags_;
      moments_step_ = old_moments_;
    }
    for (const int32_t tensor : updated) {
      if (!status.ok() || on_device.updates(layout_.place(tensor).first_bundle)) continue;
      for (const RangeId range : RangesOf(tensor)) {
        if (range != grads_[tensor]) status.Update(session_.residency().Drop(range));
      }
    }
  }
  if (status.ok()) updates_->Wake();
  phases_->EndUpdate(status.ok() ? updated : std::vector<int32_t>());
  return status;
}

std::vector<TensorPiece> PlannedJob::Pieces(BundleId bundle) const {
  const int64_t chunk_bytes = session_.chunk_bytes();
  std::vector<TensorPiece> pieces;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorPlace& place = layout_.place(static_cast<int64_t>(i));
    const int64_t index = bundle.value() - place.first_bundle.value();
    if (index < 0 || index >= place.num_bundles) continue;
    const int64_t begin = index * chunk_bytes;
    pieces.push_back({.tensor = static_cast<int64_t>(i),
                      .chunk_offset_bytes = index == 0 ? place.offset_bytes : 0,
                      .tensor_offset_bytes = begin,
                      .size_bytes = std::min(tensors_[i].size_bytes - begin, chunk_bytes)});
  }
  return pieces;
}

void PlannedJob::FillParams(BundleId bundle, std::byte* chunk, JobOperators& by) {
  for (const TensorPiece& piece : Pieces(bundle)) {
    by.Fill(chunk + piece.chunk_offset_bytes, piece.size_bytes,
            {tags_[piece.tensor], piece.tensor_offset_bytes});
  }
}

void PlannedJob::CheckMoments(BundleId bundle, ChunkKind kind, const std::byte* chunk,
                              JobOperators& by) {
  for (const TensorPiece& piece : Pieces(bundle)) {
    by.Check(chunk + piece.chunk_offset_bytes, piece.size_bytes,
             {MomentTag(old_moments_, piece, kind), piece.tensor_offset_bytes},
             absl::StrCat(ChunkKindName(kind), " of tensor ", piece.tensor, " at step ", step_));
  }
}

void PlannedJob::FillMoments(BundleId bundle, ChunkKind kind, std::byte* chunk, JobOperators& by) {
  for (const TensorPiece& piece : Pieces(bundle)) {
    by.Fill(chunk + piece.chunk_offset_bytes, piece.size_bytes,
            {MomentTag(moments_step_, piece, kind), piece.tensor_offset_bytes});
  }
}

void PlannedJob::CheckGradients(BundleId bundle, const std::byte* chunk, JobOperators& by) {
  for (const TensorPiece& piece : Pieces(bundle)) {
    const uint64_t tag = old_grad_tags_[piece.tensor];
    if (tag == 0) continue;
    by.Check(chunk + piece.chunk_offset_bytes, piece.size_bytes, {tag, piece.tensor_offset_bytes},
             absl::StrCat("gradient of tensor ", piece.tensor, " at step ", step_));
  }
}

absl::StatusOr<bool> PlannedJob::UpdateInHost(BundleId bundle) {
  const auto has_gradient = [this](const TensorPiece& piece) {
    return old_grad_tags_[piece.tensor] != 0;
  };
  if (std::ranges::any_of(Pieces(bundle), has_gradient)) {
    auto grad = store_->AcquireForUpdate(ChunkOf(bundle, ChunkKind::kGrad));
    if (!grad.ok()) return grad.status();
    CheckGradients(bundle, grad->data(), host_);
  }
  std::vector<std::pair<ChunkKind, HostChunk>> fresh;
  for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
    auto spare = store_->AcquireSpareForUpdate();
    if (!spare.ok()) return spare.status();
    if (kind == ChunkKind::kParam) {
      FillParams(bundle, spare->data(), host_);
    } else {
      if (store_->HasPayload(ChunkOf(bundle, kind))) {
        auto old = store_->AcquireForUpdate(ChunkOf(bundle, kind));
        if (!old.ok()) return old.status();
        CheckMoments(bundle, kind, old->data(), host_);
      } else {
        EXPECT_EQ(old_moments_, 0) << "bundle " << bundle.value() << " lost its moments";
      }
      FillMoments(bundle, kind, spare->data(), host_);
    }
    fresh.emplace_back(kind, *std::move(spare));
  }
  const absl::Status status = store_->Commit(bundle, step_, absl::MakeSpan(fresh));
  if (!status.ok()) return status;
  return true;
}

void PlannedJob::UpdateOnDevice(const BundleInPlace& bundle) {
  std::byte* const param = bundle.chunks[ChunkKind::kParam];
  for (const TensorPiece& piece : Pieces(bundle.bundle)) {
    const int64_t at = piece.chunk_offset_bytes;
    operators_->Check(param + at, piece.size_bytes,
                      {old_tags_[piece.tensor], piece.tensor_offset_bytes},
                      absl::StrCat("parameter of tensor ", piece.tensor, " at step ", step_));
  }
  CheckGradients(bundle.bundle, bundle.chunks[ChunkKind::kGrad], *operators_);
  FillParams(bundle.bundle, param, *operators_);
  for (const ChunkKind kind : {ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
    CheckMoments(bundle.bundle, kind, bundle.chunks[kind], *operators_);
    FillMoments(bundle.bundle, kind, bundle.chunks[kind], *operators_);
  }
}

std::vector<RangeId> PlannedJob::RangesOf(size_t tensor) const {
  const auto before = static_cast<size_t>(
      std::count_if(tensors_.begin(), tensors_.begin() + static_cast<int64_t>(tensor),
                    [](const TracedTensor& at) { return at.group == TensorGroup::kTrainable; }));
  return {params_[tensor], moments_[2 * before], moments_[2 * before + 1], grads_[tensor]};
}

}  // namespace gemini::client
