// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/repeated_blocks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kMaxPeriod = 16;
constexpr int64_t kNoBlock = -1;

// Where the number of a block stands in a tensor's or an operator's name.
struct BlockNumber {
  int64_t block = kNoBlock;
  size_t begin = 0;
  size_t end = 0;
};

BlockNumber FindBlockNumber(absl::string_view name, const std::string& prefix) {
  const size_t at = name.find(prefix);
  if (at == absl::string_view::npos) return {};
  BlockNumber number = {.begin = at + prefix.size()};
  number.end = std::min(name.find('.', number.begin), name.size());
  if (!absl::SimpleAtoi(name.substr(number.begin, number.end - number.begin), &number.block)) {
    return {};
  }
  return number;
}

// Writes the larger trace, operator by operator.
class Repeater {
 public:
  Repeater(const NamedTrace& few, const ModelSpec& spec, const RepeatedBlocks& repeated)
      : few_(few),
        repeated_(repeated),
        prefix_(absl::StrCat(spec.layers.blocks, ".")),
        // The period before the last of those that are kept: copies are made of it.
        begin_(repeated.first + (kKeptPeriods - 2) * repeated.period),
        end_(begin_ + repeated.period) {
    for (const std::string& name : few.tensor_names) {
      blocks_.push_back(FindBlockNumber(name, prefix_).block);
      tensors_of_period_ += IsCopied(blocks_.back()) ? 1 : 0;
    }
    first_behind_ = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i] != kNoBlock && blocks_[i] < end_) first_behind_ = i + 1;
    }
  }

  std::optional<NamedTrace> Make() {
    AddTensors();
    out_.trace.phase = few_.trace.phase;
    const int32_t count = few_.trace.num_positions();
    bool forward = true;
    for (int32_t at = 0; at < count;) {
      if (IsBegin(at)) offset_bytes_ = 0;
      const int32_t end = SegmentEnd(at);
      if (end == at) {
        Add(at++, std::nullopt);
        continue;
      }
      // Forward and backward take turns. What a period adds in one, it takes away in the other, and
      // backward comes to the last copy first.
      if (!SetGrowth(at, end, forward)) return std::nullopt;
      const int64_t copies = repeated_.left_out;
      for (int64_t i = 0; i <= copies; ++i) {
        if (i > 0) offset_bytes_ += forward ? growth_bytes_ : -growth_bytes_;
        for (int32_t op = at; op < end; ++op) Add(op, forward ? i : copies - i);
      }
      at = end;
      if (few_.trace.ends_with_update()) forward = !forward;
    }
    for (size_t i = 0; i < few_.trace.updated.size() + AddedTensors(); ++i) {
      if (!few_.trace.updated.empty()) out_.trace.updated.push_back(static_cast<int32_t>(i));
    }
    return std::move(out_);
  }

 private:
  bool IsCopied(int64_t block) const { return begin_ <= block && block < end_; }
  size_t AddedTensors() const {
    return static_cast<size_t>(tensors_of_period_ * repeated_.left_out);
  }
  int64_t BlockAt(int32_t position) const {
    const absl::Span<const TensorUse> uses = few_.trace.uses_of(position);
    return uses.empty() ? kNoBlock : blocks_[static_cast<size_t>(uses.front().tensor)];
  }
  // Whether a micro-batch begins, or the update: nothing is left of the one before.
  bool IsBegin(int32_t at) const {
    return few_.operator_names[at] == few_.operator_names[0] || few_.trace.uses_of(at).empty();
  }
  // The end of the copied period's operators that begin at `at`; `at` if none do.
  int32_t SegmentEnd(int32_t at) const {
    while (at < few_.trace.num_positions() && IsCopied(BlockAt(at))) ++at;
    return at;
  }

  // Sets what one more period adds to the operators from `at` to `end`, by those of the period
  // before. False: not the same to each.
  bool SetGrowth(int32_t at, int32_t end, bool forward) {
    // In forward the period before has come just before, in backward it comes next.
    const int32_t before = forward ? at - (end - at) : end;
    if (before < 0 || before + (end - at) > few_.trace.num_positions()) return false;
    growth_bytes_ = few_.trace.operators[at].non_model_peak_bytes -
                    few_.trace.operators[before].non_model_peak_bytes;
    for (int32_t i = 0; i < end - at; ++i) {
      const TracedOperator& here = few_.trace.operators[at + i];
      const TracedOperator& there = few_.trace.operators[before + i];
      if (!UsesAreMoved(before + i, at + i) || here.compute_ns != there.compute_ns ||
          here.non_model_peak_bytes - there.non_model_peak_bytes != growth_bytes_ ||
          Grown(few_.needs[before + i]) != few_.needs[at + i]) {
        return false;
      }
    }
    return true;
  }

  // Whether an operator uses what the other uses, a period later.
  bool UsesAreMoved(int32_t before, int32_t at) const {
    const auto is_moved = [&](const TensorUse& a, const TensorUse& b) {
      return a.tensor + tensors_of_period_ == b.tensor && a.kind == b.kind &&
             a.written == b.written;
    };
    return std::ranges::equal(few_.trace.uses_of(before), few_.trace.uses_of(at), is_moved);
  }
  OperatorNeed Grown(OperatorNeed need) const {
    return {need.pinned_bytes + growth_bytes_, need.bytes + growth_bytes_};
  }

  void AddTensors() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i == first_behind_) AddCopies();
      AddTensor(i, i < first_behind_ ? 0 : repeated_.left_out);
    }
    if (first_behind_ == blocks_.size()) AddCopies();
  }
  void AddCopies() {
    for (int64_t copy = 1; copy <= repeated_.left_out; ++copy) {
      for (size_t i = 0; i < blocks_.size(); ++i) {
        if (IsCopied(blocks_[i])) AddTensor(i, copy);
      }
    }
  }
  void AddTensor(size_t tensor, int64_t periods) {
    out_.trace.tensors.push_back(few_.trace.tensors[tensor]);
    out_.tensor_names.push_back(Renumbered(few_.tensor_names[tensor], periods));
  }

  // The name with the number of its block raised by so many periods.
  std::string Renumbered(const std::string& name, int64_t periods) const {
    if (periods == 0) return name;
    const BlockNumber number = FindBlockNumber(name, prefix_);
    if (number.block == kNoBlock) return name;
    return absl::StrCat(absl::string_view(name).substr(0, number.begin),
                        number.block + periods * repeated_.period,
                        absl::string_view(name).substr(number.end));
  }

  // `copy`: which one this is of the copied period, 0 being the smaller model's own; nothing: it is
  // no operator of that period.
  void Add(int32_t at, std::optional<int64_t> copy) {
    // How far its block and the neighbours of that are moved.
    const int64_t periods = copy.value_or(BlockAt(at) >= end_ ? repeated_.left_out : 0);
    const auto position = static_cast<int32_t>(out_.trace.operators.size());
    TracedOperator added = few_.trace.operators[at];
    added.first_use = static_cast<int32_t>(out_.trace.uses.size());
    added.non_model_peak_bytes += offset_bytes_;
    out_.trace.operators.push_back(added);
    for (TensorUse use : few_.trace.uses_of(at)) {
      use.tensor = TensorOf(use.tensor, periods);
      out_.trace.uses.push_back(use);
    }
    out_.operator_names.push_back(Renumbered(few_.operator_names[at], periods));
    const OperatorNeed& need = few_.needs[at];
    out_.needs.push_back({need.pinned_bytes + offset_bytes_, need.bytes + offset_bytes_});
    const std::vector<GradientOut>& outs = few_.trace.gradient_outs;
    const auto first = std::ranges::lower_bound(outs, at, {}, &GradientOut::position);
    for (auto out = first; out != outs.end() && out->position == at; ++out) {
      const int64_t moved = BlockAt(at) != kNoBlock ? periods : PeriodsBefore(out->tensor);
      out_.trace.gradient_outs.push_back({position, TensorOf(out->tensor, moved)});
    }
  }

  // How far a tensor is moved that is touched by no block's operator.
  int64_t PeriodsBefore(int32_t tensor) const {
    return static_cast<size_t>(tensor) < first_behind_ ? 0 : repeated_.left_out;
  }
  int32_t TensorOf(int32_t tensor, int64_t periods) const {
    if (blocks_[static_cast<size_t>(tensor)] == kNoBlock) periods = PeriodsBefore(tensor);
    return tensor + static_cast<int32_t>(periods * tensors_of_period_);
  }

  const NamedTrace& few_;
  const RepeatedBlocks& repeated_;
  const std::string prefix_;
  const int64_t begin_;  // Blocks that are copied.
  const int64_t end_;
  std::vector<int64_t> blocks_;  // By tensor of the smaller model.
  int64_t tensors_of_period_ = 0;
  size_t first_behind_ = 0;   // The first tensor behind those that are copied.
  int64_t growth_bytes_ = 0;  // What one more period keeps.
  int64_t offset_bytes_ = 0;  // What the copies keep now.
  NamedTrace out_;
};

}  // namespace

