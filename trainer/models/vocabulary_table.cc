// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/vocabulary_table.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/embedding_dense_backward.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/where.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/variable.h"

namespace gemini::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int64_t kNoRow = -1;  // A look-up of no row, which gets no gradient.

// Whether each id lies in the block that begins at row `first` and ends before row `end`.
torch::Tensor IsWithin(const torch::Tensor& ids, int64_t first, int64_t end) {
  return ids.ge(first).bitwise_and_(ids.lt(end));
}

// `anchor` requires grad, so that the result does: the blocks are no inputs of this function.
class LookUpFunction : public torch::autograd::Function<LookUpFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& ids, const Variable& /*anchor*/,
                          const variable_list& blocks, const VocabularyCut& cut,
                          int64_t padding_token) {
    variable_list saved = blocks;
    saved.push_back(ids);
    context->save_for_backward(std::move(saved));
    context->saved_data["rows_of_block"] = cut.rows_of_block();
    context->saved_data["padding_token"] = padding_token;
    // With gradients on, as the caller has them: a step whose first operator runs without is taken
    // for an evaluation (client/plan/phase_tracker.h).
    const at::AutoGradMode with_graph(true);
    return Rows(blocks, cut, ids).detach();
  }

  static Variable Rows(absl::Span<const Variable> blocks, const VocabularyCut& cut,
                       const Variable& ids) {
    Variable rows;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int64_t first = cut.first_row(static_cast<int64_t>(i));
      const int64_t end = first + blocks[i].size(0);
      // The operators are the same whichever tokens come: those of other blocks look up any row.
      const Variable found = at::embedding(blocks[i], (ids - first).clamp_(0, end - first - 1));
      rows = i == 0 ? found : at::where(IsWithin(ids, first, end).unsqueeze(-1), found, rows);
    }
    return rows;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list blocks = context->get_saved_variables();
    const Variable ids = blocks.back();
    blocks.pop_back();
    const int64_t rows_of_block = context->saved_data["rows_of_block"].toInt();
    const int64_t padding_token = context->saved_data["padding_token"].toInt();
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!blocks[i].requires_grad()) continue;
      const int64_t first = rows_of_block * static_cast<int64_t>(i);
      const int64_t rows = blocks[i].size(0);
      Variable learns = IsWithin(ids, first, first + rows);
      if (padding_token >= 0) learns.bitwise_and_(ids.ne(padding_token));
      const Variable found = at::where(learns, ids - first, kNoRow);
      AddToGradient(blocks[i], at::embedding_dense_backward(gradients[0], found, rows, kNoRow,
                                                            /*scale_grad_by_freq=*/false));
    }
    return {Variable(), Variable(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

torch::Tensor LookUp(absl::Span<const torch::Tensor> blocks, const VocabularyCut& cut,
                     const torch::Tensor& ids, int64_t padding_token) {
  if (blocks.size() == 1) return at::embedding(blocks[0], ids, padding_token);
  const bool learns = at::GradMode::is_enabled() &&
                      std::ranges::any_of(blocks, [](const auto& b) { return b.requires_grad(); });
  if (!learns) return LookUpFunction::Rows(blocks, cut, ids);
  const torch::Tensor anchor = at::empty({0}, torch::dtype(torch::kFloat32)).requires_grad_();
  return LookUpFunction::apply(ids, anchor, variable_list(blocks.begin(), blocks.end()), cut,
                               padding_token);
}

void AddToGradient(const torch::Tensor& leaf, torch::Tensor gradient) {
  TORCH_CHECK(leaf.is_leaf() && leaf.requires_grad(),
              "a gradient for a tensor that learns nothing");
  const std::shared_ptr<torch::autograd::Node> accumulator =
      torch::autograd::impl::grad_accumulator(leaf);
  variable_list gradients;
  gradients.push_back(std::move(gradient));  // Alone, so that it can become the leaf's.
  (*accumulator)(std::move(gradients));
}

}  // namespace gemini::trainer
