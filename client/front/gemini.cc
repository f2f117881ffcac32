// SPDX-License-Identifier: Apache-2.0
#include "client/front/gemini.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "ATen/core/VariableHooksInterface.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "client/front/front_model.h"
#include "client/front/front_session.h"
#include "client/front/model_file.h"
#include "client/front/optimizer_options.h"
#include "client/front/plain_tensor.h"
#include "client/front/quick_errors.h"
#include "gemini/system/status_macros.h"
#include "torch/serialize/archive.h"

namespace gemini {

using client::OptimizerSpec;
using client::front::FrontModel;
using client::front::FrontSession;
using client::front::NamedTensor;
using client::front::ParameterState;
using client::front::ThrowIfError;
using client::front::ValueOrThrow;
using client::hooks::ManagedModel;

Session::Session(SessionOptions options) : state_(ValueOrThrow(FrontSession::Make(options))) {}

Session::~Session() { state_->End(); }

void Session::Close() { ThrowIfError(state_->Close()); }

SessionStats Session::stats() const { return state_->stats(); }

void Session::Check() const { ThrowIfError(state_->status()); }

namespace {

// All that can be refused is, before the module changes.
std::shared_ptr<FrontModel> MakeModel(
    const std::shared_ptr<FrontSession>& session, torch::nn::Module& module,
    const torch::optim::OptimizerOptions& defaults,
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  const OptimizerSpec spec = ValueOrThrow(client::front::SpecOf(defaults));
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    const OptimizerSpec of_group = ValueOrThrow(client::front::SpecOf(group.options()));
    if (of_group.kind == spec.kind) continue;
    ThrowIfError(absl::InvalidArgumentError(
        "a parameter group has options of another optimizer than the defaults"));
  }
  ThrowIfError(client::front::CheckGroups(module, groups));
  auto model = ValueOrThrow(FrontModel::Make(session, module, spec));
  ThrowIfError(model->AssignGroups(groups));
  return model;
}

size_t NumTensors(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  size_t count = 0;
  for (const auto& group : groups) count += group.params().size();
  return count;
}

}  // namespace

Optimizer::Optimizer(Session& session, torch::nn::Module& module,
                     const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     std::unique_ptr<torch::optim::OptimizerOptions> defaults)
    : torch::optim::Optimizer(groups, std::move(defaults)),
      model_(MakeModel(session.state_, module, *defaults_, param_groups_)),
      num_assigned_(NumTensors(param_groups_)) {}

Optimizer::~Optimizer() = default;

void Optimizer::AssignGroups() {
  if (NumTensors(param_groups_) == num_assigned_) return;
  ThrowIfError(model_->AssignGroups(param_groups_));
  num_assigned_ = NumTensors(param_groups_);
}

torch::Tensor Optimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  AssignGroups();
  client::StepOptions options;
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    options.groups.push_back(ValueOrThrow(client::front::SpecOf(group.options())));
  }
  ThrowIfError(ValueOrThrow(model_->managed())->Step(options).status());
  return loss;
}

int64_t Optimizer::num_steps() const { return model_->num_steps(); }

namespace {

// What LibTorch's functions write and read: groups, and the states in plain memory meanwhile.
class PlainOptimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::Optimizer;
  torch::Tensor step(LossClosure) override { return {}; }
};

ParameterState ReadState(ManagedModel& model, const NamedTensor& tensor, OptimizerKind kind) {
  using client::front::ReadPlain;
  ParameterState state = {
      .step = ValueOrThrow(model.TensorStep(tensor.name)), .exp_avg = {}, .exp_avg_sq = {}};
  if (state.step == 0) return state;
  state.exp_avg = ValueOrThrow(ReadPlain(model, tensor.name, ChunkKind::kExpAvg, tensor.tensor));
  if (HasSecondMoment(kind)) {
    state.exp_avg_sq =
        ValueOrThrow(ReadPlain(model, tensor.name, ChunkKind::kExpAvgSq, tensor.tensor));
  }
  return state;
}

void WriteState(ManagedModel& model, const NamedTensor& tensor, const ParameterState& state) {
  using client::front::WritePlain;
  if (state.exp_avg.defined()) {
    ThrowIfError(WritePlain(model, tensor.name, ChunkKind::kExpAvg, tensor.tensor, state.exp_avg));
  }
  if (state.exp_avg_sq.defined()) {
    ThrowIfError(
        WritePlain(model, tensor.name, ChunkKind::kExpAvgSq, tensor.tensor, state.exp_avg_sq));
  }
  ThrowIfError(model.SetTensorStep(tensor.name, state.step));
}

}  // namespace

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  ManagedModel& model = *ValueOrThrow(model_->managed());
  PlainOptimizer plain(param_groups_, defaults_->clone());
  for (const NamedTensor& tensor : model_->tensors()) {
    if (tensor.group != TensorGroup::kTrainable) continue;
    auto state = client::front::ToTorch(model_->kind(), ReadState(model, tensor, model_->kind()));
    if (state != nullptr) {
      plain.state()[tensor.tensor.unsafeGetTensorImpl()] = std::move(state);
    }
  }
  client::front::WriteArchive(model_->kind(), archive, plain);
}

