// SPDX-License-Identifier: Apache-2.0
#include "client/front/model_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/front/optimizer_options.h"
#include "client/front/plain_tensor.h"
#include "gemini/files/safetensors_format.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::front {
namespace {

using Declaration = SafetensorsWriter::Declaration;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

constexpr char kSteps[] = "optimizer.steps";
constexpr char kGroups[] = "optimizer.groups";

// A row of "optimizer.groups".
using OptionRow = std::array<double, 9>;
OptionRow RowOf(const OptimizerSpec& spec) {
  return {spec.learning_rate,    spec.beta1,    spec.beta2,     spec.epsilon,
          spec.weight_decay,     spec.momentum, spec.dampening, spec.nesterov ? 1.0 : 0.0,
          spec.trust_coefficient};
}
OptimizerSpec SpecOfRow(OptimizerKind kind, const OptionRow& row) {
  return {.kind = kind,
          .learning_rate = row[0],
          .beta1 = row[1],
          .beta2 = row[2],
          .epsilon = row[3],
          .weight_decay = row[4],
          .momentum = row[5],
          .dampening = row[6],
          .nesterov = row[7] != 0,
          .trust_coefficient = row[8]};
}

// Of a tensor that is not managed: it is of no floating type, or has no elements.
std::optional<SafetensorsDtype> DtypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return SafetensorsDtype::kF32;
    case at::kHalf:
      return SafetensorsDtype::kF16;
    case at::kBFloat16:
      return SafetensorsDtype::kBF16;
    case at::kLong:
      return SafetensorsDtype::kI64;
    case at::kInt:
      return SafetensorsDtype::kI32;
    case at::kShort:
      return SafetensorsDtype::kI16;
    case at::kChar:
      return SafetensorsDtype::kI8;
    case at::kByte:
      return SafetensorsDtype::kU8;
    case at::kBool:
      return SafetensorsDtype::kBool;
    default:
      return std::nullopt;
  }
}

// What one tensor of the file is of the model.
struct Entry {
  Declaration declaration;
  const NamedTensor* tensor = nullptr;  // Null: steps or groups.
  ChunkKind kind = ChunkKind::kParam;
  bool is_plain = false;  // One of the module's other buffers.
};

// All of the file, in its order: larger elements first, so that each tensor is aligned.
absl::StatusOr<std::vector<Entry>> EntriesOf(const FrontModel& model, int64_t num_groups) {
  std::vector<Entry> entries;
  const auto add = [&](std::string name, SafetensorsDtype dtype, std::vector<int64_t> shape,
                       const NamedTensor* tensor, ChunkKind kind, bool is_plain) {
    entries.push_back({{std::move(name), dtype, std::move(shape)}, tensor, kind, is_plain});
  };
  int64_t num_trained = 0;
  for (const NamedTensor& tensor : model.tensors()) {
    const std::vector<int64_t> shape = tensor.tensor.sizes().vec();
    add(tensor.name, SafetensorsDtype::kF32, shape, &tensor, ChunkKind::kParam, false);
    if (tensor.group != TensorGroup::kTrainable) continue;
    ++num_trained;
    add(absl::StrCat("optimizer.exp_avg.", tensor.name), SafetensorsDtype::kF32, shape, &tensor,
        ChunkKind::kExpAvg, false);
    if (!HasSecondMoment(model.kind())) continue;
    add(absl::StrCat("optimizer.exp_avg_sq.", tensor.name), SafetensorsDtype::kF32, shape, &tensor,
        ChunkKind::kExpAvgSq, false);
  }
  add(kSteps, SafetensorsDtype::kI64, {num_trained}, nullptr, ChunkKind::kParam, false);
  add(kGroups, SafetensorsDtype::kF64, {num_groups, std::tuple_size_v<OptionRow>}, nullptr,
      ChunkKind::kParam, false);
  for (const NamedTensor& plain : model.plain_tensors()) {
    const std::optional<SafetensorsDtype> dtype = DtypeOf(plain.tensor.scalar_type());
    if (!dtype.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat(plain.name,
                       " has a type that safetensors files have not: save the module "
                       "with torch::save in a gemini::PlainMemory"));
    }
    add(plain.name, *dtype, plain.tensor.sizes().vec(), &plain, ChunkKind::kParam, true);
  }
  std::ranges::stable_sort(entries, std::ranges::greater(), [](const Entry& entry) {
    return SafetensorsDtypeBytes(entry.declaration.dtype);
  });
  return entries;
}

