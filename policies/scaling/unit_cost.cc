// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/unit_cost.h"

#include <algorithm>

namespace gemini::policies {
namespace {

// A block's forward pass takes about so many kernels: norms, products, attention, activation, sums.
constexpr double kKernelsOfBlock = 16;
// A norm reads and writes hidden states, the sum of a residual reads two and writes one; there are
// two of each.
constexpr double kHiddenStatesMoved = 10;
constexpr double kFp32Bytes = 4;

double AsDouble(int64_t number) { return static_cast<double>(number); }

// In how many parts a grid's ranks have a matrix.
double MatrixParts(const TensorGrid& grid) {
  return AsDouble(grid.num_ranks()) /
         (grid.DividesParameters(TensorAxis::kK) ? 1 : AsDouble(grid.size(TensorAxis::kK)));
}

class BlockCounter {
 public:
  BlockCounter(const BlockSizes& block, double width, const ParallelRun& run,
               const RankMachine& machine, const RankGroups& groups)
      : block_(block),
        width_(width),
        run_(run),
        machine_(machine),
        groups_(groups),
        sequence_ranks_(AsDouble(run.size(MeshAxis::kSequence))),
        tokens_(run.micro_batch_tokens() / sequence_ranks_),
        whole_parts_(HiddenParts(run)),
        all_parts_(AsDouble(run.grid.num_ranks()) * sequence_ranks_) {}

  UnitCost Cost() const {
    UnitCost cost;
    for (const MatrixSizes& matrix : block_.matrices) {
      cost.parameters += matrix.parameters() / PartsOf(matrix);
    }
    cost.gathered_forward = cost.gathered_backward = cost.parameters;
    cost.kept_bytes = run_.activation_bytes * run_.micro_batch_tokens() *
                      (block_.kept_whole(width_) / whole_parts_ + KeptBetween());
    cost.input_bytes = run_.activation_bytes * run_.micro_batch_tokens() * width_ / whole_parts_;
    cost.forward.computing_seconds = ForwardSeconds();
    cost.backward.computing_seconds = 2 * cost.forward.computing_seconds;
    for (const MatrixSizes& matrix : block_.matrices) {
      AddLayerExchanges(matrix, cost.forward.layers, cost.backward.layers);
    }
    AddSequenceExchanges(cost.forward.sequences, cost.backward.sequences);
    if (run_.recompute) cost.backward += cost.forward;
    return cost;
  }

 private:
  // In how many parts the ranks that share layers have a matrix.
  double PartsOf(const MatrixSizes& matrix) const {
    const double parts = MatrixParts(run_.grid);
    return matrix.most_parts > 0 ? std::min(parts, AsDouble(matrix.most_parts)) : parts;
  }
  // In how many all ranks have what it makes of tokens: more where they have other tokens each.
  double TokenPartsOf(const MatrixSizes& matrix) const {
    return all_parts_ * PartsOf(matrix) / MatrixParts(run_.grid);
  }
  // Elements for a token of a micro-batch.
  double KeptBetween() const {
    double sum = block_.gated_width / all_parts_;
    for (const MatrixSizes& matrix : block_.matrices) {
      sum += BlockSizes::kept_between(matrix) / TokenPartsOf(matrix);
    }
    return sum;
  }
  double BytesSeconds(double elements) const {
    return elements * run_.activation_bytes / machine_.memory_bytes_per_second;
  }
  double AttentionSeconds() const {
    return run_.micro_batch_tokens() * block_.attention_flops_of_token() / all_parts_ /
           machine_.flops_per_second;
  }

