// SPDX-License-Identifier: Apache-2.0
#include "client/front/optimizer_options.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/front/gemini.h"
#include "gemini/system/status_macros.h"
#include "torch/optim/serialize.h"
#include "torch/serialize/archive.h"

namespace gemini {

void LambOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

void LambOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void LarsOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, trust_coefficient);
}

void LarsOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(trust_coefficient);
}

namespace client::front {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

absl::Status CheckRange(absl::string_view name, double value, bool below_one) {
  if (value >= 0 && (!below_one || value < 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the option ", name, " is ", value, ": it is 0 or more", below_one ? ", and below 1" : ""));
}

absl::Status RefuseAmsgrad(bool amsgrad) {
  if (!amsgrad) return absl::OkStatus();
  return absl::UnimplementedError(
      "the option amsgrad is not supported: leave it out, or train with torch::optim");
}

template <typename Options>
OptimizerSpec AdamLikeSpec(OptimizerKind kind, const Options& options) {
  return {.kind = kind,
          .learning_rate = options.lr(),
          .beta1 = std::get<0>(options.betas()),
          .beta2 = std::get<1>(options.betas()),
          .epsilon = options.eps(),
          .weight_decay = options.weight_decay()};
}

absl::StatusOr<OptimizerSpec> Translate(const torch::optim::OptimizerOptions& options) {
  if (const auto* const adamw = dynamic_cast<const AdamWOptions*>(&options)) {
    GEMINI_RETURN_IF_ERROR(RefuseAmsgrad(adamw->amsgrad()));
    return AdamLikeSpec(OptimizerKind::kAdamW, *adamw);
  }
  if (const auto* const adam = dynamic_cast<const AdamOptions*>(&options)) {
    GEMINI_RETURN_IF_ERROR(RefuseAmsgrad(adam->amsgrad()));
    return AdamLikeSpec(OptimizerKind::kAdam, *adam);
  }
  if (const auto* const lamb = dynamic_cast<const LambOptions*>(&options)) {
    return AdamLikeSpec(OptimizerKind::kLamb, *lamb);
  }
  if (const auto* const lars = dynamic_cast<const LarsOptions*>(&options)) {
    GEMINI_RETURN_IF_ERROR(CheckRange("trust_coefficient", lars->trust_coefficient(), false));
    return OptimizerSpec{.kind = OptimizerKind::kLars,
                         .learning_rate = lars->lr(),
                         .weight_decay = lars->weight_decay(),
                         .momentum = lars->momentum(),
                         .trust_coefficient = lars->trust_coefficient()};
  }
  if (const auto* const sgd = dynamic_cast<const SGDOptions*>(&options)) {
    if (sgd->nesterov() && (sgd->momentum() <= 0 || sgd->dampening() != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the option nesterov needs a momentum and no dampening: momentum is ",
                       sgd->momentum(), ", dampening ", sgd->dampening()));
    }
    return OptimizerSpec{.kind = OptimizerKind::kSgd,
                         .learning_rate = sgd->lr(),
                         .weight_decay = sgd->weight_decay(),
                         .momentum = sgd->momentum(),
                         // LibTorch looks at it where there is momentum only.
                         .dampening = sgd->momentum() > 0 ? sgd->dampening() : 0,
                         .nesterov = sgd->nesterov()};
  }
  return absl::UnimplementedError(
      "these options are of an optimizer that is not supported: AdamW, Adam, SGD, Lamb and Lars "
      "are");
}

// The types by which LibTorch's archives are written and read.
template <typename Function>
auto WithTypes(OptimizerKind kind, const Function& function) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return function.template operator()<AdamWParamState, AdamWOptions>();
    case OptimizerKind::kAdam:
      return function.template operator()<AdamParamState, AdamOptions>();
    case OptimizerKind::kSgd:
      return function.template operator()<SGDParamState, SGDOptions>();
    case OptimizerKind::kLamb:
      return function.template operator()<AdamParamState, LambOptions>();
    case OptimizerKind::kLars:
      return function.template operator()<SGDParamState, LarsOptions>();
  }
  return function.template operator()<AdamWParamState, AdamWOptions>();
}

}  // namespace

