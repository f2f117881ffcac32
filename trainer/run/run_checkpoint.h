// SPDX-License-Identifier: Apache-2.0
// Writes and reads one checkpoint of a run: the Hugging Face directory, the moments, and the
// trainer's state.
// Memory: streams from and into the store's memory; one window of a tensor is held at a time.
// Blocks: on the disk. All files are synced when WriteRunCheckpoint returns.
// Errors: as hf_checkpoint.h, safetensors_format.h and trainer_state.h.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/run/trainer_state.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

// Values are written as fp32 whatever the source holds: a resumed run must find the bits it left.
inline constexpr SaveOptions kRunSaveOptions = {.dtype = SaveOptions::Dtype::kFloat32};

// Told of the bytes of tensors that are read or written, piece by piece. Empty: nobody is told.
using BytesProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Writes all into `directory`, which is not there yet. `state` comes without tensor_steps: the
// store's are taken. On an error part of it may be left.
absl::Status WriteRunCheckpoint(const std::string& directory, const HfCheckpoint& source,
                                absl::Span<const ParameterShape> parameters, ParameterStore& store,
                                TrainerState state, const BytesProgress& progress = {});

// Bytes that WriteRunCheckpoint will write, rounded up.
absl::StatusOr<int64_t> RunCheckpointBytes(const HfCheckpoint& source,
                                           absl::Span<const ParameterShape> parameters,
                                           OptimizerKind optimizer);

// Streams the parameters of a checkpoint, after checking their names and shapes, into the store.
absl::Status LoadParameters(const HfCheckpoint& checkpoint,
                            absl::Span<const ParameterShape> parameters, ParameterStore& store,
                            const BytesProgress& progress = {});

// Reads and checks trainer_state.json of a run's checkpoint.
absl::StatusOr<TrainerState> ReadTrainerState(const std::string& directory);
// Notes in it that an evaluation was made of the step that the checkpoint is of. On an error the
// file is as before.
absl::Status NoteEvaluation(const std::string& directory);

// Streams the moments of a run's checkpoint into the store and sets its steps. Parameters are
// loaded before.
absl::Status LoadOptimizer(const std::string& directory, const TrainerState& state,
                           absl::Span<const ParameterShape> parameters, ParameterStore& store,
                           const BytesProgress& progress = {});

}  // namespace gemini::trainer