  double ForwardSeconds() const {
    const double tokens = run_.micro_batch_tokens();
    double seconds = AttentionSeconds() + kKernelsOfBlock * machine_.kernel_seconds;
    for (const MatrixSizes& matrix : block_.matrices) {
      const double parts = TokenPartsOf(matrix);
      const double flops = tokens * matrix.flops_of_token() / parts;
      const double moved =
          tokens * (matrix.in + matrix.out) * matrix.copies * matrix.token_share / parts +
          matrix.parameters() / PartsOf(matrix);
      seconds += std::max(flops / machine_.flops_per_second, BytesSeconds(moved));
    }
    return seconds + BytesSeconds(tokens * (kHiddenStatesMoved * width_ / whole_parts_ +
                                            block_.moved_between / all_parts_));
  }

  ExchangeCost Gather(double elements, TensorAxis axis) const {
    return AllGatherCost(elements * run_.activation_bytes, groups_.line(axis), machine_.network);
  }
  // Of a sum in parts. In a ring it takes as long and sends as much.
  ExchangeCost Scatter(double elements, TensorAxis axis) const {
    return ReduceScatterCost(elements * run_.activation_bytes, groups_.line(axis),
                             machine_.network);
  }

  void AddLayerExchanges(const MatrixSizes& matrix, ExchangeCost& forward,
                         ExchangeCost& backward) const {
    const double side = AsDouble(run_.grid.size(TensorAxis::kJ));
    const bool is_shared = matrix.shares_exchange;
    const double input = is_shared && !matrix.leads_out ? 0 : tokens_ * matrix.in;
    const double output = is_shared && matrix.leads_out ? 0 : tokens_ * matrix.out;
    const double panel = matrix.parameters();
    switch (run_.grid.mode()) {
      case TensorMode::k1d: {
        const GroupPlaces& line = groups_.line(TensorAxis::kJ);
        if (run_.divides_sequences && matrix.leads_out) {
          forward += Scatter(output, TensorAxis::kJ);
          backward += Gather(output, TensorAxis::kJ);
        } else if (run_.divides_sequences) {
          forward += Gather(input, TensorAxis::kJ);
          backward += Gather(input, TensorAxis::kJ);
          backward += Scatter(input, TensorAxis::kJ);
        } else {
          (matrix.leads_out ? forward : backward) += AllReduceCost(
              (matrix.leads_out ? output : input) * run_.activation_bytes, line, machine_.network);
        }
        break;
      }
      case TensorMode::k2d:
      case TensorMode::k2Point5d: {
        const double rows = input / AsDouble(run_.grid.size(TensorAxis::kK)) / side;
        forward += Gather(rows, TensorAxis::kJ);
        forward += Gather(panel / side, TensorAxis::kI);
        backward += Gather(panel / side, TensorAxis::kI);
        backward += Scatter(rows, TensorAxis::kJ);
        backward += Gather(rows, TensorAxis::kJ);
        backward += Scatter(panel / side, TensorAxis::kI);
        break;
      }
      case TensorMode::k3d: {
        const double square = side * side;
        // Products lead from one orientation to the other and back.
        const TensorAxis in_axis = matrix.leads_out ? TensorAxis::kK : TensorAxis::kJ;
        const TensorAxis out_axis = matrix.leads_out ? TensorAxis::kJ : TensorAxis::kK;
        forward += Gather(input / square, in_axis);
        forward += Gather(panel / square, TensorAxis::kI);
        forward += Scatter(output / square, out_axis);
        backward += Gather(output / square, out_axis);
        backward += Gather(panel / square, TensorAxis::kI);
        backward += Scatter(input / square, in_axis);
        backward += Gather(input / square, in_axis);
        backward += Scatter(panel / square, TensorAxis::kI);
        break;
      }
    }
  }

