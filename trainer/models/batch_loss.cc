// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/batch_loss.h"

#include "ATen/ops/full_like.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/variable.h"

namespace gemini::trainer {

LossValues BatchLoss::Values() const {
  LossValues values = {.labels = count};
  if (sum.is_meta()) return values;
  values.total = values.of_labels = sum.item<double>() / static_cast<double>(count);
  if (hits.defined()) {
    const bool has_five = hits.numel() > 1;
    values.hits = {hits[0].item<int64_t>(), has_five ? hits[1].item<int64_t>() : 0, has_five};
  }
  if (!router.defined()) return values;
  values.router = router.item<double>();
  values.total += router_coefficient * *values.router;
  return values;
}

torch::Tensor BatchLoss::Total() const {
  const torch::Tensor mean = sum / static_cast<double>(count);
  return router.defined() ? mean + router_coefficient * router : mean;
}

void BatchLoss::Backward(const LossFactors& factors) const {
  torch::autograd::variable_list roots = {sum};
  torch::autograd::variable_list gradients = {at::full_like(sum, factors.label)};
  if (router.defined()) {
    roots.push_back(router);
    gradients.push_back(at::full_like(router, factors.router * router_coefficient));
  }
  torch::autograd::backward(roots, gradients);
}

}  // namespace gemini::trainer
