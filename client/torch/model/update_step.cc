// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/update_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "client/kernels/trust_ratio.h"
#include "client/update/bundle_trust.h"
#include "client/update/bundle_update.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {
namespace {

int64_t NumBlocks(const ModelTensor& tensor, const TensorPiece& piece) {
  return NumNormBlocks(piece.size_bytes / ElementBytes(tensor.element));
}

}  // namespace

UpdateStep::~UpdateStep() {
  if (!on_device_) return;  // It has not begun.
  on_device_.reset();
  if (tensors_.phases() == nullptr) return;
  std::vector<int32_t> updated;
  for (size_t i = 0; is_taken_ && i < has_gradient_.size(); ++i) {
    if (has_gradient_[i]) updated.push_back(tensors_.traced_index(static_cast<int64_t>(i)));
  }
  tensors_.phases()->EndUpdate(updated, std::move(timed_));
}

bool UpdateStep::AnyGradient(BundleId bundle) const {
  return std::ranges::any_of(tensors_.pieces(bundle), [this](const TensorPiece& piece) -> bool {
    return has_gradient_[piece.tensor];
  });
}

absl::StatusOr<bool> UpdateStep::Collect(Gradients& gradients) {
  for (size_t i = 0; i < tensors_.tensors().size(); ++i) {
    if (!tensors_.tensors()[i].written) {
      return absl::FailedPreconditionError(
          absl::StrCat(tensors_.tensors()[i].info.name,
                       " has no values: Write each tensor of a meta module first"));
    }
    GEMINI_ASSIGN_OR_RETURN(const bool has, gradients.Collect(static_cast<int64_t>(i)));
    has_gradient_.push_back(has);
  }
  if (std::ranges::count(has_gradient_, true) == 0) return false;
  KeptForUpdate kept;
  PhaseTracker* const phases = tensors_.phases();
  if (phases != nullptr) kept = phases->BeginUpdate(tensors_.store());
  on_device_.emplace(tensors_.residency());
  gradients.Finish();
  KeepOnDevice(kept);
  if (phases != nullptr) phases->PauseMoves();
  return true;
}

void UpdateStep::KeepOnDevice(const KeptForUpdate& kept) {
  const auto is_own = [&](const auto& ranges) {
    return ranges.store == &tensors_.store() && AnyGradient(ranges.first);
  };
  for (const UpdateRanges& ranges : kept.updates) {
    if (is_own(ranges) && !edits_.IsEdited(tensors_.range_number(ranges.first))) {
      on_device_->Add(ranges).IgnoreError();
    }
  }
  for (const GradientRange& range : kept.late_gradients) {
    if (is_own(range)) on_device_->AddLateGradient(range).IgnoreError();
  }
}

absl::StatusOr<std::vector<double>> UpdateStep::SquaresOnDevice() {
  // Asked for together, as each answer takes a wait for the GPU.
  std::vector<GradientRun> runs;
  for (const ModelRange& range : tensors_.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      const std::byte* const gradient = on_device_->gradient(bundle);
      if (gradient == nullptr) break;
      for (const TensorPiece& piece : tensors_.pieces(bundle)) {
        if (!has_gradient_[piece.tensor]) continue;
        const int64_t width = ElementBytes(tensors_.tensors()[piece.tensor].element);
        runs.push_back({gradient + piece.chunk_offset_bytes, piece.size_bytes / width});
      }
    }
  }
  if (runs.empty()) return std::vector<double>();
  return kernels_.BlockSquaresOf(tensors_.store().format().element, runs);
}

