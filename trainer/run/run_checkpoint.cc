// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/files/durable_file.h"
#include "gemini/files/safetensors_format.h"
#include "gemini/system/status_macros.h"
#include "trainer/checkpoint/replace_file.h"

namespace gemini::trainer {
namespace {

// A save asks for pieces of any size: one window of this size is copied a time.
constexpr int64_t kWindowBytes = int64_t{64} << 20;
// config.json, the tokenizer and the trainer's state together; a vocabulary is a few MB.
constexpr int64_t kSmallFilesBytes = int64_t{32} << 20;
constexpr int64_t kMaxStateBytes = int64_t{64} << 20;

// Counts the bytes of tensors of which a BytesProgress is told.
class ByteCount {
 public:
  ByteCount(const BytesProgress& progress, absl::Span<const ParameterShape> parameters,
            int64_t tensors_of_parameter)
      : progress_(progress) {
    for (const ParameterShape& parameter : parameters) {
      total_bytes_ +=
          parameter.num_elements() * static_cast<int64_t>(sizeof(float)) * tensors_of_parameter;
    }
  }
  void Add(size_t size_bytes) {
    done_bytes_ += static_cast<int64_t>(size_bytes);
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

 private:
  const BytesProgress& progress_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

// The bytes of one window of one parameter, for SaveHfCheckpoint.
class Window {
 public:
  explicit Window(ParameterStore& store) : store_(store) {}

  absl::StatusOr<absl::Span<const std::byte>> At(const std::string& name, int64_t offset_bytes,
                                                 int64_t size_bytes) {
    const int64_t wanted = std::min(size_bytes, kWindowBytes);
    bytes_.resize(static_cast<size_t>(wanted));
    int64_t filled = 0;
    GEMINI_RETURN_IF_ERROR(store_.ReadRange(name, ChunkKind::kParam, {offset_bytes, wanted},
                                            [&](int64_t at, absl::Span<const std::byte> piece) {
                                              std::memcpy(bytes_.data() + (at - offset_bytes),
                                                          piece.data(), piece.size());
                                              filled += static_cast<int64_t>(piece.size());
                                              return absl::OkStatus();
                                            }));
    if (filled != wanted) {
      return absl::InternalError(absl::StrCat(name, " gave ", filled, " of ", wanted, " bytes"));
    }
    return absl::MakeConstSpan(bytes_);
  }

 private:
  ParameterStore& store_;
  std::vector<std::byte> bytes_;
};

struct Moment {
  ChunkKind kind;
  absl::string_view name;
};
std::vector<Moment> MomentsOf(OptimizerKind optimizer) {
  std::vector<Moment> moments = {{ChunkKind::kExpAvg, "exp_avg"}};
  if (HasSecondMoment(optimizer)) moments.push_back({ChunkKind::kExpAvgSq, "exp_avg_sq"});
  return moments;
}

std::string MomentName(const Moment& moment, absl::string_view parameter) {
  return absl::StrCat(moment.name, ".", parameter);
}

std::vector<SafetensorsWriter::Declaration> Declarations(
    absl::Span<const ParameterShape> parameters, OptimizerKind optimizer) {
  std::vector<SafetensorsWriter::Declaration> declarations;
  // The two moments of a parameter lie side by side, as they do in a bundle.
  for (const ParameterShape& parameter : parameters) {
    for (const Moment& moment : MomentsOf(optimizer)) {
      declarations.push_back(
          {MomentName(moment, parameter.name), SafetensorsDtype::kF32, parameter.shape});
    }
  }
  return declarations;
}

std::string Inside(const std::string& directory, absl::string_view name) {
  return absl::StrCat(directory, "/", name);
}

}  // namespace

absl::Status WriteRunCheckpoint(const std::string& directory, const HfCheckpoint& source,
                                absl::Span<const ParameterShape> parameters, ParameterStore& store,
                                TrainerState state, const BytesProgress& progress) {
  const std::vector<Moment> moments = MomentsOf(store.optimizer());
  ByteCount count(progress, parameters, 1 + static_cast<int64_t>(moments.size()));
  Window window(store);
  GEMINI_RETURN_IF_ERROR(
      SaveHfCheckpoint(directory, source, parameters, kRunSaveOptions,
                       [&](const std::string& name, int64_t offset_bytes, int64_t size_bytes) {
                         auto piece = window.At(name, offset_bytes, size_bytes);
                         if (piece.ok()) count.Add(piece->size());
                         return piece;
                       }));
  GEMINI_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(Inside(directory, kOptimizerFile),
                                Declarations(parameters, store.optimizer()), {}));
  for (const ParameterShape& parameter : parameters) {
    for (const Moment& moment : moments) {
      GEMINI_RETURN_IF_ERROR(
          store.Read(parameter.name, moment.kind, [&](int64_t, absl::Span<const std::byte> piece) {
            count.Add(piece.size());
            return writer.AppendRaw(piece);
          }));
    }
    GEMINI_ASSIGN_OR_RETURN(state.tensor_steps[parameter.name], store.TensorStep(parameter.name));
  }
  GEMINI_RETURN_IF_ERROR(writer.Finish());
  return WriteTextFile(Inside(directory, kTrainerStateFile), ToJson(state));
}

absl::StatusOr<int64_t> RunCheckpointBytes(const HfCheckpoint& source,
                                           absl::Span<const ParameterShape> parameters,
                                           OptimizerKind optimizer) {
  GEMINI_ASSIGN_OR_RETURN(const int64_t optimizer_bytes,
                          SafetensorsWriter::FileBytes(Declarations(parameters, optimizer), {}));
  return SavedTensorBytes(source, parameters, kRunSaveOptions) + optimizer_bytes + kSmallFilesBytes;
}

absl::Status LoadParameters(const HfCheckpoint& checkpoint,
                            absl::Span<const ParameterShape> parameters, ParameterStore& store,
                            const BytesProgress& progress) {
  GEMINI_RETURN_IF_ERROR(checkpoint.Check(parameters));
  ByteCount count(progress, parameters, 1);
  for (const ParameterShape& parameter : parameters) {
    GEMINI_RETURN_IF_ERROR(store.Write(
        parameter.name, ChunkKind::kParam, [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
          count.Add(bytes.size());
          return checkpoint.ReadFloat32(parameter.name,
                                        offset_bytes / static_cast<int64_t>(sizeof(float)), bytes);
        }));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainerState> ReadTrainerState(const std::string& directory) {
  const std::string path = Inside(directory, kTrainerStateFile);
  GEMINI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxStateBytes));
  return ParseTrainerState(text, path);
}

absl::Status NoteEvaluation(const std::string& directory) {
  GEMINI_ASSIGN_OR_RETURN(TrainerState state, ReadTrainerState(directory));
  state.evaluated_step = state.step;
  return ReplaceFile(Inside(directory, kTrainerStateFile), ToJson(state));
}

absl::Status LoadOptimizer(const std::string& directory, const TrainerState& state,
                           absl::Span<const ParameterShape> parameters, ParameterStore& store,
                           const BytesProgress& progress) {
  const std::string path = Inside(directory, kOptimizerFile);
  const std::vector<Moment> moments = MomentsOf(store.optimizer());
  ByteCount count(progress, parameters, static_cast<int64_t>(moments.size()));
  GEMINI_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::Open(path));
  for (const ParameterShape& parameter : parameters) {
    const auto step = state.tensor_steps.find(parameter.name);
    if (step == state.tensor_steps.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory, ": its state has no step of ", parameter.name));
    }
    for (const Moment& moment : moments) {
      const SafetensorsTensor* tensor = reader.Find(MomentName(moment, parameter.name));
      if (tensor == nullptr || tensor->dtype != SafetensorsDtype::kF32 ||
          tensor->num_elements != parameter.num_elements()) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": has no ", MomentName(moment, parameter.name), " that fits the parameter"));
      }
      // Zeros before the first update need no memory.
      if (step->second == 0) continue;
      GEMINI_RETURN_IF_ERROR(store.Write(parameter.name, moment.kind,
                                         [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
                                           count.Add(bytes.size());
                                           return reader.ReadRaw(*tensor, offset_bytes, bytes);
                                         }));
    }
    GEMINI_RETURN_IF_ERROR(store.SetTensorStep(parameter.name, step->second));
  }
  return store.SetStep(state.step);
}

}  // namespace gemini::trainer
