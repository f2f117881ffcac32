// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/parameter_store_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "client/kernels/moment_quantisation.h"
#include "client/kernels/trust_ratio.h"
#include "client/torch/model/element_types.h"
#include "client/update/step_exchange.h"
#include "gemini/byte_size.h"
#include "gemini/half_float.h"
#include "gemini/layout.h"
#include "gemini/split_float.h"
#include "gemini/system/status_macros.h"
#include "trainer/families/vocabulary_cut.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kFloatBytes = static_cast<int64_t>(sizeof(float));

// Returns an undefined tensor when there is no memory.
at::Tensor AlignedEmpty(at::IntArrayRef sizes, at::ScalarType type) {
  int64_t num_elements = 1;
  for (const int64_t size : sizes) num_elements *= size;
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(type));
  const int64_t size_bytes =
      RoundUp(std::max<int64_t>(num_elements * element_bytes, 1), kTensorAlignmentBytes);
  void* memory = std::aligned_alloc(static_cast<size_t>(kTensorAlignmentBytes),
                                    static_cast<size_t>(size_bytes));
  if (memory == nullptr) return {};
  return torch::from_blob(
      memory, sizes, [](void* data) { std::free(data); }, torch::TensorOptions().dtype(type));
}

}  // namespace

void ReferenceParameterStore::Parameter::RoundValues() {
  if (element == ElementType::kFp32) return;
  auto* const bits = static_cast<uint16_t*>(tensor.mutable_data_ptr());
  std::ranges::transform(master, bits, [this](float value) {
    return element == ElementType::kBf16 ? SplitOf(value).high : Fp16Of(value);
  });
}

void ReferenceParameterStore::Parameter::RoundMoments() {
  for (std::vector<float>* const moment : {&exp_avg, &exp_avg_sq}) {
    const auto code =
        moment == &exp_avg ? client::MomentCode::kSigned : client::MomentCode::kUnsigned;
    const auto count = static_cast<int64_t>(moment->size());
    std::vector<uint8_t> codes(moment->size());
    std::vector<float> scales(static_cast<size_t>(RoundUp(count, kQuantisationBlockElements) /
                                                  kQuantisationBlockElements));
    client::QuantiseMoment(code, moment->data(), /*first_element=*/0, count, /*stochastic=*/nullptr,
                           codes.data(), scales.data());
    client::DequantiseMoment(code, codes.data(), scales.data(), count, moment->data());
  }
}

absl::StatusOr<std::unique_ptr<ReferenceParameterStore>> ReferenceParameterStore::Create(
    torch::nn::Module& module, const client::OptimizerSpec& optimizer,
    const DecayExemptions& no_decay) {
  std::unique_ptr<ReferenceParameterStore> store(new ReferenceParameterStore(optimizer, no_decay));
  for (auto& item : module.named_parameters()) {
    at::Tensor& parameter = item.value();
    const std::optional<ElementType> element =
        client::hooks::ElementTypeOf(parameter.scalar_type());
    if (!parameter.device().is_cpu() || !element) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", item.key(), " is ",
                                                     parameter.toString(),
                                                     ", not fp32, bf16 or fp16 on the CPU"));
    }
    at::Tensor aligned = AlignedEmpty(parameter.sizes(), parameter.scalar_type());
    if (!aligned.defined()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", FormatByteSize(static_cast<int64_t>(parameter.nbytes())),
                       " of parameter ", item.key()));
    }
    parameter.set_data(aligned);
    store->index_[item.key()] = static_cast<int64_t>(store->parameters_.size());
    Parameter& added = store->parameters_.emplace_back();
    added.name = item.key();
    added.tensor = parameter;
    added.element = *element;
    if (added.element != ElementType::kFp32) {
      added.master.resize(static_cast<size_t>(added.count()));
    }
  }
  return store;
}

absl::StatusOr<int64_t> ReferenceParameterStore::Find(absl::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) return absl::NotFoundError(absl::StrCat("no parameter ", name));
  return found->second;
}

client::UpdateSettings ReferenceParameterStore::SettingsOf(const Parameter& parameter,
                                                           const client::StepOptions& options,
                                                           double clip_coefficient) const {
  const bool decays = parameter.tensor.dim() >= optimizer_.decay_min_dimensions &&
                      !no_decay_.Exempts(NameInFiles(parameter.name));
  return {.kind = optimizer_.kind,
          .learning_rate = options.learning_rate,
          .beta1 = optimizer_.beta1,
          .beta2 = optimizer_.beta2,
          .epsilon = optimizer_.epsilon,
          .weight_decay = decays ? optimizer_.weight_decay : 0,
          .momentum = optimizer_.momentum,
          .trust_coefficient = optimizer_.trust_coefficient,
          .step = parameter.step + 1,
          .gradient_scale = clip_coefficient / options.loss_scale};
}