  void AddSequenceExchanges(ExchangeCost& forward, ExchangeCost& backward) const {
    if (sequence_ranks_ == 1) return;
    const double bytes = run_.activation_bytes;
    // In 1d, which goes with it, a rank has some heads of each token.
    const double parts = AsDouble(run_.grid.num_ranks());
    const double query = tokens_ * block_.query_width / parts;
    const double parts_of_keys = std::min(parts, AsDouble(block_.num_key_heads));
    const double keys = 2 * tokens_ * block_.key_width / parts_of_keys;
    if (!run_.is_ring) {
      // Fewer heads than ranks are copied before they are sent.
      const double copies =
          std::max(sequence_ranks_ * parts_of_keys / AsDouble(block_.num_key_heads), 1.0);
      ExchangeCost there_and_back =
          AllToAllCost((query + copies * keys) * bytes, groups_.sequence, machine_.network);
      there_and_back += AllToAllCost(query * bytes, groups_.sequence, machine_.network);
      forward += there_and_back;
      backward += there_and_back;
      return;
    }
    const double hops = sequence_ranks_ - 1;
    const double seconds_of_hop = AttentionSeconds() / sequence_ranks_;
    forward +=
        Hidden(ShiftCost(keys * bytes, groups_.sequence, machine_.network), seconds_of_hop) * hops;
    // Keys and values go with their gradients, which go home at last, when nothing is computed.
    ExchangeCost gradients = ShiftCost(keys * kFp32Bytes, groups_.sequence, machine_.network);
    ExchangeCost both = ShiftCost(keys * bytes, groups_.sequence, machine_.network);
    both += gradients;
    backward += Hidden(both, 2 * seconds_of_hop) * hops;
    backward += gradients;
  }

  static ExchangeCost Hidden(ExchangeCost cost, double under_seconds) {
    cost.seconds = std::max(cost.seconds - under_seconds, 0.0);
    return cost;
  }

  const BlockSizes& block_;
  const double width_;
  const ParallelRun& run_;
  const RankMachine& machine_;
  const RankGroups& groups_;
  const double sequence_ranks_;
  const double tokens_;       // Those that one of the sequence's ranks has, as all of a grid.
  const double whole_parts_;  // Of hidden states.
  const double all_parts_;    // Of what lies between matrices.
};

// Of products alone.
void SetComputing(double parameters, const ParallelRun& run, const RankMachine& machine,
                  UnitCost& cost) {
  const double parts = AsDouble(run.grid.num_ranks() * run.size(MeshAxis::kSequence));
  cost.forward.computing_seconds =
      2 * parameters * run.micro_batch_tokens() / parts / machine.flops_per_second;
  cost.backward.computing_seconds = 2 * cost.forward.computing_seconds;
}

}  // namespace

PassCost& PassCost::operator+=(const PassCost& other) {
  computing_seconds += other.computing_seconds;
  layers += other.layers;
  sequences += other.sequences;
  return *this;
}

double HiddenParts(const ParallelRun& run) {
  const bool is_whole = run.grid.mode() == TensorMode::k1d && !run.divides_sequences;
  return AsDouble(run.size(MeshAxis::kSequence)) * (is_whole ? 1 : AsDouble(run.grid.num_ranks()));
}

UnitCost CostOfBlock(const BlockSizes& block, double width, const ParallelRun& run,
                     const RankMachine& machine, const RankGroups& groups) {
  return BlockCounter(block, width, run, machine, groups).Cost();
}

UnitCost CostOfEmbedding(const ModelSizes& model, const ParallelRun& run,
                         const RankMachine& machine) {
  UnitCost cost;
  cost.parameters =
      (model.embedding_parameters + model.projection_parameters) / MatrixParts(run.grid);
  cost.gathered_forward = cost.parameters;
  SetComputing(model.projection_parameters, run, machine, cost);
  return cost;
}

UnitCost CostOfHead(const ModelSizes& model, bool has_table, const ParallelRun& run,
                    const RankMachine& machine) {
  UnitCost cost;
  cost.parameters = (model.projection_parameters + (has_table ? model.head_parameters : 0)) /
                    MatrixParts(run.grid);
  cost.gathered_forward =
      (model.projection_parameters + model.head_parameters) / MatrixParts(run.grid);
  SetComputing(model.head_parameters + model.projection_parameters, run, machine, cost);
  return cost;
}

}  // namespace gemini::policies