std::optional<RepeatedBlocks> FindRepeatedBlocks(const ModelSpec& spec) {
  const auto equal = [&](int64_t a, int64_t b) {
    return spec.KindOf(a) == spec.KindOf(b) && spec.HasExperts(a) == spec.HasExperts(b);
  };
  RepeatedBlocks best;
  for (int64_t period = 1; period <= kMaxPeriod; ++period) {
    for (int64_t first = 0, end = period; end <= spec.num_blocks; ++end) {
      if (end < spec.num_blocks && equal(end, end - period)) continue;
      const int64_t left_out = (end - first) / period - kKeptPeriods;
      if (left_out > 0 && left_out * period > best.left_out * best.period) {
        best = {first, period, left_out};
      }
      first = end - period + 1;
    }
  }
  if (best.left_out == 0) return std::nullopt;
  return best;
}

ModelSpec WithFewerBlocks(ModelSpec spec, const RepeatedBlocks& repeated) {
  const int64_t blocks = repeated.left_out * repeated.period;
  spec.num_blocks -= blocks;
  const auto cut = [&](auto& by_block) {
    if (by_block.empty()) return;
    const auto first = by_block.begin() + repeated.first;
    by_block.erase(first, first + blocks);
  };
  cut(spec.kind_of_block);
  cut(spec.has_experts);
  return spec;
}

std::optional<NamedTrace> RepeatBlocks(const NamedTrace& few, const ModelSpec& spec,
                                       const RepeatedBlocks& repeated) {
  return Repeater(few, spec, repeated).Make();
}

}  // namespace gemini::trainer