absl::StatusOr<OptimizerSpec> SpecOf(const torch::optim::OptimizerOptions& options) {
  GEMINI_ASSIGN_OR_RETURN(OptimizerSpec spec, Translate(options));
  GEMINI_RETURN_IF_ERROR(CheckRange("lr", spec.learning_rate, false));
  GEMINI_RETURN_IF_ERROR(CheckRange("betas (first)", spec.beta1, true));
  GEMINI_RETURN_IF_ERROR(CheckRange("betas (second)", spec.beta2, true));
  GEMINI_RETURN_IF_ERROR(CheckRange("eps", spec.epsilon, false));
  GEMINI_RETURN_IF_ERROR(CheckRange("weight_decay", spec.weight_decay, false));
  GEMINI_RETURN_IF_ERROR(CheckRange("momentum", spec.momentum, true));
  spec.decay_min_dimensions = 0;
  return spec;
}

void SetOptions(const OptimizerSpec& spec, torch::optim::OptimizerOptions& options) {
  const auto set_adam = [&](auto& adam) {
    adam.lr(spec.learning_rate)
        .betas(std::make_tuple(spec.beta1, spec.beta2))
        .eps(spec.epsilon)
        .weight_decay(spec.weight_decay);
  };
  const auto set_momentum = [&](auto& sgd) {
    sgd.lr(spec.learning_rate).momentum(spec.momentum).weight_decay(spec.weight_decay);
  };
  if (auto* const adamw = dynamic_cast<AdamWOptions*>(&options)) set_adam(*adamw);
  if (auto* const adam = dynamic_cast<AdamOptions*>(&options)) set_adam(*adam);
  if (auto* const lamb = dynamic_cast<LambOptions*>(&options)) set_adam(*lamb);
  if (auto* const lars = dynamic_cast<LarsOptions*>(&options)) {
    set_momentum(*lars);
    lars->trust_coefficient(spec.trust_coefficient);
  }
  if (auto* const sgd = dynamic_cast<SGDOptions*>(&options)) {
    set_momentum(*sgd);
    sgd->dampening(spec.dampening).nesterov(spec.nesterov);
  }
}

std::unique_ptr<torch::optim::OptimizerParamState> ToTorch(OptimizerKind kind,
                                                           const ParameterState& state) {
  if (state.step == 0) return nullptr;
  return WithTypes(kind,
                   [&]<typename State, typename Options>()
                       -> std::unique_ptr<torch::optim::OptimizerParamState> {
                     auto made = std::make_unique<State>();
                     if constexpr (std::is_same_v<State, SGDParamState>) {
                       made->momentum_buffer(state.exp_avg);
                     } else {
                       made->step(state.step).exp_avg(state.exp_avg).exp_avg_sq(state.exp_avg_sq);
                     }
                     return made;
                   });
}

ParameterState FromTorch(OptimizerKind kind, const torch::optim::OptimizerParamState& state) {
  return WithTypes(kind, [&]<typename State, typename Options>() -> ParameterState {
    const auto& from = static_cast<const State&>(state);
    if constexpr (std::is_same_v<State, SGDParamState>) {
      // Which step it is matters for the first alone.
      return {.step = 1, .exp_avg = from.momentum_buffer(), .exp_avg_sq = {}};
    } else {
      return {.step = from.step(), .exp_avg = from.exp_avg(), .exp_avg_sq = from.exp_avg_sq()};
    }
  });
}

void WriteArchive(OptimizerKind kind, torch::serialize::OutputArchive& archive,
                  const torch::optim::Optimizer& optimizer) {
  WithTypes(kind, [&]<typename State, typename Options>() {
    torch::optim::serialize<State, Options>(archive, optimizer);
  });
}

void ReadArchive(OptimizerKind kind, torch::serialize::InputArchive& archive,
                 torch::optim::Optimizer& optimizer) {
  WithTypes(kind, [&]<typename State, typename Options>() {
    torch::optim::serialize<State, Options>(archive, optimizer);
  });
}

}  // namespace client::front
}  // namespace gemini
