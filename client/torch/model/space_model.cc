// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/space_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "client/torch/model/update_step.h"
#include "client/update/bundle_update.h"
#include "client/update/step_exchange.h"
#include "gemini/shm/commit_shm.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {
namespace {

// A commit word has no room for more steps (gemini/shm/commit_shm.h), and one is to follow.
constexpr int64_t kMostSteps = (int64_t{1} << kCommitStepBits) - 1;

}  // namespace

SpaceModel::SpaceModel(std::unique_ptr<ModelTensors> tensors, const OptimizerSpec& optimizer,
                       int64_t max_open_chunks, Session& session, OperatorHook& hook)
    : session_(session),
      hook_(hook),
      optimizer_(optimizer),
      tensors_(std::move(tensors)),
      writer_(*tensors_, max_open_chunks),
      edits_(*tensors_),
      squares_(
          tensors_->store(),
          [this](BundleId bundle) { return absl::MakeConstSpan(tensors_->pieces(bundle)); },
          session.update_team()) {
  updates_ = std::make_unique<UpdateQueue>(
      tensors_->store(),
      [this](BundleId bundle) {
        return tensors_->residency().WriteBack(tensors_->range_of(bundle).grad());
      },
      [this](BundleId bundle) {
        return UpdateBundle(tensors_->store(), bundle, tensors_->pieces(bundle), intent_,
                            session_.update_team());
      },
      [this](const absl::Status& error) { session_.Latch(error); });
}

absl::StatusOr<std::unique_ptr<SpaceModel>> SpaceModel::Make(std::unique_ptr<ModelTensors> tensors,
                                                             const OptimizerSpec& optimizer,
                                                             int64_t max_open_chunks,
                                                             Session& session, OperatorHook& hook) {
  auto model = std::unique_ptr<SpaceModel>(
      new SpaceModel(std::move(tensors), optimizer, max_open_chunks, session, hook));
  GEMINI_RETURN_IF_ERROR(model->tensors_->MoveIntoChunks(*model));
  for (const ModelTensor& tensor : model->tensors_->tensors()) {
    model->infos_.push_back(tensor.info);
    hook.ReserveScratch(tensor.size_bytes());
  }
  model->gradients_ = std::make_unique<Gradients>(
      *model->tensors_, *model, session, hook.device().kernels(), model->squares_,
      [model = model.get()](BundleId bundle) {
        model->updates_->Later([model, bundle] { model->squares_.Prepare(bundle); });
      });
  return model;
}

SpaceModel::~SpaceModel() {
  gradients_.reset();
  updates_.reset();
  tensors_->RetireAll("the session is closed");
}

absl::StatusOr<std::vector<OptimizerSpec>> SpaceModel::PrepareStep(const StepOptions& options) {
  GEMINI_RETURN_IF_ERROR(session_.CheckServer());
  if (!(options.loss_scale >= 1 && std::isfinite(options.loss_scale))) {
    return absl::InvalidArgumentError(
        absl::StrCat("a loss scale of ", options.loss_scale, ": it is 1 or more"));
  }
  GEMINI_ASSIGN_OR_RETURN(std::vector<OptimizerSpec> groups, GroupsForStep(options));
  GEMINI_RETURN_IF_ERROR(writer_.Flush());
  GEMINI_RETURN_IF_ERROR(tensors_->CheckStorages());
  GEMINI_RETURN_IF_ERROR(CheckUnpinned("the step was not taken"));
  GEMINI_RETURN_IF_ERROR(FinishUpdates());
  return groups;
}

absl::StatusOr<StepResult> SpaceModel::Step(const StepOptions& options) {
  const absl::StatusOr<std::vector<OptimizerSpec>> groups = PrepareStep(options);
  if (!groups.ok()) return RefuseStep(options.exchange, groups.status());
  NoExchange alone;
  StepExchange& exchange = options.exchange != nullptr ? *options.exchange : alone;
  const int64_t step_before = step_;
  GEMINI_ASSIGN_OR_RETURN(const StepResult result, TakeStep(options, exchange, *groups));
  if (step_ == step_before) return result;
  session_.PublishStep(step_, hook_.device().outside_bytes());
  hook_.device().EndStep();
  if (!options.overlap_update) GEMINI_RETURN_IF_ERROR(tensors_->store().updates().AwaitCommits());
  return result;
}

