// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/mesh_fit.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/status_macros.h"

namespace gemini::policies {
namespace {

absl::Status Divides(absl::string_view what, int64_t count, int64_t parts) {
  if (count % parts == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ", ", count, ", do not divide by ", parts));
}

absl::Status CheckWays(const SharingWays& can, const ParallelRun& run) {
  const bool is_line = run.grid.mode() == TensorMode::k1d;
  std::string way;
  if (run.grid.num_ranks() > 1 && !(is_line ? can.in_lines : can.in_grids)) {
    way = std::string(TensorModeName(run.grid.mode()));
  } else if (run.divides_sequences && !can.between_layers) {
    way = "parts of sequences between layers";
  } else if (run.size(MeshAxis::kSequence) > 1 && !can.on_sequence_axis) {
    way = run.is_ring ? "a ring" : "ulysses";
  }
  if (way.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("no forecast has ranks share a model of this task by ", way, ": use ",
                   can.in_lines ? "1d, ZeRO or a pipeline" : "ZeRO or a pipeline"));
}

absl::Status CheckLine(const ModelSizes& model, const ParallelRun& run) {
  const int64_t ranks = run.grid.num_ranks();
  GEMINI_RETURN_IF_ERROR(Divides("attention heads", model.num_heads, ranks));
  GEMINI_RETURN_IF_ERROR(
      Divides("elements between feed-forward matrices", model.feed_width, ranks));
  if (!model.copies_key_heads || ranks % model.num_key_heads != 0) {  // Else a head is copied.
    GEMINI_RETURN_IF_ERROR(Divides("key and value heads", model.num_key_heads, ranks));
  }
  return run.divides_sequences ? Divides("tokens of a sequence", run.sequence, ranks)
                               : absl::OkStatus();
}

absl::Status CheckGrid(const ModelSizes& model, const ParallelRun& run) {
  if (run.divides_sequences || run.size(MeshAxis::kSequence) > 1) {
    return absl::InvalidArgumentError(
        "ranks that share sequences go with 1d, or with none that share layers");
  }
  if (model.has_experts) return absl::InvalidArgumentError("experts go with 1d");
  if (model.projection_parameters > 0) {
    return absl::InvalidArgumentError("an embedding of another width than the blocks goes with 1d");
  }
  const int64_t side = run.grid.size(TensorAxis::kJ);
  const bool is_cube = run.grid.mode() == TensorMode::k3d;
  const int64_t rows = is_cube ? side * side : side;
  const int64_t depth = is_cube ? 1 : run.grid.size(TensorAxis::kK);
  GEMINI_RETURN_IF_ERROR(Divides("sequences of a micro-batch", run.batch, depth * rows));
  GEMINI_RETURN_IF_ERROR(Divides("attention heads", model.num_heads, side));
  GEMINI_RETURN_IF_ERROR(Divides("key and value heads", model.num_key_heads, side));
  GEMINI_RETURN_IF_ERROR(Divides("elements of attention heads",
                                 static_cast<int64_t>(model.blocks.front().query_width), rows));
  GEMINI_RETURN_IF_ERROR(
      Divides("elements of hidden states", static_cast<int64_t>(model.width), rows));
  return Divides("elements between feed-forward matrices", model.feed_width, rows);
}

}  // namespace

absl::Status CheckMeshFits(const ModelSizes& model, const ParallelRun& run) {
  GEMINI_RETURN_IF_ERROR(CheckWays(model.sharing, run));
  GEMINI_RETURN_IF_ERROR(run.grid.mode() == TensorMode::k1d ? CheckLine(model, run)
                                                            : CheckGrid(model, run));
  const int64_t sharing = run.size(MeshAxis::kSequence);
  if (sharing > 1 && run.divides_sequences) {
    return absl::InvalidArgumentError("sequences are shared in one way at a time");
  }
  GEMINI_RETURN_IF_ERROR(Divides("tokens of a sequence", run.sequence,
                                 run.is_ring && sharing > 1 ? 2 * sharing : sharing));
  if (!run.is_ring && sharing > 1) {
    const int64_t line = run.grid.size(TensorAxis::kJ);
    GEMINI_RETURN_IF_ERROR(Divides("attention heads of a rank", model.num_heads / line, sharing));
    const int64_t key_heads = std::max<int64_t>(model.num_key_heads / line, 1);
    if (sharing % key_heads != 0) {  // Else a head is copied.
      GEMINI_RETURN_IF_ERROR(Divides("key and value heads of a rank", key_heads, sharing));
    }
  }
  if (run.chunks > 1 && run.size(MeshAxis::kPipeline) == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(run.chunks, " chunks of a rank are those of a pipeline, and there is none"));
  }
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  if (run.num_stages() > blocks) {
    return absl::InvalidArgumentError(absl::StrCat(run.num_stages(),
                                                   " stages of a pipeline need as many blocks, the "
                                                   "model has ",
                                                   blocks));
  }
  return CheckPipelineShape(run.schedule,
                            {run.size(MeshAxis::kPipeline), run.chunks, run.micro_batches});
}

}  // namespace gemini::policies