absl::StatusOr<SquaresByTensor> UpdateStep::BlockSquares() {
  GEMINI_ASSIGN_OR_RETURN(const std::vector<double> squares_on_device, SquaresOnDevice());
  auto next_on_device = squares_on_device.begin();
  // By tensor: chunks come in another order than tensors where some span or groups differ.
  SquaresByTensor squares(tensors_.tensors().size());
  for (const ModelRange& range : tensors_.ranges()) {
    if (range.group != TensorGroup::kTrainable || !AnyGradient(range.first)) continue;
    const bool is_on_device = on_device_->gradient(range.first) != nullptr;
    if (!is_on_device) GEMINI_RETURN_IF_ERROR(tensors_.residency().Flush(range.grad()));
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      std::vector<std::vector<double>> of_pieces;
      if (!is_on_device) {
        GEMINI_ASSIGN_OR_RETURN(of_pieces, squares_.Find(bundle, has_gradient_));
      }
      const std::vector<TensorPiece>& pieces = tensors_.pieces(bundle);
      for (size_t piece = 0; piece < pieces.size(); ++piece) {
        if (!has_gradient_[pieces[piece].tensor]) continue;
        std::vector<double>& of_tensor = squares[pieces[piece].tensor];
        const ModelTensor& tensor = tensors_.tensors()[pieces[piece].tensor];
        of_tensor.reserve(static_cast<size_t>(NumNormBlocks(tensor.info.num_elements)));
        if (is_on_device) {
          const auto end = next_on_device + NumBlocks(tensor, pieces[piece]);
          of_tensor.insert(of_tensor.end(), std::exchange(next_on_device, end), end);
        } else {
          of_tensor.insert(of_tensor.end(), of_pieces[piece].begin(), of_pieces[piece].end());
        }
      }
    }
  }
  return squares;
}

absl::StatusOr<SquaresByTensor> UpdateStep::Squares() {
  GEMINI_ASSIGN_OR_RETURN(SquaresByTensor squares, BlockSquares());
  for (size_t i = 0; i < squares.size(); ++i) {
    if (std::isfinite(NormOf(squares[i]))) continue;
    return absl::OutOfRangeError(
        absl::StrCat("the gradient of ", tensors_.tensors()[i].info.name,
                     " holds a NaN or an infinity: the step was not taken"));
  }
  return squares;
}

absl::Status UpdateStep::LeaveDevice() {
  GEMINI_RETURN_IF_ERROR(tensors_.CheckUnpinned("the step was not taken"));
  Residency& residency = tensors_.residency();
  for (const ModelRange& range : tensors_.ranges()) {
    if (range.group != TensorGroup::kTrainable || on_device_->updates(range.first)) continue;
    const KindList kinds = UpdatedKinds(tensors_.store().format());
    for (const ChunkKind kind : kinds) {
      GEMINI_RETURN_IF_ERROR(residency.Flush(range.ids[kind]));
    }
    if (!on_device_->has_late_gradient(range.first)) {
      GEMINI_RETURN_IF_ERROR(residency.Flush(range.grad()));
    }
    if (!AnyGradient(range.first)) continue;
    for (const ChunkKind kind : kinds) GEMINI_RETURN_IF_ERROR(residency.Drop(range.ids[kind]));
  }
  return absl::OkStatus();
}

absl::Status UpdateStep::Begin(absl::Span<const OptimizerSpec> groups, double gradient_scale,
                               int64_t step, StepExchange& exchange, Intent& intent) {
  // Last look: an error may have been latched by another thread meanwhile.
  GEMINI_RETURN_IF_ERROR(session_.status());
  intent = MakeIntent(groups, gradient_scale, step);
  ChunkStore& store = tensors_.store();
  timed_.begin = session_.copies().Now();
  if (IsLayerWise(optimizer_.kind)) {
    GEMINI_RETURN_IF_ERROR(FindTrustRatios(groups, exchange, intent));
    if (!TimesTrustRatios(store.format(), store.memory().shape().states_on_nvme)) {
      timed_.begin = session_.copies().Now();
    }
  }
  on_device_->Update([&](const BundleInPlace& bundle) {
    UpdateInPlace(bundle, store.format(), store.chunk_bytes(), tensors_.pieces(bundle.bundle),
                  intent, kernels_);
  });
  timed_.end = session_.copies().Now();
  const std::vector<BundleId> bundles = BundlesInHost();
  std::vector<BundleId> late;
  std::ranges::copy_if(bundles, std::back_inserter(late),
                       [&](BundleId bundle) { return on_device_->has_late_gradient(bundle); });
  absl::Status status = kernels_.Finish();
  if (status.ok()) status = store.updates().Begin(intent, bundles, on_device_->versions(), late);
  if (!status.ok()) {
    on_device_->Undo();
    return status;
  }
  CountUpdates(intent);
  is_taken_ = true;
  return absl::OkStatus();
}

