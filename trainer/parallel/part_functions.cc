// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/part_functions.h"

#include <optional>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mm.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// These two exchange tensors, and autograd does not see them.
Tensor PutTogether(const Tensor& part, int64_t dimension, const RankLine& line,
                   const std::string& site) {
  const int64_t d = at::maybe_wrap_dim(dimension, part.dim());
  return GatherOverRanks(part, line, site).movedim(0, d).flatten(d, d + 1);
}
Tensor AddUpInParts(const Tensor& whole, int64_t dimension, const RankLine& line,
                    const std::string& site) {
  const int64_t d = at::maybe_wrap_dim(dimension, whole.dim());
  const Tensor parts = whole.unflatten(d, {line.size(), -1}).movedim(d, 0);
  return ReduceScatterOverRanks(parts.contiguous(), line, site);
}

// A gather for layers owns the parts that these layers read again in backward.
struct SavedGather : SavedLine {
  SavedGather(int64_t the_dimension, const RankLine& the_line, std::string the_site,
              std::shared_ptr<GatheredParts> the_parts)
      : SavedLine(the_line, std::move(the_site)),
        dimension(the_dimension),
        parts(std::move(the_parts)) {}
  const int64_t dimension;
  const std::shared_ptr<GatheredParts> parts;
};

class GatherFunction : public torch::autograd::Function<GatherFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& part, int64_t dimension,
                          const RankLine& line, const std::string& site,
                          const std::shared_ptr<GatheredParts>& parts) {
    SaveState(context, c10::make_intrusive<SavedGather>(dimension, line, site, parts));
    return PutTogether(part, dimension, line, site);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedGather>(context);
    return {AddUpInParts(gradients[0], saved->dimension, saved->line, saved->site), Variable(),
            Variable(), Variable(), Variable()};
  }
};

class ReduceScatterFunction : public torch::autograd::Function<ReduceScatterFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& whole, int64_t dimension,
                          const RankLine& line, const std::string& site) {
    SaveState(context, c10::make_intrusive<SavedGather>(dimension, line, site, nullptr));
    return AddUpInParts(whole, dimension, line, site);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedGather>(context);
    return {PutTogether(gradients[0], saved->dimension, saved->line, saved->site), Variable(),
            Variable(), Variable()};
  }
};

// A linear layer keeps its plan without the matrix, which is a saved tensor.
struct SavedLinear : torch::CustomClassHolder {
  SavedLinear(std::shared_ptr<GatheredParts> the_parts, MatrixParts the_matrix)
      : parts(std::move(the_parts)), matrix(std::move(the_matrix)) {}
  const std::shared_ptr<GatheredParts> parts;
  const MatrixParts matrix;
};

