// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/optimizer_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "client/kernels/trust_ratio.h"
#include "client/update/bundle_trust.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {
namespace {

bool AnyGradient(const std::vector<TensorPiece>& pieces, const std::vector<bool>& has_gradient) {
  return std::ranges::any_of(pieces,
                             [&](const TensorPiece& piece) { return has_gradient[piece.tensor]; });
}

int64_t NumBlocks(const ModelTensor& tensor, const TensorPiece& piece) {
  return NumNormBlocks(piece.size_bytes / ElementBytes(tensor.element));
}

// The block squares of each piece with a gradient whose gradient is on DEVICE, in the order of
// ranges, bundles and pieces: asked for together, as each answer takes a wait for the GPU.
absl::StatusOr<std::vector<double>> SquaresOnDevice(const ModelTensors& tensors,
                                                    const DeviceUpdate& on_device,
                                                    const std::vector<bool>& has_gradient,
                                                    DeviceKernels& kernels) {
  std::vector<GradientRun> runs;
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      const std::byte* const gradient = on_device.gradient(bundle);
      if (gradient == nullptr) break;
      for (const TensorPiece& piece : tensors.pieces(bundle)) {
        if (!has_gradient[piece.tensor]) continue;
        const int64_t width = ElementBytes(tensors.tensors()[piece.tensor].element);
        runs.push_back({gradient + piece.chunk_offset_bytes, piece.size_bytes / width});
      }
    }
  }
  if (runs.empty()) return std::vector<double>();
  return kernels.BlockSquaresOf(tensors.store().format().element, runs);
}

}  // namespace

void AddToDeviceUpdate(const ModelTensors& tensors, const ParameterEdits& edits,
                       const std::vector<bool>& has_gradient, const KeptForUpdate& kept,
                       DeviceUpdate& on_device) {
  const auto is_own = [&](const auto& ranges) {
    return ranges.store == &tensors.store() &&
           AnyGradient(tensors.pieces(ranges.first), has_gradient);
  };
  for (const UpdateRanges& ranges : kept.updates) {
    if (is_own(ranges) && !edits.IsEdited(tensors.range_number(ranges.first))) {
      on_device.Add(ranges).IgnoreError();
    }
  }
  for (const GradientRange& range : kept.late_gradients) {
    if (is_own(range)) on_device.AddLateGradient(range).IgnoreError();
  }
}

void ForgetEdits(const ModelTensors& tensors, const std::vector<bool>& has_gradient,
                 ParameterEdits& edits) {
  for (size_t i = 0; i < tensors.ranges().size(); ++i) {
    if (AnyGradient(tensors.pieces(tensors.ranges()[i].first), has_gradient)) {
      edits.Forget(static_cast<int64_t>(i));
    }
  }
}

absl::StatusOr<double> GradientNorm(ModelTensors& tensors, GradientSquares& gradient_squares,
                                    const DeviceUpdate& on_device,
                                    const std::vector<bool>& has_gradient, DeviceKernels& kernels) {
  GEMINI_ASSIGN_OR_RETURN(const std::vector<double> squares_on_device,
                          SquaresOnDevice(tensors, on_device, has_gradient, kernels));
  auto next_on_device = squares_on_device.begin();
  // By tensor: chunks come in another order than tensors where some span or groups differ.
  std::vector<std::vector<double>> squares(tensors.tensors().size());
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    if (!AnyGradient(tensors.pieces(range.first), has_gradient)) continue;
    const bool is_on_device = on_device.gradient(range.first) != nullptr;
    if (!is_on_device) GEMINI_RETURN_IF_ERROR(tensors.residency().Flush(range.grad()));
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      std::vector<std::vector<double>> of_pieces;
      if (!is_on_device) {
        GEMINI_ASSIGN_OR_RETURN(of_pieces, gradient_squares.Find(bundle, has_gradient));
      }
      const std::vector<TensorPiece>& pieces = tensors.pieces(bundle);
      for (size_t piece = 0; piece < pieces.size(); ++piece) {
        if (!has_gradient[pieces[piece].tensor]) continue;
        std::vector<double>& of_tensor = squares[pieces[piece].tensor];
        const ModelTensor& tensor = tensors.tensors()[pieces[piece].tensor];
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
  double sum = 0;
  for (size_t i = 0; i < squares.size(); ++i) {
    if (!std::isfinite(NormOf(squares[i]))) {
      return absl::OutOfRangeError(
          absl::StrCat("the gradient of ", tensors.tensors()[i].info.name,
                       " holds a NaN or an infinity: the step was not taken"));
    }
    sum = AddInOrder(sum, squares[i]);
  }
  const double norm = std::sqrt(sum);
  if (!std::isfinite(norm)) {
    return absl::OutOfRangeError("the norm of all gradients overflows: the step was not taken");
  }
  return norm;
}

absl::Status LeaveDeviceForUpdate(ModelTensors& tensors, const DeviceUpdate& on_device,
                                  const std::vector<bool>& has_gradient) {
  GEMINI_RETURN_IF_ERROR(tensors.CheckUnpinned("the step was not taken"));
  Residency& residency = tensors.residency();
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable || on_device.updates(range.first)) continue;
    const KindList kinds = UpdatedKinds(tensors.store().format());
    for (const ChunkKind kind : kinds) {
      GEMINI_RETURN_IF_ERROR(residency.Flush(range.ids[kind]));
    }
    if (!on_device.has_late_gradient(range.first)) {
      GEMINI_RETURN_IF_ERROR(residency.Flush(range.grad()));
    }
    if (!AnyGradient(tensors.pieces(range.first), has_gradient)) continue;
    for (const ChunkKind kind : kinds) GEMINI_RETURN_IF_ERROR(residency.Drop(range.ids[kind]));
  }
  return absl::OkStatus();
}