absl::StatusOr<client::StepResult> ReferenceParameterStore::Update(
    const client::StepOptions& options) {
  if (options.exchange != nullptr) {
    return client::RefuseStep(options.exchange,
                              absl::UnimplementedError("the reference has the whole model"));
  }
  std::vector<double> squares;
  std::vector<at::Tensor> gradients(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].tensor.grad().defined()) continue;
    // A gradient may be a view with other strides; the update reads it in the parameter's order.
    gradients[i] = parameters_[i].tensor.grad().contiguous();
    const size_t first = squares.size();
    client::AppendBlockSquares(parameters_[i].element, gradients[i].const_data_ptr(),
                               gradients[i].numel(), squares);
    for (size_t block = first; block < squares.size(); ++block) {
      if (std::isfinite(squares[block])) continue;
      if (options.skip_non_finite) return client::StepResult{.skipped = true};
      return absl::FailedPreconditionError(
          absl::StrCat("the gradient of ", parameters_[i].name, " holds a NaN or an infinity"));
    }
  }
  client::StepResult result;
  result.grad_norm = client::NormOf(squares) / options.loss_scale;
  result.clip_coefficient = client::ClipCoefficient(result.grad_norm, options.max_grad_norm);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    Parameter& parameter = parameters_[i];
    const auto count = static_cast<size_t>(parameter.count());
    parameter.exp_avg.resize(count);
    if (HasSecondMoment(optimizer_.kind)) parameter.exp_avg_sq.resize(count);
    client::UpdateSettings settings = SettingsOf(parameter, options, result.clip_coefficient);
    const client::UpdateStreams streams = {.grad_type = parameter.element,
                                           .param = parameter.values(),
                                           .grad = gradients[i].const_data_ptr(),
                                           .exp_avg = parameter.exp_avg.data(),
                                           .exp_avg_sq = parameter.exp_avg_sq.data(),
                                           .new_param = parameter.values(),
                                           .new_exp_avg = parameter.exp_avg.data(),
                                           .new_exp_avg_sq = parameter.exp_avg_sq.data()};
    if (IsLayerWise(settings.kind)) {
      client::TrustSquares trust;
      client::AppendTrustSquares(settings, streams, parameter.count(), trust);
      settings.trust_ratio = client::TrustRatio(settings, client::NormOf(trust.param),
                                                client::NormOf(trust.direction));
    }
    client::UpdateElements(settings, streams, parameter.count());
    if (optimizer_.moments == MomentFormat::k8Bit) parameter.RoundMoments();
    ++parameter.step;
    parameter.RoundValues();
    // Backward through a graph from before the update raises, as after an optimizer of Torch.
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
  return result;
}

absl::Status ReferenceParameterStore::ReadRange(absl::string_view name, ChunkKind kind,
                                                ByteRange range, Sink sink) {
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, Find(name));
  Parameter& parameter = parameters_[static_cast<size_t>(index)];
  const auto size_bytes = static_cast<size_t>(parameter.count() * kFloatBytes);
  const auto give = [&](const void* all) {
    const absl::Span<const std::byte> part =
        range.PartOf(0, {static_cast<const std::byte*>(all), size_bytes});
    return part.empty() ? absl::OkStatus() : sink(range.offset_bytes, part);
  };
  if (kind == ChunkKind::kParam) return give(parameter.values());
  const std::vector<float>& moment =
      kind == ChunkKind::kExpAvg ? parameter.exp_avg : parameter.exp_avg_sq;
  if (!moment.empty()) return give(moment.data());
  return give(std::vector<std::byte>(size_bytes).data());
}

absl::Status ReferenceParameterStore::Write(absl::string_view name, ChunkKind kind, Source source) {
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, Find(name));
  Parameter& parameter = parameters_[static_cast<size_t>(index)];
  const auto count = static_cast<size_t>(parameter.tensor.numel());
  auto* memory = reinterpret_cast<std::byte*>(parameter.values());
  if (kind != ChunkKind::kParam) {
    std::vector<float>& moment =
        kind == ChunkKind::kExpAvg ? parameter.exp_avg : parameter.exp_avg_sq;
    moment.resize(count);
    memory = reinterpret_cast<std::byte*>(moment.data());
  }
  GEMINI_RETURN_IF_ERROR(source(0, {memory, count * sizeof(float)}));
  if (kind == ChunkKind::kParam) {
    parameter.RoundValues();
  } else if (optimizer_.moments == MomentFormat::k8Bit) {
    parameter.RoundMoments();
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReferenceParameterStore::TensorStep(absl::string_view name) const {
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, Find(name));
  return parameters_[static_cast<size_t>(index)].step;
}

absl::Status ReferenceParameterStore::SetStep(int64_t /*step*/) { return absl::OkStatus(); }

absl::Status ReferenceParameterStore::SetTensorStep(absl::string_view name, int64_t step) {
  GEMINI_ASSIGN_OR_RETURN(const int64_t index, Find(name));
  parameters_[static_cast<size_t>(index)].step = step;
  return absl::OkStatus();
}

}  // namespace gemini::trainer
