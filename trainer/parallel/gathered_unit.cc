// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/gathered_unit.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "c10/core/Allocator.h"
#include "c10/core/DeviceGuard.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/saved_state.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

std::vector<int64_t> SizesOf(const std::vector<UnitTensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const UnitTensor& tensor : tensors) sizes.push_back(c10::multiply_integers(tensor.sizes));
  return sizes;
}

// Returns another tensor of the same elements. No operator makes it: one would bring a managed
// parameter to DEVICE.
Tensor AliasOf(const Tensor& parameter, at::IntArrayRef sizes) {
  Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(parameter.storage()),
                                                          parameter.key_set(), parameter.dtype());
  alias.unsafeGetTensorImpl()->set_storage_offset(parameter.storage_offset());
  alias.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  // Backward through a graph from before an update raises.
  alias.unsafeGetTensorImpl()->set_version_counter(
      parameter.unsafeGetTensorImpl()->version_counter());
  return alias;
}

// What the functions below keep.
struct UnitInGraph : torch::CustomClassHolder {
  UnitInGraph(GatheredUnit& the_unit, UnitUse the_use, std::function<void()> then)
      : unit(the_unit), use(the_use), when_gathered(std::move(then)) {}
  GatheredUnit& unit;
  const UnitUse use;                          // Of views.
  const std::function<void()> when_gathered;  // Of GatherBehind; may be null.
};

void Save(AutogradContext* context, GatheredUnit& unit, UnitUse use,
          std::function<void()> when_gathered = nullptr) {
  SaveState(context, c10::make_intrusive<UnitInGraph>(unit, use, std::move(when_gathered)));
}

struct GivenGradients : torch::CustomClassHolder {
  explicit GivenGradients(variable_list the_gradients) : gradients(std::move(the_gradients)) {}
  variable_list gradients;
};

// Its backward gives each parameter a gradient that was made elsewhere.
class GiveFunction : public torch::autograd::Function<GiveFunction> {
 public:
  static Variable forward(AutogradContext* context, at::TensorList /*parameters*/,
                          const c10::intrusive_ptr<GivenGradients>& gradients) {
    SaveState(context, gradients);
    return at::empty({0}, torch::kFloat32);
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    variable_list given = std::move(SavedState<GivenGradients>(context)->gradients);
    given.resize(given.size() + 1);
    return given;
  }
};

// Of GatherBehind.
class GatherFunction : public torch::autograd::Function<GatherFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList outputs, GatheredUnit* unit,
                               std::function<void()> when_gathered) {
    Save(context, *unit, UnitUse::kOnce, std::move(when_gathered));
    context->set_materialize_grads(false);
    return {outputs.begin(), outputs.end()};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const c10::intrusive_ptr<UnitInGraph> saved = SavedState<UnitInGraph>(context);
    saved->unit.Hold();
    if (saved->when_gathered != nullptr) saved->when_gathered();
    gradients.resize(gradients.size() + 2);
    return gradients;
  }
};

}  // namespace

std::string PieceName(absl::string_view tensor, const ShardPiece& piece) {
  return absl::StrCat(tensor, "[", piece.first, ":", piece.first + piece.count, "]");
}

absl::string_view NameOfWhole(absl::string_view piece) { return piece.substr(0, piece.find('[')); }

// How backward adds gradients by tensor.
class GatheredUnit::Gradients {
 public:
  explicit Gradients(GatheredUnit& unit) : unit_(unit) {
    if (unit.options_.sync == GradientSync::kLast && unit.has_parts() && unit.options_.is_here) {
      const torch::TensorOptions made =
          torch::dtype(unit.buffer_.scalar_type())
              .device(unit.options_.device.is_meta() ? torch::kMeta : torch::kCPU);
      for (const UnitTensor& tensor : unit.tensors_) {
        sums_.push_back(at::empty(tensor.sizes, made));
      }
    }
    has_sum_.resize(sums_.size());
    if (unit.options_.copies != nullptr) {
      for (const Tensor& parameter : unit.parameters_) {
        for_copies_.push_back(at::empty(parameter.sizes(), parameter.options()));
      }
    }
    is_for_copies_.resize(for_copies_.size());
  }

