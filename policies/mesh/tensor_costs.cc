// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/tensor_costs.h"

namespace gemini::policies {
namespace {

// What one rank of a ring sends when `elements` are gathered or added up in parts.
double PanelElements(double elements, double num_ranks) {
  return elements * (num_ranks - 1) / num_ranks;
}

}  // namespace

TensorCosts ProductCosts(const TensorGrid& grid, const Product& product, TensorPasses passes) {
  const double forwards = static_cast<double>(passes.num_forwards);
  const double side = static_cast<double>(grid.size(TensorAxis::kJ));  // q, or t in 1d.
  const double depth = static_cast<double>(grid.size(TensorAxis::kK));
  const double input = product.tokens * product.in;
  const double matrix = product.in * product.out;
  const double output = product.tokens * product.out;
  // Backward gathers the input and the matrix again, each for the other's gradients, and adds up
  // the gradients of both in parts.
  const double gathered_again = forwards + 2;
  TensorCosts costs;
  switch (grid.mode()) {
    case TensorMode::k1d:
      if (passes.divides_sequences) {
        // A sum in parts where Megatron without parts has a sum, and a gather in backward.
        if (product.leads_out) {
          costs.output = (forwards + 1) * PanelElements(output, side);
        } else {
          costs.input = gathered_again * PanelElements(input, side);
        }
      } else if (product.leads_out) {
        costs.output = forwards * 2 * PanelElements(output, side);
      } else {
        costs.input = 2 * PanelElements(input, side);  // In backward alone.
      }
      break;
    case TensorMode::k2d:
    case TensorMode::k2Point5d:
      costs.input = gathered_again * PanelElements(input / depth / side, side);
      costs.matrix = gathered_again * PanelElements(matrix / side, side);
      costs.replicas = 2 * PanelElements(matrix / (side * side), depth);
      break;
    case TensorMode::k3d:
      costs.input = gathered_again * PanelElements(input / (side * side), side);
      costs.matrix = gathered_again * PanelElements(matrix / (side * side), side);
      costs.output = (forwards + 1) * PanelElements(output / (side * side), side);
      break;
  }
  return costs;
}

double BlockElements(const TensorGrid& grid, double tokens, double width, TensorPasses passes) {
  const Product products[] = {{tokens, width, 3 * width},
                              {tokens, width, width, /*leads_out=*/true},
                              {tokens, width, 4 * width},
                              {tokens, 4 * width, width, /*leads_out=*/true}};
  double elements = 0;
  for (const Product& product : products) elements += ProductCosts(grid, product, passes).total();
  return elements;
}

UlyssesCosts UlyssesBlockCosts(int64_t num_ranks, double tokens, double width, double key_width,
                               int64_t num_forwards) {
  const double ranks = static_cast<double>(num_ranks);
  // Of its own tokens a rank sends all but its own heads.
  const double passes = static_cast<double>(num_forwards + 1);
  return {passes * PanelElements(tokens / ranks * (width + 2 * key_width), ranks),
          passes * PanelElements(tokens / ranks * width, ranks)};
}

RingCosts RingBlockCosts(int64_t num_ranks, double tokens, double key_width, int64_t num_forwards) {
  const double ranks = static_cast<double>(num_ranks);
  const double hop = 2 * tokens / ranks * key_width;
  return {static_cast<double>(num_forwards + 1) * hop * (ranks - 1), hop * ranks};
}

}  // namespace gemini::policies
