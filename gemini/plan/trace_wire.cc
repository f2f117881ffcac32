// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/trace_wire.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "gemini/trace_generated.h"
#include "gemini/wire_element.h"

namespace gemini {
namespace {

// Elements of a vector that may have been left out.
template <typename Element, typename Convert>
auto Converted(const flatbuffers::Vector<Element>* from, Convert convert) {
  std::vector<decltype(convert(from->Get(0)))> to;
  if (from == nullptr) return to;
  to.reserve(from->size());
  for (flatbuffers::uoffset_t i = 0; i < from->size(); ++i) {
    to.push_back(ConvertElement(*from, i, convert));
  }
  return to;
}

}  // namespace

std::string EncodeTrace(const Trace& trace) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<wire::TracedTensor> tensors;
  tensors.reserve(trace.tensors.size());
  for (const TracedTensor& tensor : trace.tensors) {
    tensors.emplace_back(tensor.size_bytes, tensor.space, static_cast<uint8_t>(tensor.group),
                         static_cast<uint8_t>(tensor.format.element),
                         static_cast<uint8_t>(tensor.format.optimizer),
                         static_cast<uint8_t>(tensor.format.moments), tensor.states_on_nvme);
  }
  std::vector<wire::TracedOperator> operators;
  operators.reserve(trace.operators.size());
  for (const TracedOperator& at : trace.operators) {
    operators.emplace_back(at.compute_ns, at.non_model_peak_bytes, at.first_use, at.num_uses);
  }
  std::vector<wire::TensorUse> uses;
  uses.reserve(trace.uses.size());
  for (const TensorUse& use : trace.uses) {
    uses.emplace_back(use.tensor, static_cast<uint8_t>(use.kind), use.written);
  }
  std::vector<wire::GradientOut> outs;
  outs.reserve(trace.gradient_outs.size());
  for (const GradientOut& out : trace.gradient_outs) outs.emplace_back(out.position, out.tensor);
  const auto phase = builder.CreateString(trace.phase);
  const auto tensor_list = builder.CreateVectorOfStructs(tensors);
  const auto operator_list = builder.CreateVectorOfStructs(operators);
  const auto use_list = builder.CreateVectorOfStructs(uses);
  const auto out_list = builder.CreateVectorOfStructs(outs);
  const auto updated = builder.CreateVector(trace.updated);
  const auto room_bytes = builder.CreateVector(trace.room_bytes);
  wire::FinishTraceBuffer(builder, wire::CreateTrace(builder, phase, tensor_list, operator_list,
                                                     use_list, out_list, updated, room_bytes));
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

absl::StatusOr<Trace> DecodeTrace(absl::string_view bytes) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (!wire::VerifyTraceBuffer(verifier)) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes that are no trace"));
  }
  const wire::Trace& from = *wire::GetTrace(bytes.data());
  Trace trace;
  if (from.phase() != nullptr) trace.phase = from.phase()->str();
  if (static_cast<int64_t>(trace.phase.size()) > kMaxPhaseChars) {
    return absl::InvalidArgumentError(absl::StrCat("a phase's name of ", trace.phase.size(),
                                                   " characters, at most ", kMaxPhaseChars));
  }
  trace.tensors = Converted(from.tensors(), [](const wire::TracedTensor* tensor) {
    return TracedTensor{.size_bytes = tensor->size_bytes(),
                        .group = static_cast<TensorGroup>(tensor->group()),
                        .space = tensor->space(),
                        .format = {.element = static_cast<ElementType>(tensor->element()),
                                   .optimizer = static_cast<OptimizerKind>(tensor->optimizer()),
                                   .moments = static_cast<MomentFormat>(tensor->moments())},
                        .states_on_nvme = tensor->states_on_nvme()};
  });
  trace.operators = Converted(from.operators(), [](const wire::TracedOperator* at) {
    return TracedOperator{at->first_use(), at->num_uses(), at->compute_ns(),
                          at->non_model_peak_bytes()};
  });
  trace.uses = Converted(from.uses(), [](const wire::TensorUse* use) {
    return TensorUse{use->tensor(), static_cast<ChunkKind>(use->kind()), use->written()};
  });
  trace.gradient_outs = Converted(from.gradient_outs(), [](const wire::GradientOut* out) {
    return GradientOut{out->position(), out->tensor()};
  });
  trace.updated = Converted(from.updated(), [](int32_t tensor) { return tensor; });
  trace.room_bytes = Converted(from.room_bytes(), [](int64_t room) { return room; });
  GEMINI_RETURN_IF_ERROR(CheckTrace(trace));
  return trace;
}

uint64_t TensorsHash(absl::Span<const TracedTensor> tensors) {
  // FNV-1a: absl::Hash differs from process to process.
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ (value >> shift & 0xff)) * 0x100000001b3;
    }
  };
  add(tensors.size());
  for (const TracedTensor& tensor : tensors) {
    add(static_cast<uint64_t>(tensor.size_bytes));
    add(static_cast<uint64_t>(tensor.states_on_nvme) << 63 |
        static_cast<uint64_t>(tensor.format.moments) << 56 |
        static_cast<uint64_t>(tensor.format.optimizer) << 48 |
        static_cast<uint64_t>(tensor.format.element) << 40 |
        static_cast<uint64_t>(tensor.group) << 32 | static_cast<uint32_t>(tensor.space));
  }
  return hash;
}

}  // namespace gemini