  const std::vector<Tensor>& sums() const { return sums_; }
  const std::vector<Tensor>& for_copies() const { return for_copies_; }
  void set_last_micro_batch(bool is_last) { is_last_micro_batch_ = is_last; }
  void Forget() {
    has_sum_.assign(has_sum_.size(), false);
    is_for_copies_.assign(is_for_copies_.size(), false);
  }
  // Takes a micro-batch's, and returns those of the parameters.
  std::vector<Tensor> Take(std::vector<Tensor> gradients) {
    const bool adds_later = unit_.options_.sync == GradientSync::kLast && !is_last_micro_batch_;
    std::vector<Tensor> of_parameters =
        adds_later || unit_.is_alone() ? Keep(std::move(gradients)) : Sum(std::move(gradients));
    if (!for_copies_.empty()) KeepForCopies(of_parameters);
    return of_parameters;
  }
  // Adds what KeepForCopies has kept over the copies, and forgets it. Returns the gradients of the
  // parameters.
  std::vector<Tensor> SumOfCopies();

 private:
  // Keeps them for the ranks' sum. Returns those of the parameters, of replicas.
  std::vector<Tensor> Keep(std::vector<Tensor> gradients);
  // Returns by tensor what Keep has kept, or undefined tensors, and forgets it: what is returned
  // is good until the next one is kept.
  std::vector<Tensor> TakeKept();
  // Adds gradients of the parameters to those that wait for other copies', and drops them.
  void KeepForCopies(std::vector<Tensor>& of_parameters);
  // Adds them over the ranks. Returns those of the parameters.
  std::vector<Tensor> Sum(std::vector<Tensor> gradients);
  // Returns the sum over the ranks of this rank's part, for gradients that it drops, and notes in
  // `has_gradient` which tensors have one in any rank. What was kept is added.
  Tensor SumOfParts(std::vector<Tensor>& gradients, std::vector<bool>& has_gradient);

  GatheredUnit& unit_;
  std::vector<Tensor> sums_;
  std::vector<bool> has_sum_;       // By tensor, of sums_.
  std::vector<Tensor> for_copies_;  // By piece, as the next.
  std::vector<bool> is_for_copies_;
  bool is_last_micro_batch_ = true;
};

// `anchor` requires grad, so that the views do, also where this rank has no piece: every rank takes
// part in the sums.
class UnitViews : public torch::autograd::Function<UnitViews> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList /*parameters*/,
                               const Variable& /*anchor*/, GatheredUnit* unit, UnitUse use) {
    Save(context, *unit, use);
    context->set_materialize_grads(false);
    variable_list views = unit->Whole();
    variable_list frozen;
    for (size_t i = 0; i < views.size(); ++i) {
      if (!unit->tensors_[i].is_trained) frozen.push_back(views[i]);
    }
    context->mark_non_differentiable(frozen);
    return views;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const c10::intrusive_ptr<UnitInGraph> saved = SavedState<UnitInGraph>(context);
    GatheredUnit& unit = saved->unit;
    // What used the views is done. The sum needs its room.
    if (saved->use != UnitUse::kOnce) unit.Release();
    variable_list of_inputs = unit.gradients_->Take(std::move(gradients));
    of_inputs.resize(of_inputs.size() + 3);
    return of_inputs;
  }
};

GatheredUnit::GatheredUnit(std::string name, std::vector<UnitTensor> tensors,
                           torch::ScalarType type, Communicator& communicator,
                           const RankGroup& group, const UnitOptions& options)
    : name_(std::move(name)),
      tensors_(std::move(tensors)),
      communicator_(communicator),
      group_(group),
      options_(options),
      cut_(SizesOf(tensors_), has_parts() ? group.size() : 1, options.block_elements),
      pieces_(options.is_here ? cut_.PiecesOf(has_parts() ? group.place : 0)
                              : std::vector<ShardPiece>()) {
  // Pieces get to a GPU when they are managed.
  const torch::TensorOptions made =
      torch::dtype(type).device(options.device.is_meta() ? torch::kMeta : torch::kCPU);
  TORCH_CHECK(std::ranges::any_of(tensors_, &UnitTensor::is_trained), "nothing of ", name_,
              " is trained");
  TORCH_CHECK(!gathers() || options.sync == GradientSync::kEach,
              "shards have no room for gradients that are added later");
  for (const ShardPiece& piece : pieces_) {
    const UnitTensor& tensor = tensors_[static_cast<size_t>(piece.tensor)];
    const std::vector<int64_t> sizes = tensor.sizes.size() > 1
                                           ? std::vector<int64_t>{1, piece.count}
                                           : std::vector<int64_t>{piece.count};
    parameters_.push_back(at::empty(sizes, made).set_requires_grad(tensor.is_trained));
  }
  if (options.division == UnitDivision::kShardsAndWhole && options.is_here) {
    for (const UnitTensor& tensor : tensors_) wholes_.push_back(at::empty(tensor.sizes, made));
  }
  buffer_ = at::empty({0}, at::dtype(type).device(options.device));
  gradients_ = std::make_unique<Gradients>(*this);
}

