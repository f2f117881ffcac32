// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_fit.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gemini::trainer {
namespace {

using policies::TensorAxis;
using policies::TensorMode;

// Why a grid of `q` ranks along each of its axes cannot divide a model; nothing if it can.
std::string WhyNot(const ModelSpec& spec, TensorMode mode, int64_t q) {
  const AttentionSpec& attention = spec.attention;
  const int64_t rows = mode == TensorMode::k3d ? q * q : q;  // Parts of a matrix's input.
  for (std::string reason : {DoNotDivide("its attention heads", attention.num_heads, q),
                             DoNotDivide("its key and value heads", attention.num_kv_heads, q),
                             DoNotDivide("the elements of its attention heads",
                                         attention.num_heads * attention.head_size, rows),
                             DoNotDivide("the elements of its hidden states", spec.width, rows),
                             DoNotDivide("the elements between its feed-forward matrices",
                                         spec.feed_forward.width, rows),
                             LeavesAPartWithoutRows(spec.vocab_size, rows)}) {
    if (!reason.empty()) return reason;
  }
  return "";
}

}  // namespace

std::string DoNotDivide(const char* what, int64_t count, int64_t num_parts) {
  return count % num_parts == 0 ? ""
                                : absl::StrCat(what, ", ", count, ", do not divide by ", num_parts);
}

std::string LeavesAPartWithoutRows(int64_t vocabulary, int64_t num_parts) {
  const int64_t rows = (vocabulary + num_parts - 1) / num_parts;
  if (vocabulary == 0 || rows * (num_parts - 1) < vocabulary) return "";
  return absl::StrCat("its vocabulary of ", vocabulary, " leaves the last rank without a row");
}

absl::Status CheckParts(TensorMode mode, int64_t parts, int64_t most_parts,
                        absl::FunctionRef<std::string(int64_t parts)> why_not,
                        absl::FunctionRef<int64_t(int64_t parts)> ranks_of) {
  const std::string why = why_not(parts);
  if (why.empty()) return absl::OkStatus();
  std::vector<int64_t> nearest;
  for (int64_t fewer = parts - 1; nearest.empty(); --fewer) {
    if (why_not(fewer).empty()) nearest.push_back(ranks_of(fewer));
  }
  for (int64_t more = parts + 1; more <= most_parts; ++more) {
    if (!why_not(more).empty()) continue;
    nearest.push_back(ranks_of(more));
    break;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--tensor ", policies::TensorModeName(mode), " of ", ranks_of(parts), " ranks: ", why,
      ": use --tensor-size ", absl::StrJoin(nearest, " or "), " with a multiple of so many ranks"));
}

absl::Status CheckTensorGrid(const ModelSpec& spec, const policies::TensorGrid& grid,
                             int64_t batch) {
  const TensorMode mode = grid.mode();
  const absl::string_view name = policies::TensorModeName(mode);
  if (spec.experts.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("--tensor ", name, " of a model with ", spec.experts->count,
                     " experts (num_experts or num_local_experts in its config.json): use --tensor "
                     "1d"));
  }
  if (spec.has_projections()) {
    return absl::UnimplementedError(absl::StrCat(
        "--tensor ", name, " of a model whose embedding of width ", spec.embedding_width,
        " (word_embed_proj_dim in its config.json) is projected to ", spec.width,
        ": use --tensor 1d"));
  }
  const int64_t q = grid.size(TensorAxis::kJ), depth = grid.num_ranks() / (q * q);
  const absl::Status divides = CheckParts(
      mode, q, spec.attention.num_heads, [&](int64_t parts) { return WhyNot(spec, mode, parts); },
      [&](int64_t parts) { return parts * parts * (mode == TensorMode::k3d ? parts : depth); });
  if (!divides.ok()) return divides;
  const int64_t parts = q * depth;
  if (batch % parts == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--tensor ", name, " of ", grid.num_ranks(), " ranks: --batch ", batch,
                   " does not divide by ", parts, ": use ",
                   batch > parts ? absl::StrCat(batch - batch % parts, " or ") : "",
                   batch - batch % parts + parts));
}

}  // namespace gemini::trainer