Tensor RowsOf(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }
// Returns the rows in the shape of x but for its last dimension.
Tensor InShapeOf(const Tensor& rows, const Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

// All parts of a matrix, of which a product takes one after the other: a matrix of parts side by
// side would be a copy of them.
class PartsOfMatrix {
 public:
  PartsOfMatrix(const Tensor& own, const MatrixParts& matrix)
      : is_in_out_(matrix.is_in_out),
        parts_(matrix.line.is_shared() ? GatherOverRanks(own, matrix.line, matrix.site)
                                       : own.unsqueeze(0)) {}
  // Returns x W^T + b of x [.., in], as MatrixParts has them.
  Tensor Linear(const Tensor& x, const Tensor& bias) const {
    const Tensor in = RowsOf(x);
    TORCH_CHECK(in.size(1) == parts_.size(0) * width(), "an input of ", in.size(1),
                " elements for a matrix of ", parts_.size(0), " x ", width());
    Tensor out = at::linear(in.narrow(1, 0, width()), OutIn(0), bias);
    for (int64_t i = 1; i < parts_.size(0); ++i) {
      out.addmm_(in.narrow(1, i * width(), width()), OutIn(i).t());
    }
    return InShapeOf(out, x);
  }
  // Returns y W of y [rows, out].
  Tensor Transposed(const Tensor& rows) const {
    Tensor out = at::empty({rows.size(0), parts_.size(0) * width()}, rows.options());
    for (int64_t i = 0; i < parts_.size(0); ++i) {
      Tensor columns = out.narrow(1, i * width(), width());
      at::mm_out(columns, rows, OutIn(i));
    }
    return out;
  }

 private:
  int64_t width() const { return parts_.size(is_in_out_ ? 1 : 2); }
  Tensor OutIn(int64_t i) const { return is_in_out_ ? parts_[i].t() : parts_[i]; }

  const bool is_in_out_;
  const Tensor parts_;  // [ranks, ...], each of them as the rank's own.
};

// Returns the gradient of the rank's own part, which is that of y^T x: y [rows, out], x [rows, in].
Tensor GradientOfPart(const Tensor& y, const Tensor& x, const MatrixParts& matrix) {
  const int64_t count = matrix.line.is_shared() ? matrix.line.size() : 1;
  TORCH_CHECK(x.size(1) % count == 0, x.size(1), " elements for ", count, " parts");
  const int64_t width = x.size(1) / count;
  const int64_t out = y.size(1);
  const Tensor parts = at::empty(
      {count, matrix.is_in_out ? width : out, matrix.is_in_out ? out : width}, x.options());
  for (int64_t i = 0; i < count; ++i) {
    const Tensor columns = x.narrow(1, i * width, width);
    Tensor part = parts[i];
    if (matrix.is_in_out) {
      at::mm_out(part, columns.t(), y);
    } else {
      at::mm_out(part, y.t(), columns);
    }
  }
  return matrix.line.is_shared() ? ReduceScatterOverRanks(parts, matrix.line, matrix.site)
                                 : parts[0];
}

class LinearOfPartsFunction : public torch::autograd::Function<LinearOfPartsFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          const std::optional<Variable>& bias, const MatrixParts& matrix,
                          const std::shared_ptr<GatheredParts>& parts) {
    SaveState(context, c10::make_intrusive<SavedLinear>(parts, matrix));
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["learns_weight"] = weight.requires_grad();
    const bool keeps_x = weight.requires_grad() && parts == nullptr;
    if (weight.requires_grad() && parts != nullptr) parts->AddReader();
    context->save_for_backward({weight, keeps_x ? x : Tensor()});
    return PartsOfMatrix(weight, matrix).Linear(x, bias.value_or(Tensor()));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedLinear>(context);
    const MatrixParts& matrix = saved->matrix;
    const variable_list tensors = context->get_saved_variables();
    const Tensor rows = RowsOf(gradients[0]);
    Tensor x_gradient, weight_gradient, bias_gradient;
    if (context->needs_input_grad(0)) {
      x_gradient = InShapeOf(PartsOfMatrix(tensors[0], matrix).Transposed(rows), gradients[0]);
    }
    if (context->saved_data["learns_weight"].toBool()) {
      const Tensor x = RowsOf(saved->parts == nullptr ? tensors[1] : saved->parts->ForBackward());
      weight_gradient = GradientOfPart(rows, x, matrix);
    }
    if (context->saved_data["has_bias"].toBool()) bias_gradient = rows.sum(0);
    return {x_gradient, weight_gradient, bias_gradient, Variable(), Variable()};
  }
};

}  // namespace

Tensor GatherParts(const Tensor& part, int64_t dimension, const RankLine& line,
                   const std::string& site) {
  if (!line.is_shared()) return part;
  return GatherFunction::apply(part, dimension, line, site, std::shared_ptr<GatheredParts>());
}

Tensor GatherParts(const Tensor& part, int64_t dimension, const RankLine& line,
                   const std::string& site, std::weak_ptr<GatheredParts>& parts) {
  parts.reset();
  if (!line.is_shared()) return part;
  const auto made = std::make_shared<GatheredParts>(part.detach(), dimension, line, site);
  parts = made;
  return GatherFunction::apply(part, dimension, line, site, made);
}

Tensor ReduceScatterParts(const Tensor& whole, int64_t dimension, const RankLine& line,
                          const std::string& site) {
  return line.is_shared() ? ReduceScatterFunction::apply(whole, dimension, line, site) : whole;
}

GatheredParts::GatheredParts(const Tensor& part, int64_t dimension, const RankLine& line,
                             std::string site)
    : part_(part), dimension_(dimension), line_(line), site_(std::move(site)) {}

Tensor GatheredParts::ForBackward() {
  if (!whole_.defined()) whole_ = PutTogether(part_, dimension_, line_, site_);
  if (--num_readers_ > 0) return whole_;
  // Graph nodes, which keep this, live as long as the loss.
  part_.reset();
  return std::exchange(whole_, Tensor());
}

Tensor LinearOfParts(const Tensor& x, const std::shared_ptr<GatheredParts>& parts,
                     const MatrixParts& matrix, const Tensor& bias) {
  const bool has_parts = parts != nullptr || matrix.line.is_shared();
  if (!has_parts) {
    return at::linear(x, matrix.is_in_out ? matrix.weight.t() : matrix.weight, bias);
  }
  if (!at::GradMode::is_enabled()) {
    return PartsOfMatrix(matrix.weight, matrix).Linear(x, bias);
  }
  MatrixParts rest = matrix;
  return LinearOfPartsFunction::apply(x, std::exchange(rest.weight, Tensor()),
                                      bias.defined() ? std::optional<Tensor>(bias) : std::nullopt,
                                      rest, parts);
}

}  // namespace gemini::trainer