std::vector<GatheredUnit::NamedTensor> GatheredUnit::BesidePieces() const {
  std::vector<NamedTensor> beside;
  for (size_t i = 0; i < wholes_.size(); ++i) {
    beside.push_back({absl::StrCat("whole.", tensors_[i].name), wholes_[i]});
  }
  const std::vector<Tensor>& sums = gradients_->sums();
  for (size_t i = 0; i < sums.size(); ++i) {
    beside.push_back({absl::StrCat("sum.", tensors_[i].name), sums[i]});
  }
  const std::vector<Tensor>& for_copies = gradients_->for_copies();
  for (size_t i = 0; i < for_copies.size(); ++i) {
    const auto tensor = static_cast<size_t>(pieces_[i].tensor);  // A rank has one piece of it.
    beside.push_back({absl::StrCat("copy.", tensors_[tensor].name), for_copies[i]});
  }
  return beside;
}

void GatheredUnit::AddOverCopies() {
  if (parameters_.empty() || options_.copies == nullptr) return;  // Copies are cut alike.
  const at::AutoGradMode with_graph(true);
  const Tensor given = GiveFunction::apply(
      at::TensorList(parameters_), c10::make_intrusive<GivenGradients>(gradients_->SumOfCopies()));
  given.backward(at::empty_like(given));
}

void GatheredUnit::set_last_micro_batch(bool is_last) { gradients_->set_last_micro_batch(is_last); }

void GatheredUnit::NoteUpdate() {
  gradients_->Forget();
  is_stale_ = true;
}

std::vector<Tensor> GatheredUnit::Views(UnitUse use) {
  Refresh();
  Hold();
  if (!at::GradMode::is_enabled()) return Whole();
  const Tensor anchor = at::empty({0}, torch::kFloat32).requires_grad_();
  return UnitViews::apply(at::TensorList(parameters_), anchor, this, use);
}

std::vector<Tensor> GatheredUnit::Whole() const {
  std::vector<Tensor> whole;
  for (const Tensor& one : wholes_) whole.push_back(AliasOf(one, one.sizes()));
  if (!whole.empty()) return whole;
  if (!gathers()) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      whole.push_back(
          AliasOf(parameters_[i], tensors_[static_cast<size_t>(pieces_[i].tensor)].sizes));
    }
    return whole;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    // No views as Torch knows them: those would belong to the buffer's version.
    Tensor& tensor = whole.emplace_back(at::empty({0}, buffer_.options()));
    tensor.set_(buffer_.storage(), cut_.place(static_cast<int64_t>(i)), tensors_[i].sizes);
  }
  return whole;
}

GatheredUnit::~GatheredUnit() {
  if (ahead_.work != nullptr) {
    // Its memory is in use. That it failed is no news here.
    Await(ahead_.work, std::make_shared<variable_list>(variable_list{ahead_.part, buffer_}))
        .IgnoreError();
  }
}

void GatheredUnit::BeginGather() {
  if (!gathers() || num_users_ > 0 || ahead_.work != nullptr) return;
  const auto bytes = static_cast<size_t>(cut_.num_elements()) * buffer_.element_size();
  c10::StorageImpl& memory = *buffer_.storage().unsafeGetStorageImpl();
  const c10::DeviceGuard here(buffer_.device());  // Allocators look for the thread's own.
  memory.set_data_ptr_noswap(c10::GetAllocator(buffer_.device().type())->allocate(bytes));
  memory.set_nbytes(bytes);
  ahead_ = GatherInto(memory.mutable_data());
}

void GatheredUnit::Hold() {
  if (!gathers()) return;
  BeginGather();
  if (++num_users_ > 1) return;
  const Gather gather = std::exchange(ahead_, {});
  AwaitOrThrow(gather.work, {gather.part, buffer_});
}

