// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_step_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

using client::kNormBlockElements;
using client::NumNormBlocks;

// Slots of a rank's part of a unit.
int64_t PartSlots(const ShardCut& cut) { return cut.part_elements() / kNormBlockElements; }

}  // namespace

// What a rank tells beside its slots. Behind it are its checksums, one for each group.
struct RankStepExchange::Header {
  RankVerdict verdict;
  int64_t has_gradient = 0;
};

// What a rank sends, as bytes: a header, checksums, and slots.
class RankStepExchange::Parts {
 public:
  Parts(int64_t num_ranks, size_t num_groups, int64_t num_slots)
      : slots_at_(sizeof(Header) + num_groups * sizeof(uint32_t)),
        part_bytes_(slots_at_ + static_cast<size_t>(num_slots) * sizeof(double)),
        bytes_(static_cast<size_t>(num_ranks) * part_bytes_) {
    static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 512);
  }
  std::byte* of(int64_t rank) { return bytes_.data() + static_cast<size_t>(rank) * part_bytes_; }
  std::byte* all() { return bytes_.data(); }
  int64_t part_bytes() const { return static_cast<int64_t>(part_bytes_); }

  void Put(int64_t rank, const Header& header, absl::Span<const uint32_t> checksums,
           absl::Span<const double> slots) {
    std::memcpy(of(rank), &header, sizeof(Header));
    std::memcpy(of(rank) + sizeof(Header), checksums.data(), checksums.size() * sizeof(uint32_t));
    std::memcpy(of(rank) + slots_at_, slots.data(), slots.size() * sizeof(double));
  }
  Header HeaderOf(int64_t rank) {
    Header header;
    std::memcpy(&header, of(rank), sizeof(Header));
    return header;
  }
  std::vector<uint32_t> ChecksumsOf(int64_t rank) {
    std::vector<uint32_t> checksums((slots_at_ - sizeof(Header)) / sizeof(uint32_t));
    std::memcpy(checksums.data(), of(rank) + sizeof(Header), slots_at_ - sizeof(Header));
    return checksums;
  }
  std::vector<double> SlotsOf(int64_t rank, int64_t first, int64_t count) {
    std::vector<double> slots(static_cast<size_t>(count));
    std::memcpy(slots.data(), of(rank) + slots_at_ + static_cast<size_t>(first) * sizeof(double),
                slots.size() * sizeof(double));
    return slots;
  }

 private:
  const size_t slots_at_;
  const size_t part_bytes_;
  std::vector<std::byte> bytes_;
};

RankStepExchange::RankStepExchange(Communicator& communicator, const RankLayout& layout,
                                   std::vector<ShardCut> cuts, CountsByTensor counts,
                                   const std::vector<bool>& is_here)
    : communicator_(communicator),
      layout_(layout),
      cuts_(std::move(cuts)),
      counts_(std::move(counts)) {
  const std::vector<std::vector<int64_t>>& parts = layout_.parts();
  int64_t own_shard = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    const auto found = std::ranges::find(parts[part], communicator_.rank());
    if (found == parts[part].end()) continue;
    own_part_ = part;
    own_shard = found - parts[part].begin();
  }
  const auto num_shards = std::ssize(parts.front());
  const bool replicated = num_shards > 1 && !cuts_.empty() && cuts_.front().num_ranks() == 1;
  sends_squares_ = !replicated || parts.size() > 1;
  for (size_t unit = 0; unit < cuts_.size(); ++unit) {
    GEMINI_CHECK(cuts_[unit].num_ranks() == (replicated ? 1 : num_shards));
    GEMINI_CHECK(cuts_[unit].part_elements() % kNormBlockElements == 0);
    first_slots_.push_back(num_slots_);
    const int64_t first_slot = num_slots_;
    num_slots_ += PartSlots(cuts_[unit]);
    if (!is_here.empty() && !is_here[unit]) continue;
    for (const ShardPiece& piece : cuts_[unit].PiecesOf(replicated ? 0 : own_shard)) {
      pieces_.push_back({.unit = static_cast<int64_t>(unit),
                         .tensor = piece.tensor,
                         .first_slot = first_slot + piece.place / kNormBlockElements,
                         .num_blocks = NumNormBlocks(piece.count)});
    }
  }
}

absl::StatusOr<std::vector<double>> RankStepExchange::SlotsOf(
    const client::SquaresByTensor& own) const {
  std::vector<double> slots(static_cast<size_t>(num_slots_));
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].empty()) continue;
    if (i >= pieces_.size() || std::ssize(own[i]) != pieces_[i].num_blocks) {
      return absl::InternalError(absl::StrCat("tensor ", i, " of this rank has a gradient of ",
                                              own[i].size(), " blocks, which are not those of ",
                                              pieces_.size(), " pieces"));
    }
    std::ranges::copy(own[i], slots.begin() + pieces_[i].first_slot);
  }
  return slots;
}

absl::StatusOr<std::optional<double>> RankStepExchange::AgreeOnNorm(
    const absl::StatusOr<client::SquaresByTensor>& own) {
  absl::Status status = own.status();
  std::vector<double> slots(static_cast<size_t>(num_slots_));
  Header header;
  if (status.ok()) {
    absl::StatusOr<std::vector<double>> filled = SlotsOf(*own);
    status = filled.status();
    if (status.ok()) {
      slots = *std::move(filled);
      LeaveOutCopies(slots);
    }
    header.has_gradient = std::ranges::all_of(*own, &std::vector<double>::empty) ? 0 : 1;
  }
  header.verdict = RankVerdict(status);
  const std::vector<uint32_t> checksums = communicator_.checksums();
  const int64_t num_ranks = communicator_.num_ranks();
  const auto sent = absl::MakeConstSpan(slots).first(sends_squares_ ? slots.size() : 0);
  const auto parts = std::make_shared<Parts>(num_ranks, checksums.size(), std::ssize(sent));
  parts->Put(communicator_.rank(), header, checksums, sent);
  refused_ = false;
  GEMINI_RETURN_IF_ERROR(
      Await(communicator_.AllGather(communicator_.world(), parts->of(communicator_.rank()),
                                    parts->all(), parts->part_bytes(), "norm"),
            parts));
  absl::StatusOr<std::optional<double>> norm = NormFrom(*parts, slots);
  refused_ = !norm.ok();
  return norm;
}