template <typename T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

absl::Status WriteEntry(const Entry& entry, hooks::ManagedModel& managed,
                        SafetensorsWriter& writer) {
  const at::Tensor& tensor = entry.tensor->tensor;
  if (entry.is_plain) {
    const at::Tensor bytes = tensor.cpu().contiguous();
    return writer.AppendRaw({static_cast<const std::byte*>(bytes.const_data_ptr()),
                             static_cast<size_t>(bytes.nbytes())});
  }
  if (tensor.is_contiguous()) {
    return managed.Read(
        entry.tensor->name, entry.kind,
        [&](int64_t, absl::Span<const std::byte> bytes) { return writer.AppendFloat32(bytes); });
  }
  // The session has another order of the elements than the file.
  GEMINI_ASSIGN_OR_RETURN(const at::Tensor values,
                          ReadPlain(managed, entry.tensor->name, entry.kind, tensor));
  const at::Tensor ordered = values.contiguous();
  return writer.AppendFloat32({static_cast<const std::byte*>(ordered.const_data_ptr()),
                               static_cast<size_t>(ordered.nbytes())});
}

absl::Status ReadEntry(const Entry& entry, const SafetensorsReader& reader,
                       const SafetensorsTensor& from, hooks::ManagedModel& managed) {
  const at::Tensor& tensor = entry.tensor->tensor;
  const auto span_of = [](const at::Tensor& values) {
    return absl::Span<std::byte>(static_cast<std::byte*>(values.data_ptr()),
                                 static_cast<size_t>(values.nbytes()));
  };
  if (entry.is_plain) {
    const at::Tensor values = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    GEMINI_RETURN_IF_ERROR(reader.ReadRaw(from, 0, span_of(values)));
    tensor.copy_(values);
    return absl::OkStatus();
  }
  if (tensor.is_contiguous()) {
    return managed.Write(entry.tensor->name, entry.kind,
                         [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
                           return reader.ReadFloat32(from, offset_bytes / 4, bytes);
                         });
  }
  const at::Tensor values = at::empty(tensor.sizes(), at::kFloat);
  GEMINI_RETURN_IF_ERROR(reader.ReadFloat32(from, 0, span_of(values)));
  return WritePlain(managed, entry.tensor->name, entry.kind, tensor, values);
}

// Finds each entry in the file.
absl::StatusOr<std::vector<const SafetensorsTensor*>> FindEntries(const std::vector<Entry>& entries,
                                                                  const SafetensorsReader& reader,
                                                                  OptimizerKind kind) {
  const auto found_kind = reader.metadata().find("optimizer");
  if (found_kind == reader.metadata().end() || found_kind->second != OptimizerKindName(kind)) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader.path(), " is of the optimizer \"",
                     found_kind == reader.metadata().end() ? "" : found_kind->second, "\", not of ",
                     OptimizerKindName(kind)));
  }
  std::vector<const SafetensorsTensor*> found;
  for (const Entry& entry : entries) {
    const Declaration& wanted = entry.declaration;
    found.push_back(reader.Find(wanted.name));
    if (found.back() == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(reader.path(), " has no tensor ", wanted.name));
    }
    if (found.back()->dtype == wanted.dtype && found.back()->shape == wanted.shape) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        wanted.name, " is ", SafetensorsDtypeName(found.back()->dtype), " [",
        absl::StrJoin(found.back()->shape, ", "), "] in ", reader.path(), ", and ",
        SafetensorsDtypeName(wanted.dtype), " [", absl::StrJoin(wanted.shape, ", "), "] here"));
  }
  return found;
}

}  // namespace