GatheredUnit::Gather GatheredUnit::GatherInto(void* memory) {
  const Tensor part = at::zeros({cut_.part_elements()}, buffer_.options());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    part.narrow(0, pieces_[i].place, pieces_[i].count).copy_(parameters_[i].detach().flatten());
  }
  return {.work = communicator_.AllGather(
              group_, part.const_data_ptr(), memory,
              cut_.part_elements() * static_cast<int64_t>(buffer_.element_size()),
              absl::StrCat("gather ", name_)),
          .part = part};
}

void GatheredUnit::Refresh() {
  if (wholes_.empty() || !is_stale_) return;
  // Nothing here requires a gradient, and grad mode stays as it is: what goes without it in a step
  // would be taken for an evaluation.
  const Tensor all = at::empty({cut_.num_elements()}, buffer_.options());
  const Gather gather = GatherInto(all.mutable_data_ptr());
  AwaitOrThrow(gather.work, {gather.part, all});
  for (size_t i = 0; i < wholes_.size(); ++i) {
    const auto tensor = static_cast<int64_t>(i);
    wholes_[i].copy_(all.narrow(0, cut_.place(tensor), cut_.size(tensor)).view(tensors_[i].sizes));
  }
  is_stale_ = false;
}

void GatheredUnit::Release() {
  if (!gathers()) return;
  TORCH_CHECK(num_users_ > 0, name_,
              " is no longer gathered: a forward began before the backward of the one before it");
  if (num_users_ > 1) {
    --num_users_;
  } else {
    ReleaseAll();
  }
}

void GatheredUnit::ReleaseAll() {
  num_users_ = 0;
  if (ahead_.work != nullptr) {
    const Gather gather = std::exchange(ahead_, {});
    AwaitOrThrow(gather.work, {gather.part, buffer_});
  }
  c10::StorageImpl& memory = *buffer_.storage().unsafeGetStorageImpl();
  memory.set_nbytes(0);
  memory.set_data_ptr_noswap(c10::DataPtr(nullptr, buffer_.device()));
}

std::vector<Tensor> GatheredUnit::GatherBehind(const std::vector<Tensor>& outputs,
                                               std::function<void()> when_gathered) {
  if (!gathers() || !at::GradMode::is_enabled()) return outputs;
  return GatherFunction::apply(at::TensorList(outputs), this, std::move(when_gathered));
}

std::vector<Tensor> GatheredUnit::Gradients::Keep(std::vector<Tensor> gradients) {
  std::vector<Tensor> of_parameters(unit_.parameters_.size());
  if (!unit_.has_parts()) {
    for (size_t i = 0; i < unit_.pieces_.size(); ++i) {
      Tensor& gradient = gradients[static_cast<size_t>(unit_.pieces_[i].tensor)];
      if (gradient.defined()) of_parameters[i] = gradient.reshape(unit_.parameters_[i].sizes());
      gradient.reset();
    }
    return of_parameters;
  }
  for (size_t i = 0; i < unit_.tensors_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    if (has_sum_[i]) {
      sums_[i].add_(gradients[i]);
    } else {
      sums_[i].copy_(gradients[i]);
    }
    has_sum_[i] = true;
    gradients[i].reset();
  }
  return of_parameters;
}

std::vector<Tensor> GatheredUnit::Gradients::TakeKept() {
  std::vector<Tensor> kept(unit_.tensors_.size());
  if (unit_.options_.sync == GradientSync::kEach) return kept;
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (has_sum_[i]) kept[i] = sums_[i];
    has_sum_[i] = false;
  }
  if (unit_.has_parts()) return kept;
  for (size_t i = 0; i < unit_.pieces_.size(); ++i) {
    Tensor& of_tensor = kept[static_cast<size_t>(unit_.pieces_[i].tensor)];
    if (for_copies_.empty()) {
      of_tensor = unit_.parameters_[i].grad();
      unit_.parameters_[i].mutable_grad().reset();
    } else if (is_for_copies_[i]) {
      of_tensor = for_copies_[i];
      is_for_copies_[i] = false;
    }
  }
  return kept;
}

void GatheredUnit::Gradients::KeepForCopies(std::vector<Tensor>& of_parameters) {
  for (size_t i = 0; i < of_parameters.size(); ++i) {
    if (!of_parameters[i].defined()) continue;
    if (is_for_copies_[i]) {
      for_copies_[i].add_(of_parameters[i]);
    } else {
      for_copies_[i].copy_(of_parameters[i]);
    }
    is_for_copies_[i] = true;
    of_parameters[i].reset();
  }
}