absl::StatusOr<std::optional<double>> RankStepExchange::NormFrom(
    Parts& parts, absl::Span<const double> own) const {
  std::vector<Header> headers;
  std::vector<std::vector<uint32_t>> sums;
  for (int64_t rank = 0; rank < communicator_.num_ranks(); ++rank) {
    headers.push_back(parts.HeaderOf(rank));
    sums.push_back(parts.ChecksumsOf(rank));
  }
  std::vector<RankVerdict> verdicts;
  for (const Header& one : headers) verdicts.push_back(one.verdict);
  const absl::Status worst = WorstOf(verdicts);
  if (absl::Status same = communicator_.CheckChecksums(sums); !same.ok()) {
    // A rank that failed may have issued less.
    return worst.ok() ? same
                      : absl::InternalError(absl::StrCat(same.message(), "; ", worst.message()));
  }
  GEMINI_RETURN_IF_ERROR(worst);
  if (std::ranges::none_of(headers, [](const Header& h) { return h.has_gradient; })) {
    return std::nullopt;
  }
  // Unit by unit, of each the shards one behind the other: that is the order of its tensors. Slots
  // without a gradient add 0.
  double sum = 0;
  if (!sends_squares_) sum = client::AddInOrder(sum, own);
  for (size_t unit = 0; sends_squares_ && unit < cuts_.size(); ++unit) {
    for (const std::vector<int64_t>& ranks : layout_.parts()) {
      for (int64_t shard = 0; shard < cuts_[unit].num_ranks(); ++shard) {
        sum = client::AddInOrder(sum, parts.SlotsOf(ranks[static_cast<size_t>(shard)],
                                                    first_slots_[unit], PartSlots(cuts_[unit])));
      }
    }
  }
  GEMINI_ASSIGN_OR_RETURN(const double norm, client::NormOfSum(sum));
  return norm;
}

absl::Status RankStepExchange::CompleteTrustSquares(absl::Span<client::TrustSquares> squares) {
  if (!sends_squares_) return absl::OkStatus();  // They are of whole tensors.
  client::SquaresByTensor params, directions;
  for (const client::TrustSquares& one : squares) {
    params.push_back(one.param);
    directions.push_back(one.direction);
  }
  GEMINI_ASSIGN_OR_RETURN(std::vector<double> slots, SlotsOf(params));
  GEMINI_ASSIGN_OR_RETURN(const std::vector<double> of_directions, SlotsOf(directions));
  slots.insert(slots.end(), of_directions.begin(), of_directions.end());
  const auto all = std::make_shared<std::vector<double>>(
      slots.size() * static_cast<size_t>(communicator_.num_ranks()));
  double* const own = all->data() + static_cast<size_t>(communicator_.rank()) * slots.size();
  std::ranges::copy(slots, own);
  GEMINI_RETURN_IF_ERROR(Await(
      communicator_.AllGather(communicator_.world(), own, all->data(),
                              static_cast<int64_t>(slots.size() * sizeof(double)), "trust ratios"),
      all));
  for (size_t i = 0; i < squares.size(); ++i) {
    if (squares[i].param.empty()) continue;
    const OwnPiece& piece = pieces_[i];
    squares[i].param = WholeTensor(piece, *all, /*first=*/0);
    squares[i].direction = WholeTensor(piece, *all, /*first=*/num_slots_);
  }
  return absl::OkStatus();
}

std::vector<double> RankStepExchange::WholeTensor(const OwnPiece& piece,
                                                  absl::Span<const double> slots,
                                                  int64_t first) const {
  const ShardCut& cut = cuts_[static_cast<size_t>(piece.unit)];
  const int64_t per_part = PartSlots(cut);
  const int64_t begin = cut.place(piece.tensor) / kNormBlockElements;
  std::vector<double> blocks;
  for (size_t part = 0; part < layout_.parts().size(); ++part) {
    if (!Counts(piece.unit, piece.tensor, part)) continue;
    for (int64_t block = begin; block < begin + NumNormBlocks(cut.size(piece.tensor)); ++block) {
      const int64_t rank = layout_.parts()[part][static_cast<size_t>(block / per_part)];
      blocks.push_back(slots[static_cast<size_t>(rank * 2 * num_slots_ + first +
                                                 first_slots_[static_cast<size_t>(piece.unit)] +
                                                 block % per_part)]);
    }
  }
  return blocks;
}

bool RankStepExchange::Counts(int64_t unit, int64_t tensor, size_t part) const {
  return counts_.empty() || counts_[static_cast<size_t>(unit)][static_cast<size_t>(tensor)][part];
}

void RankStepExchange::LeaveOutCopies(std::vector<double>& slots) const {
  for (const OwnPiece& piece : pieces_) {
    if (Counts(piece.unit, piece.tensor, own_part_)) continue;
    std::fill_n(slots.begin() + piece.first_slot, piece.num_blocks, 0.0);
  }
}

}  // namespace gemini::trainer