absl::Status SaveModel(const FrontModel& model, const Groups& groups, const std::string& path) {
  const at::NoGradGuard no_gradient;
  GEMINI_ASSIGN_OR_RETURN(hooks::ManagedModel* const managed, model.managed());
  GEMINI_ASSIGN_OR_RETURN(const std::vector<Entry> entries,
                          EntriesOf(model, static_cast<int64_t>(groups.size())));
  std::vector<int64_t> steps;
  for (const NamedTensor& tensor : model.tensors()) {
    if (tensor.group != TensorGroup::kTrainable) continue;
    GEMINI_ASSIGN_OR_RETURN(steps.emplace_back(), managed->TensorStep(tensor.name));
  }
  std::vector<OptionRow> rows;
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    GEMINI_ASSIGN_OR_RETURN(const OptimizerSpec spec, SpecOf(group.options()));
    rows.push_back(RowOf(spec));
  }
  std::vector<Declaration> declarations;
  for (const Entry& entry : entries) declarations.push_back(entry.declaration);
  GEMINI_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(
          path, declarations,
          {{"format", "pt"}, {"optimizer", std::string(OptimizerKindName(model.kind()))}}));
  for (const Entry& entry : entries) {
    if (entry.tensor != nullptr) {
      GEMINI_RETURN_IF_ERROR(WriteEntry(entry, *managed, writer));
    } else if (entry.declaration.name == kSteps) {
      GEMINI_RETURN_IF_ERROR(writer.AppendRaw(BytesOf(steps)));
    } else {
      GEMINI_RETURN_IF_ERROR(writer.AppendRaw(BytesOf(rows)));
    }
  }
  return writer.Finish();
}

absl::Status LoadModel(FrontModel& model, const std::string& path, Groups& groups) {
  const at::NoGradGuard no_gradient;
  GEMINI_ASSIGN_OR_RETURN(hooks::ManagedModel* const managed, model.managed());
  GEMINI_ASSIGN_OR_RETURN(const std::vector<Entry> entries,
                          EntriesOf(model, static_cast<int64_t>(groups.size())));
  GEMINI_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::Open(path));
  GEMINI_ASSIGN_OR_RETURN(const std::vector<const SafetensorsTensor*> found,
                          FindEntries(entries, reader, model.kind()));
  std::vector<int64_t> steps;
  std::vector<OptionRow> rows;
  const auto read_raw = [&](const SafetensorsTensor& from, auto& values, int64_t count) {
    values.resize(static_cast<size_t>(count));
    return reader.ReadRaw(
        from, 0, {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(values[0])});
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].tensor != nullptr) {
      GEMINI_RETURN_IF_ERROR(ReadEntry(entries[i], reader, *found[i], *managed));
    } else if (entries[i].declaration.name == kSteps) {
      GEMINI_RETURN_IF_ERROR(read_raw(*found[i], steps, found[i]->shape[0]));
    } else {
      GEMINI_RETURN_IF_ERROR(read_raw(*found[i], rows, found[i]->shape[0]));
    }
  }
  size_t next = 0;
  int64_t most_steps = managed->step();
  for (const NamedTensor& tensor : model.tensors()) {
    if (tensor.group != TensorGroup::kTrainable) continue;
    most_steps = std::max(most_steps, steps[next]);
    GEMINI_RETURN_IF_ERROR(managed->SetTensorStep(tensor.name, steps[next++]));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    SetOptions(SpecOfRow(model.kind(), rows[i]), groups[i].options());
  }
  return managed->SetStep(most_steps);
}

}  // namespace gemini::client::front