absl::StatusOr<std::vector<OptimizerSpec>> SpaceModel::GroupsForStep(
    const StepOptions& options) const {
  std::vector<OptimizerSpec> groups = options.groups;
  if (groups.empty()) {
    groups.push_back(optimizer_);
    if (options.learning_rate >= 0) groups[0].learning_rate = options.learning_rate;
  }
  for (const ModelTensor& tensor : tensors_->tensors()) {
    if (tensor.group < static_cast<int>(groups.size())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.info.name, " is in parameter group ", tensor.group, ", and the step has ",
        groups.size(), ": give each group its hyper-parameters"));
  }
  if (groups.size() > kMaxParameterGroups) {
    return absl::InvalidArgumentError(absl::StrCat(groups.size(), " parameter groups: at most ",
                                                   kMaxParameterGroups, " are supported"));
  }
  for (const OptimizerSpec& group : groups) {
    // As kernels have it, in fp32: of a decay that is 1 there, updates would be NaN.
    const auto fraction = [](double value) { return value >= 0 && static_cast<float>(value) < 1; };
    if (std::isfinite(group.learning_rate) && fraction(group.beta1) && fraction(group.beta2) &&
        group.epsilon >= 0 && std::isfinite(group.epsilon) && std::isfinite(group.weight_decay) &&
        fraction(group.momentum) && std::isfinite(group.dampening)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter group ", &group - groups.data(), " has learning rate ", group.learning_rate,
        ", betas ", group.beta1, " and ", group.beta2, ", epsilon ", group.epsilon, ", momentum ",
        group.momentum, ", dampening ", group.dampening, " and weight decay ", group.weight_decay,
        ": all must be finite, betas and momentum from 0 to below 1, epsilon not below 0"));
  }
  return groups;
}

absl::StatusOr<StepResult> SpaceModel::TakeStep(const StepOptions& options, StepExchange& exchange,
                                                const std::vector<OptimizerSpec>& groups) {
  UpdateStep step(*tensors_, edits_, squares_, optimizer_, session_, hook_.device().kernels());
  const absl::StatusOr<bool> has_gradients = step.Collect(*gradients_);
  absl::StatusOr<SquaresByTensor> own = SquaresByTensor(infos_.size());
  if (!has_gradients.ok()) own = has_gradients.status();
  if (has_gradients.ok() && *has_gradients) own = step.Squares();
  const absl::StatusOr<std::optional<double>> norm = exchange.AgreeOnNorm(own);
  if (!norm.ok()) {
    if (!absl::IsOutOfRange(norm.status())) return norm.status();
    if (!options.skip_non_finite) return absl::FailedPreconditionError(norm.status().message());
    return StepResult{.step = step_, .skipped = true};
  }
  if (!own.ok()) return own.status();
  if (!norm->has_value()) return StepResult{.step = step_};
  StepResult result;
  result.grad_norm = **norm / options.loss_scale;
  result.clip_coefficient = ClipCoefficient(result.grad_norm, options.max_grad_norm);
  result.step = step_ + 1;
  absl::Status begun;
  if (*has_gradients) {
    begun = step.LeaveDevice();
    // Nothing is pending: the update thread does not read the intent now.
    if (begun.ok()) {
      begun = step.Begin(groups, result.clip_coefficient / options.loss_scale, result.step,
                         exchange, intent_);
    }
  } else if (IsLayerWise(optimizer_.kind)) {  // Other processes have gradients.
    std::vector<TrustSquares> none(infos_.size());
    begun = exchange.CompleteTrustSquares(absl::MakeSpan(none));
  }
  if (!begun.ok()) {
    // The others take the step.
    if (options.exchange != nullptr) session_.Latch(begun);
    return begun;
  }
  step_ = result.step;
  if (!*has_gradients) return result;
  gradients_->BeginStep();
  updates_->Wake();
  return result;
}

absl::Status SpaceModel::AwaitTensor(int64_t index) {
  const TensorPlace& place = tensors_->tensors()[index].place;
  for (int64_t i = 0; i < place.num_bundles; ++i) {
    const BundleId bundle(place.first_bundle.value() + i);
    if (tensors_->store().updates().AwaitCommit(bundle).ok()) continue;
    // What failed may go now, for a model that is to be saved.
    FinishUpdates().IgnoreError();
    GEMINI_RETURN_IF_ERROR(tensors_->store().updates().AwaitCommit(bundle));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SpaceModel::FindKind(absl::string_view name, ChunkKind kind) const {
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, tensors_->Find(name));
  // Moments do not depend on what the parameter has become meanwhile.
  if (kind == ChunkKind::kParam || kind == ChunkKind::kGrad) {
    GEMINI_RETURN_IF_ERROR(tensors_->CheckStorage(index));
  }
  bool has_kind = tensors_->tensors()[index].info.group == TensorGroup::kTrainable;
  switch (kind) {
    case ChunkKind::kParam:
      return index;
    case ChunkKind::kExpAvg:
    case ChunkKind::kGrad:
      break;
    case ChunkKind::kExpAvgSq:
      has_kind = has_kind && HasSecondMoment(optimizer_.kind);
      break;
    case ChunkKind::kMaster:
    case ChunkKind::kMasterUpper:
    case ChunkKind::kExpAvgUpper:
    case ChunkKind::kExpAvgSqUpper:
      has_kind = false;  // A part of another kind's values, in the formats that have it.
      break;
  }
  if (has_kind) return index;
  return absl::NotFoundError(
      absl::StrCat(name, " has no ", ChunkKindName(kind),
                   " to access: a trained parameter has values of param, of its optimizer's "
                   "moments and of grad, any other tensor of param"));
}

absl::StatusOr<int64_t> SpaceModel::TensorStep(absl::string_view name) const {
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, tensors_->Find(name));
  return tensors_->tensors()[index].step;
}