Intent UpdateStep::MakeIntent(absl::Span<const OptimizerSpec> groups, double gradient_scale,
                              int64_t step) const {
  Intent intent;
  intent.step = step;
  const OptimizerSpec& first = groups.front();
  intent.learning_rate = first.learning_rate;
  intent.beta1 = first.beta1;
  intent.beta2 = first.beta2;
  intent.epsilon = first.epsilon;
  intent.weight_decay = first.weight_decay;
  intent.momentum = first.momentum;
  intent.dampening = first.dampening;
  intent.nesterov = first.nesterov;
  for (const OptimizerSpec& group : groups.subspan(1)) {
    intent.more_groups.push_back({.learning_rate = group.learning_rate,
                                  .beta1 = group.beta1,
                                  .beta2 = group.beta2,
                                  .epsilon = group.epsilon,
                                  .weight_decay = group.weight_decay,
                                  .momentum = group.momentum,
                                  .dampening = group.dampening,
                                  .nesterov = group.nesterov});
  }
  intent.gradient_scale = gradient_scale;
  intent.optimizer = optimizer_.kind;
  intent.rounding_seed = optimizer_.rounding_seed;
  for (size_t i = 0; i < has_gradient_.size(); ++i) {
    const ModelTensor& tensor = tensors_.tensors()[i];
    intent.tensors.push_back({.has_gradient = has_gradient_[i],
                              .decayed = tensor.decayed,
                              .step = tensor.step + (has_gradient_[i] ? 1 : 0),
                              .group = tensor.group});
  }
  return intent;
}

absl::Status UpdateStep::FindTrustRatios(absl::Span<const OptimizerSpec> groups,
                                         StepExchange& exchange, Intent& intent) {
  ChunkStore& store = tensors_.store();
  std::vector<TrustSquares> squares(intent.tensors.size());
  std::vector<TrustRun> runs;  // On DEVICE: asked for together, as in SquaresOnDevice.
  for (const ModelRange& range : tensors_.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      const std::vector<TensorPiece>& pieces = tensors_.pieces(bundle);
      if (!on_device_->updates(bundle)) {
        GEMINI_RETURN_IF_ERROR(AppendBundleTrust(store, bundle, pieces, intent,
                                                 absl::MakeSpan(squares), session_.update_team()));
        continue;
      }
      std::ranges::move(TrustRunsOf(on_device_->chunks(bundle), store.format(), store.chunk_bytes(),
                                    pieces, intent),
                        std::back_inserter(runs));
    }
  }
  if (!runs.empty()) {
    GEMINI_ASSIGN_OR_RETURN(const TrustSquares of_runs, kernels_.TrustSquaresOf(runs));
    GiveToTensors(runs, of_runs, absl::MakeSpan(squares));
  }
  GEMINI_RETURN_IF_ERROR(exchange.CompleteTrustSquares(absl::MakeSpan(squares)));
  for (size_t i = 0; i < squares.size(); ++i) {
    if (!intent.tensors[i].has_gradient) continue;
    UpdateSettings settings = SettingsOf(intent, static_cast<int64_t>(i));
    settings.trust_coefficient = groups[intent.tensors[i].group].trust_coefficient;
    intent.tensors[i].trust_ratio =
        TrustRatio(settings, NormOf(squares[i].param), NormOf(squares[i].direction));
  }
  return absl::OkStatus();
}

std::vector<BundleId> UpdateStep::BundlesInHost() const {
  std::vector<BundleId> bundles;
  for (const ModelRange& range : tensors_.ranges()) {
    if (range.group != TensorGroup::kTrainable || on_device_->updates(range.first)) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      bundles.push_back(BundleId(range.first.value() + i));
    }
  }
  return bundles;
}

void UpdateStep::CountUpdates(const Intent& intent) {
  for (size_t i = 0; i < tensors_.ranges().size(); ++i) {
    if (AnyGradient(tensors_.ranges()[i].first)) edits_.Forget(static_cast<int64_t>(i));
  }
  for (size_t i = 0; i < intent.tensors.size(); ++i) {
    if (!intent.tensors[i].has_gradient) continue;
    ModelTensor& tensor = tensors_.tensors()[i];
    tensor.step = intent.tensors[i].step;
    // So that backward through a graph from before the step raises, as in plain Torch.
    tensor.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace gemini::client::hooks