Intent MakeIntent(const ModelTensors& tensors, const std::vector<bool>& has_gradient,
                  const OptimizerSpec& optimizer, absl::Span<const OptimizerSpec> groups,
                  double gradient_scale, int64_t step) {
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
  intent.optimizer = optimizer.kind;
  intent.rounding_seed = optimizer.rounding_seed;
  for (size_t i = 0; i < has_gradient.size(); ++i) {
    const ModelTensor& tensor = tensors.tensors()[i];
    intent.tensors.push_back({.has_gradient = has_gradient[i],
                              .decayed = tensor.decayed,
                              .step = tensor.step + (has_gradient[i] ? 1 : 0),
                              .group = tensor.group});
  }
  return intent;
}

absl::Status FindTrustRatios(ModelTensors& tensors, absl::Span<const OptimizerSpec> groups,
                             const DeviceUpdate& on_device, DeviceKernels& kernels,
                             WorkerTeam& team, Intent& intent) {
  const ChunkStore& store = tensors.store();
  std::vector<TrustSquares> squares(intent.tensors.size());
  std::vector<TrustRun> runs;  // On DEVICE: asked for together, as in SquaresOnDevice.
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      const std::vector<TensorPiece>& pieces = tensors.pieces(bundle);
      if (!on_device.updates(bundle)) {
        GEMINI_RETURN_IF_ERROR(AppendBundleTrust(tensors.store(), bundle, pieces, intent,
                                                 absl::MakeSpan(squares), team));
        continue;
      }
      std::ranges::move(TrustRunsOf(on_device.chunks(bundle), store.format(), store.chunk_bytes(),
                                    pieces, intent),
                        std::back_inserter(runs));
    }
  }
  if (!runs.empty()) {
    GEMINI_ASSIGN_OR_RETURN(const TrustSquares of_runs, kernels.TrustSquaresOf(runs));
    GiveToTensors(runs, of_runs, absl::MakeSpan(squares));
  }
  for (size_t i = 0; i < squares.size(); ++i) {
    if (!intent.tensors[i].has_gradient) continue;
    UpdateSettings settings = SettingsOf(intent, static_cast<int64_t>(i));
    settings.trust_coefficient = groups[intent.tensors[i].group].trust_coefficient;
    intent.tensors[i].trust_ratio =
        TrustRatio(settings, NormOf(squares[i].param), NormOf(squares[i].direction));
  }
  return absl::OkStatus();
}

std::vector<BundleId> BundlesToUpdate(const ModelTensors& tensors, const DeviceUpdate& on_device) {
  std::vector<BundleId> bundles;
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable || on_device.updates(range.first)) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      bundles.push_back(BundleId(range.first.value() + i));
    }
  }
  return bundles;
}

std::vector<BundleId> BundlesWithLateGradients(const std::vector<BundleId>& bundles,
                                               const DeviceUpdate& on_device) {
  std::vector<BundleId> late;
  std::ranges::copy_if(bundles, std::back_inserter(late),
                       [&](BundleId bundle) { return on_device.has_late_gradient(bundle); });
  return late;
}

void CountUpdates(ModelTensors& tensors, const Intent& intent) {
  for (size_t i = 0; i < intent.tensors.size(); ++i) {
    if (!intent.tensors[i].has_gradient) continue;
    ModelTensor& tensor = tensors.tensors()[i];
    tensor.step = intent.tensors[i].step;
    // So that backward through a graph from before the step raises, as in plain Torch.
    tensor.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace gemini::client::hooks