std::vector<Tensor> GatheredUnit::Gradients::SumOfCopies() {
  const RankLine line = {&unit_.communicator_, unit_.options_.copies};
  const Tensor ranks_with = at::zeros({std::ssize(for_copies_)}, torch::kFloat32);
  for (size_t i = 0; i < for_copies_.size(); ++i) {
    if (is_for_copies_[i]) ranks_with[static_cast<int64_t>(i)] = 1;
  }
  AddOverRanks(ranks_with, line, absl::StrCat("which copies of ", unit_.name_, " have gradients"));
  std::vector<Tensor> sums(for_copies_.size());
  for (size_t i = 0; i < for_copies_.size(); ++i) {
    const bool is_here = is_for_copies_[i];
    is_for_copies_[i] = false;
    // In a dry run the other ranks say nothing: they are taken to have what is not here.
    const bool is_dry = for_copies_[i].is_meta();
    if (ranks_with[static_cast<int64_t>(i)].item<float>() == 0 && !is_dry) continue;
    // Memory of its own: others write to it, and nothing else keeps a gradient that has left.
    sums[i] = is_here ? for_copies_[i].clone() : at::zeros_like(for_copies_[i]);
    AddOverRanks(sums[i], line, absl::StrCat("gradients of copies of ", unit_.name_));
  }
  return sums;
}

std::vector<Tensor> GatheredUnit::Gradients::Sum(std::vector<Tensor> gradients) {
  std::vector<bool> has_gradient;
  const Tensor part = SumOfParts(gradients, has_gradient);
  std::vector<Tensor> of_parameters(unit_.parameters_.size());
  for (size_t i = 0; i < unit_.pieces_.size(); ++i) {
    if (!has_gradient[static_cast<size_t>(unit_.pieces_[i].tensor)]) continue;
    // Memory of its own: nothing else keeps a gradient that has left.
    const Tensor gradient = part.narrow(0, unit_.pieces_[i].place, unit_.pieces_[i].count).clone();
    of_parameters[i] = gradient.view(unit_.parameters_[i].sizes());
  }
  return of_parameters;
}

Tensor GatheredUnit::Gradients::SumOfParts(std::vector<Tensor>& gradients,
                                           std::vector<bool>& has_gradient) {
  std::vector<Tensor> kept = TakeKept();
  const Tensor all = at::zeros({unit_.cut_.num_elements()}, unit_.buffer_.options());
  const Tensor ranks_with = at::zeros({std::ssize(unit_.tensors_)}, torch::kFloat32);
  for (size_t i = 0; i < unit_.tensors_.size(); ++i) {
    if (!kept[i].defined() && !gradients[i].defined()) continue;
    const auto tensor = static_cast<int64_t>(i);
    ranks_with[tensor] = 1;
    Tensor own = all.narrow(0, unit_.cut_.place(tensor), unit_.cut_.size(tensor))
                     .view(unit_.tensors_[i].sizes);
    if (!kept[i].defined()) {
      own.copy_(gradients[i]);
    } else {
      own.copy_(kept[i].view(unit_.tensors_[i].sizes));
      if (gradients[i].defined()) own.add_(gradients[i]);
    }
    kept[i].reset();
    gradients[i].reset();  // Its memory is needed for the sum.
  }
  Tensor part = all;
  const SumType type = SumTypeOf(unit_.buffer_.scalar_type());
  const std::string site = absl::StrCat("gradients of ", unit_.name_);
  Work sum;
  if (unit_.has_parts()) {
    part = at::empty({unit_.cut_.part_elements()}, unit_.buffer_.options());
    sum = unit_.communicator_.ReduceScatter(unit_.group_, type, all.const_data_ptr(),
                                            part.mutable_data_ptr(), part.numel(), site);
  } else {
    sum = unit_.communicator_.AllReduce(unit_.group_, type, part.mutable_data_ptr(), part.numel(),
                                        site);
  }
  const Work which = unit_.communicator_.AllReduce(
      unit_.group_, SumType::kFp32, ranks_with.mutable_data_ptr(), ranks_with.numel(),
      absl::StrCat("which gradients of ", unit_.name_));
  AwaitOrThrow(sum, {all, part, ranks_with});
  AwaitOrThrow(which, {ranks_with});
  for (int64_t i = 0; i < ranks_with.numel(); ++i) {
    has_gradient.push_back(ranks_with[i].item<float>() > 0);
  }
  return part;
}

}  // namespace gemini::trainer