void Optimizer::load(torch::serialize::InputArchive& archive) {
  ManagedModel& model = *ValueOrThrow(model_->managed());
  PlainOptimizer plain(param_groups_, defaults_->clone());
  client::front::ReadArchive(model_->kind(), archive, plain);
  int64_t steps = model.step();
  for (const NamedTensor& tensor : model_->tensors()) {
    if (tensor.group != TensorGroup::kTrainable) continue;
    const auto found = plain.state().find(tensor.tensor.unsafeGetTensorImpl());
    // As LibTorch's optimizers do: a parameter of which the archive has no state keeps its own.
    if (found == plain.state().end()) continue;
    const ParameterState state = client::front::FromTorch(model_->kind(), *found->second);
    WriteState(model, tensor, state);
    steps = std::max(steps, state.step);
  }
  ThrowIfError(model.SetStep(steps));
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    param_groups_[i].set_options(plain.param_groups()[i].options().clone());
  }
}

void Save(const Optimizer& optimizer, const std::string& path) {
  ThrowIfError(client::front::SaveModel(*optimizer.model_, optimizer.param_groups(), path));
}

void Load(Optimizer& optimizer, const std::string& path) {
  ThrowIfError(client::front::LoadModel(*optimizer.model_, path, optimizer.param_groups()));
}

namespace {

uint64_t HashOf(const at::Tensor& tensor) {
  return std::hash<std::string_view>()(
      {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
}

// Not through the dispatcher: it is no edit of the parameter's values.
void SetData(const at::Tensor& tensor, const at::Tensor& data) {
  at::impl::GetVariableHooks()->set_data(tensor, data);
}

}  // namespace

struct PlainMemory::Values {
  struct Value {
    NamedTensor of;
    at::Tensor managed;  // An alias of the managed storage.
    at::Tensor plain;
    uint64_t hash = 0;  // Of the plain values at the beginning.
  };
  std::shared_ptr<FrontModel> model;
  std::vector<Value> values;

  // Makes the values that the module has now those of the session.
  absl::Status BringBack() {
    GEMINI_ASSIGN_OR_RETURN(ManagedModel* const managed, model->managed());
    // First all tensors are the session's again, whatever becomes of their values.
    std::vector<at::Tensor> plain_now;
    for (const Value& value : values) {
      plain_now.push_back(value.of.tensor.variable_data());
      SetData(value.of.tensor, value.managed);
    }
    absl::Status status;
    for (size_t i = 0; i < values.size(); ++i) {
      const Value& value = values[i];
      const at::Tensor& now = plain_now[i];
      const bool is_same =
          now.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl() ==
              value.plain.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl() &&
          HashOf(value.plain) == value.hash;
      // Values of 16 bits have more bits in the session: what has not changed is left alone.
      if (is_same) continue;
      status.Update(client::front::WritePlain(*managed, value.of.name, ChunkKind::kParam,
                                              value.of.tensor, now));
    }
    return status;
  }
};

PlainMemory::PlainMemory(Optimizer& optimizer)
    : values_(std::make_unique<Values>(Values{optimizer.model_, {}})) {
  ManagedModel& managed = *ValueOrThrow(values_->model->managed());
  values_->model->session().BeginPlain();
  for (const NamedTensor& tensor : values_->model->tensors()) {
    auto read = client::front::ReadPlain(managed, tensor.name, ChunkKind::kParam, tensor.tensor);
    absl::StatusOr<at::Tensor> plain = client::front::MakePlainTensor(
        tensor.tensor.sizes(), tensor.tensor.strides(), tensor.tensor.scalar_type());
    absl::Status status = read.ok() ? plain.status() : read.status();
    if (!status.ok()) {
      for (Values::Value& value : values_->values) SetData(value.of.tensor, value.managed);
      values_->model->session().EndPlain();
      ThrowIfError(status);
    }
    {
      const at::NoGradGuard no_gradient;
      plain->copy_(*read);
    }
    Values::Value value = {tensor, tensor.tensor.variable_data(), *plain, HashOf(*plain)};
    SetData(tensor.tensor, *plain);
    values_->values.push_back(std::move(value));
  }
}

PlainMemory::~PlainMemory() {
  FrontSession& session = values_->model->session();
  // The session has ended: the module keeps what it has.
  if (!session.is_open()) return;
  // Torch throws, for want of memory or for values on a device that is none.
  absl::Status status;
  try {
    status = values_->BringBack();
  } catch (const std::exception& error) {
    status = absl::InternalError(absl::StrCat("values of plain memory are lost: ", error.what()));
  }
  session.EndPlain();
  if (status.ok()) return;
  session.training()->session().Latch(status);
  try {
    TORCH_WARN("not all values of a gemini::PlainMemory came back at its end. The session keeps ",
               "its own in their place, and its next step throws this: ", status.ToString());
  } catch (const std::exception&) {  // A handler of warnings may throw; this must not.
  }
}

}  // namespace gemini