absl::Status SpaceModel::SetStep(int64_t step) {
  GEMINI_RETURN_IF_ERROR(FinishUpdates());
  if (step < step_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model is at step ", step_, ": it cannot go back to ", step));
  }
  if (step >= kMostSteps) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step, ": at most ", kMostSteps - 1));
  }
  step_ = step;
  return absl::OkStatus();
}

absl::Status SpaceModel::SetTensorStep(absl::string_view name, int64_t step) {
  GEMINI_RETURN_IF_ERROR(FinishUpdates());
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, tensors_->Find(name));
  if (step < 0 || step >= kMostSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step, " of ", name, ": 0 to ", kMostSteps - 1));
  }
  tensors_->tensors()[index].step = step;
  return absl::OkStatus();
}

absl::Status SpaceModel::SetGroup(absl::string_view name, int64_t group) {
  GEMINI_RETURN_IF_ERROR(FinishUpdates());
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, tensors_->Find(name));
  if (group < 0 || group >= kMaxParameterGroups) {
    return absl::InvalidArgumentError(absl::StrCat("parameter group ", group, " of ", name,
                                                   ": at most ", kMaxParameterGroups,
                                                   " groups are supported"));
  }
  tensors_->tensors()[index].group = static_cast<int>(group);
  return absl::OkStatus();
}

absl::Status SpaceModel::ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                                   ByteSink sink) {
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, FindKind(name, kind));
  // One that is in no chunk is taken as Step would take it.
  if (kind == ChunkKind::kGrad) {
    GEMINI_RETURN_IF_ERROR(gradients_->Collect(index).status());
    gradients_->Finish();
  } else {
    GEMINI_RETURN_IF_ERROR(AwaitTensor(index));
  }
  return writer_.Read(index, kind, range, sink);
}

absl::Status SpaceModel::Write(absl::string_view name, ChunkKind kind, ByteSource source) {
  GEMINI_RETURN_IF_ERROR(session_.status());
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, FindKind(name, kind));
  if (kind == ChunkKind::kGrad) {
    return absl::NotFoundError(
        absl::StrCat("the gradient of ", name, " is not for Write: set grad()"));
  }
  // All of them: the writer holds slots between its calls.
  GEMINI_RETURN_IF_ERROR(FinishUpdates());
  return writer_.Write(index, kind, step_, source);
}

absl::StatusOr<ScopedFetch> SpaceModel::Fetch(const at::Tensor& tensor, FetchAccess access) {
  GEMINI_RETURN_IF_ERROR(session_.status());
  ManagedStorage* const managed =
      tensor.defined() ? ManagedStorage::Of(tensor.unsafeGetTensorImpl()) : nullptr;
  if (managed == nullptr || managed->retired()) {
    return absl::FailedPreconditionError("not a tensor in the session's memory: nothing to fetch");
  }
  if (access == FetchAccess::kReadWrite && managed->is_parameter()) {
    GEMINI_RETURN_IF_ERROR(managed->owner().PrepareWrite(*managed));
  }
  GEMINI_RETURN_IF_ERROR(hook_.Pin(*managed));
  auto storage = tensor.storage().getWeakStorageImpl().lock();
  auto* const base = static_cast<std::byte*>(storage->mutable_data());
  return ScopedFetch(std::move(storage),
                     base + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()),
                     access, hook_.generation());
}

absl::Status SpaceModel::Prepare(ManagedStorage& storage) {
  GEMINI_RETURN_IF_ERROR(writer_.Flush());
  if (storage.ready()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      storage.name(), " has no values yet: Write each tensor of a meta module before its use"));
}

}  // namespace gemini::client::hooks
