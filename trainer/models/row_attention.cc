// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/row_attention.h"

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/attention_pieces.h"
#include "trainer/models/saved_state.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct SavedOptions : torch::CustomClassHolder {
  explicit SavedOptions(const RowAttentionOptions& the_options) : options(the_options) {}
  const RowAttentionOptions options;
};

class RowAttentionFunction : public torch::autograd::Function<RowAttentionFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& query, const Variable& key,
                          const Variable& value, const RowAttentionOptions& options) {
    const int64_t sequence = query.size(2);
    const AttentionPieces pieces(query, key, options, sequence);
    // No piece has padding.
    Tensor out = options.documents == nullptr ? at::empty_like(query) : at::zeros_like(query);
    // For each row, the logarithm of the sum of its scores' exponentials.
    const Tensor log_sums = at::empty({query.size(0), query.size(1), sequence, 1},
                                      query.options().dtype(TypeOfSums(query)));
    pieces.ForEachInDocuments([&](const AttentionPiece& piece) {
      Tensor weights = pieces.Scores(query, key, piece);
      const Tensor largest = weights.amax(/*dim=*/-1, /*keepdim=*/true);
      weights.sub_(largest).exp_();
      const Tensor sums = weights.sum(/*dim=*/-1, /*keepdim=*/true);
      pieces.RowsOf(log_sums, piece).copy_(sums.log().add_(largest));
      weights.div_(sums);
      pieces.RowsOf(out, piece).copy_(pieces.SumOfValues(weights, value, piece));
    });
    SaveState(context, c10::make_intrusive<SavedOptions>(options));
    context->save_for_backward({query, key, value, out, log_sums});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list output_grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "RowAttention has no second derivative");
    const variable_list saved = context->get_saved_variables();
    const AttentionTensors of = {saved[0], saved[1], saved[2], saved[3], saved[4]};
    const RowAttentionOptions& options = SavedState<SavedOptions>(context)->options;
    const AttentionPieces pieces(of.query, of.key, options, of.query.size(2));
    Tensor query_grad =
        options.documents == nullptr ? at::empty_like(of.query) : at::zeros_like(of.query);
    // Sums over the pieces.
    const auto sum_type = of.key.options().dtype(TypeOfSums(of.key));
    const Tensor key_grad = at::zeros(of.key.sizes(), sum_type);
    const Tensor value_grad = at::zeros(of.value.sizes(), sum_type);
    pieces.ForEachInDocuments([&](const AttentionPiece& piece) {
      const PieceGradients gradients = pieces.GradientsOf(of, output_grads[0], piece);
      AttentionPieces::KeysOf(value_grad, piece).add_(gradients.value);
      pieces.RowsOf(query_grad, piece).copy_(gradients.query);
      AttentionPieces::KeysOf(key_grad, piece).add_(gradients.key);
    });
    return {query_grad, key_grad.to(of.key.scalar_type()), value_grad.to(of.value.scalar_type()),
            Variable()};
  }
};

}  // namespace

torch::Tensor RowAttention(const torch::Tensor& query, const torch::Tensor& key,
                           const torch::Tensor& value, const RowAttentionOptions& options) {
  return RowAttentionFunction::apply(query, key, value, options);
}

}  // namespace gemini::trainer
