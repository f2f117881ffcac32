// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_step_exchange.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

using client::kNormBlockElements;
using client::NumNormBlocks;

// Slots of a rank's part of a unit.
int64_t PartSlots(const ShardCut& cut) { return cut.part_elements() / kNormBlockElements; }

}  // namespace

// What a rank tells beside its slots. Behind it are its checksums, one for each group.
struct RankStepExchange::Header {
  int32_t code = 0;  // An absl::StatusCode.
  int32_t signal = 0;
  int32_t has_gradient = 0;
  int32_t text_size = 0;
  std::array<char, 496> text = {};

  absl::string_view message() const { return {text.data(), static_cast<size_t>(text_size)}; }
};

RankStepExchange::RankStepExchange(Communicator& communicator, std::vector<ShardCut> cuts)
    : communicator_(communicator), cuts_(std::move(cuts)) {
  for (size_t unit = 0; unit < cuts_.size(); ++unit) {
    first_slots_.push_back(num_slots_);
    for (const ShardPiece& piece : cuts_[unit].PiecesOf(communicator_.rank())) {
      pieces_.push_back({.unit = static_cast<int64_t>(unit),
                         .tensor = piece.tensor,
                         .first_slot = num_slots_ + piece.place / kNormBlockElements,
                         .num_blocks = NumNormBlocks(piece.count)});
    }
    num_slots_ += PartSlots(cuts_[unit]);
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

absl::Status RankStepExchange::WorstOf(absl::Span<const Header> headers) {
  const Header* worst = nullptr;
  int64_t num_failed = 0;
  for (const Header& header : headers) {
    const auto code = static_cast<absl::StatusCode>(header.code);
    if (code == absl::StatusCode::kOk) continue;
    ++num_failed;
    const bool is_worse =
        worst != nullptr && code != absl::StatusCode::kOutOfRange &&
        static_cast<absl::StatusCode>(worst->code) == absl::StatusCode::kOutOfRange;
    if (worst == nullptr || is_worse) worst = &header;
  }
  if (worst == nullptr) return absl::OkStatus();
  std::string text = absl::StrCat("rank ", worst - headers.data(), ": ", worst->message());
  if (num_failed > 1) absl::StrAppend(&text, " (", num_failed, " ranks cannot take the step)");
  return absl::Status(static_cast<absl::StatusCode>(worst->code), text);
}

absl::StatusOr<std::optional<double>> RankStepExchange::AgreeOnNorm(
    const absl::StatusOr<client::SquaresByTensor>& own) {
  absl::Status status = own.status();
  std::vector<double> slots(static_cast<size_t>(num_slots_));
  Header header;
  if (status.ok()) {
    absl::StatusOr<std::vector<double>> filled = SlotsOf(*own);
    status = filled.status();
    if (status.ok()) slots = *std::move(filled);
    header.has_gradient = std::ranges::all_of(*own, &std::vector<double>::empty) ? 0 : 1;
  }
  header.code = static_cast<int32_t>(status.code());
  header.signal = own_signal_;
  header.text_size = static_cast<int32_t>(std::min(status.message().size(), header.text.size()));
  std::copy_n(status.message().begin(), header.text_size, header.text.begin());
  const std::vector<uint32_t> checksums = communicator_.checksums();

  const size_t sums_bytes = checksums.size() * sizeof(uint32_t);
  const size_t part_bytes = sizeof(Header) + sums_bytes + slots.size() * sizeof(double);
  std::vector<std::byte> part(part_bytes);
  std::memcpy(part.data(), &header, sizeof(Header));
  std::memcpy(part.data() + sizeof(Header), checksums.data(), sums_bytes);
  std::memcpy(part.data() + sizeof(Header) + sums_bytes, slots.data(),
              slots.size() * sizeof(double));
  const auto num_ranks = static_cast<size_t>(communicator_.num_ranks());
  std::vector<std::byte> all(num_ranks * part_bytes);
  GEMINI_RETURN_IF_ERROR(communicator_
                             .AllGather(communicator_.world(), part.data(), all.data(),
                                        static_cast<int64_t>(part_bytes), "norm")
                             ->Wait());

  std::vector<Header> headers(num_ranks);
  std::vector<std::vector<uint32_t>> sums(num_ranks, checksums);
  std::vector<double> all_slots(num_ranks * slots.size());
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    const std::byte* const from = all.data() + rank * part_bytes;
    std::memcpy(&headers[rank], from, sizeof(Header));
    std::memcpy(sums[rank].data(), from + sizeof(Header), sums_bytes);
    std::memcpy(all_slots.data() + rank * slots.size(), from + sizeof(Header) + sums_bytes,
                slots.size() * sizeof(double));
  }
  GEMINI_RETURN_IF_ERROR(communicator_.CheckChecksums(sums));
  const auto signalled = std::ranges::find_if(headers, [](const Header& h) { return h.signal; });
  signal_ = signalled == headers.end() ? 0 : signalled->signal;
  GEMINI_RETURN_IF_ERROR(WorstOf(headers));
  if (std::ranges::none_of(headers, [](const Header& h) { return h.has_gradient; })) {
    return std::nullopt;
  }
  // Unit by unit, of each the parts of the ranks one behind the other: that is the order of its
  // tensors. Slots without a gradient add 0.
  client::SquaresByTensor in_order;
  for (size_t unit = 0; unit < cuts_.size(); ++unit) {
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      const auto first =
          all_slots.begin() + static_cast<int64_t>(rank) * num_slots_ + first_slots_[unit];
      in_order.emplace_back(first, first + PartSlots(cuts_[unit]));
    }
  }
  return client::NoExchange().AgreeOnNorm(in_order);
}

absl::Status RankStepExchange::CompleteTrustSquares(absl::Span<client::TrustSquares> squares) {
  client::SquaresByTensor params, directions;
  for (const client::TrustSquares& one : squares) {
    params.push_back(one.param);
    directions.push_back(one.direction);
  }
  GEMINI_ASSIGN_OR_RETURN(std::vector<double> slots, SlotsOf(params));
  GEMINI_ASSIGN_OR_RETURN(const std::vector<double> of_directions, SlotsOf(directions));
  slots.insert(slots.end(), of_directions.begin(), of_directions.end());
  std::vector<double> all(slots.size() * static_cast<size_t>(communicator_.num_ranks()));
  GEMINI_RETURN_IF_ERROR(communicator_
                             .AllGather(communicator_.world(), slots.data(), all.data(),
                                        static_cast<int64_t>(slots.size() * sizeof(double)),
                                        "trust ratios")
                             ->Wait());
  for (size_t i = 0; i < squares.size(); ++i) {
    if (squares[i].param.empty()) continue;
    const OwnPiece& piece = pieces_[i];
    squares[i].param = WholeTensor(piece, all, /*first=*/0);
    squares[i].direction = WholeTensor(piece, all, /*first=*/num_slots_);
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
  for (int64_t block = begin; block < begin + NumNormBlocks(cut.size(piece.tensor)); ++block) {
    const int64_t rank = block / per_part;
    blocks.push_back(slots[static_cast<size_t>(rank * 2 * num_slots_ + first +
                                               first_slots_[static_cast<size_t>(piece.unit)] +
                                               block % per_part)]);
  }
  return blocks;
}

}  // namespace gemini::trainer
