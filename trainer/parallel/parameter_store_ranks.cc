// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/parameter_store_ranks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// Of values in one message.
constexpr int64_t kWindowBytes = int64_t{4} << 20;
constexpr int64_t kWindowElements = kWindowBytes / kFloatBytes;
constexpr int64_t kRequestTag = 1;
constexpr int64_t kReplyTag = 2;
constexpr int64_t kBytesTag = 3;

std::vector<ShardCut> CutsOf(const GatheredModel& model) {
  std::vector<ShardCut> cuts;
  for (const std::unique_ptr<GatheredUnit>& unit : model.units()) cuts.push_back(unit->cut());
  return cuts;
}

std::vector<bool> UnitsHere(const GatheredModel& model) {
  std::vector<bool> is_here;
  for (size_t unit = 0; unit < model.units().size(); ++unit) {
    is_here.push_back(model.HasUnit(model.place().rank, unit));
  }
  return is_here;
}

// Whether a part is the first that has these boxes of a tensor.
bool IsFirst(const GatheredModel& model, const RankLayout& layout, size_t unit,
             const ParameterBoxes& boxes, size_t part) {
  return model.FirstRankWith(unit) == layout.pipeline_rank_of_part(part) &&
         boxes.IsFirstOf(layout.place_of_part(part));
}

RankStepExchange::CountsByTensor CountsOf(const GatheredModel& model, const RankLayout& layout) {
  RankStepExchange::CountsByTensor counts;
  for (size_t unit = 0; unit < model.units().size(); ++unit) {
    counts.emplace_back();
    for (const ParameterBoxes& boxes : model.boxes(unit)) {
      std::vector<bool>& of_tensor = counts.back().emplace_back();
      for (size_t part = 0; part < layout.parts().size(); ++part) {
        of_tensor.push_back(IsFirst(model, layout, unit, boxes, part));
      }
    }
  }
  return counts;
}

}  // namespace

RankStepExchange StepExchangeOf(const GatheredModel& model, Communicator& communicator,
                                const RankLayout& layout) {
  return RankStepExchange(communicator, layout, CutsOf(model), CountsOf(model, layout),
                          UnitsHere(model));
}

struct RanksParameterStore::Request {
  enum class What : int32_t { kRead, kStep, kEnd };
  What what = What::kRead;
  ChunkKind kind = ChunkKind::kParam;
  uint64_t tensor = 0;  // Its place in tensors_, and the piece's place in that.
  uint64_t piece = 0;
  ByteRange range = {};      // In the piece. At most a window.
  RankVerdict verdict = {};  // Of kEnd: of the first rank's work.
};

struct RanksParameterStore::Reply {
  RankVerdict verdict;
  int64_t number = 0;  // The tensor's step.
};

RanksParameterStore::RanksParameterStore(std::unique_ptr<ParameterStore> own, GatheredModel& model,
                                         Communicator& communicator, const RankLayout& layout)
    : own_(std::move(own)),
      model_(model),
      communicator_(communicator),
      exchange_(StepExchangeOf(model, communicator, layout)) {
  for (size_t u = 0; u < model.units().size(); ++u) {
    const GatheredUnit& unit = *model.units()[u];
    const size_t first = tensors_.size();
    for (size_t i = 0; i < unit.tensors().size(); ++i) {
      places_[unit.tensors()[i].name] = tensors_.size();
      Tensor& tensor = tensors_.emplace_back();
      tensor.boxes = &model.boxes(u)[i];
      tensor.num_elements = c10::multiply_integers(tensor.boxes->sizes());
    }
    for (size_t part = 0; part < layout.parts().size(); ++part) {
      if (!model.HasUnit(layout.pipeline_rank_of_part(part), u)) continue;
      const std::vector<int64_t>& ranks = layout.parts()[part];
      const bool is_own = std::ranges::find(ranks, communicator_.rank()) != ranks.end();
      const bool replicated = unit.cut().num_ranks() == 1;
      for (int64_t shard = 0; shard < unit.cut().num_ranks(); ++shard) {
        for (const ShardPiece& piece : unit.cut().PiecesOf(shard)) {
          const auto place = static_cast<size_t>(piece.tensor);
          Tensor& tensor = tensors_[first + place];
          tensor.pieces.push_back({.rank = replicated && is_own ? communicator_.rank()
                                                                : ranks[static_cast<size_t>(shard)],
                                   .name = PieceName(unit.tensors()[place].name, piece),
                                   .place = layout.place_of_part(part),
                                   .is_first = IsFirst(model, layout, u, *tensor.boxes, part),
                                   .first = piece.first,
                                   .count = piece.count});
        }
      }
    }
  }
}

absl::StatusOr<client::StepResult> RanksParameterStore::Update(const client::StepOptions& options) {
  client::StepOptions step = options;
  step.exchange = &exchange_;
  absl::StatusOr<client::StepResult> result = own_->Update(step);
  if (!result.ok() && exchange_.refused()) return MarkAsAgreed(result.status());
  model_.NoteUpdate();
  return result;
}

absl::StatusOr<size_t> RanksParameterStore::Find(absl::string_view name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return absl::NotFoundError(absl::StrCat("no parameter ", name));
  return found->second;
}

absl::StatusOr<int64_t> RanksParameterStore::Ask(int64_t rank, const Request& request) const {
  const auto sent = std::make_shared<Request>(request);
  GEMINI_RETURN_IF_ERROR(
      Await(communicator_.Send(communicator_.world(), sent.get(), sizeof(Request), rank,
                               kRequestTag, "read request"),
            sent));
  const auto reply = std::make_shared<Reply>();
  GEMINI_RETURN_IF_ERROR(Await(communicator_.Receive(communicator_.world(), reply.get(),
                                                     sizeof(Reply), rank, kReplyTag, "read reply"),
                               reply));
  const absl::Status status = reply->verdict.ToStatus();
  if (status.ok()) return reply->number;
  return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
}

absl::Status RanksParameterStore::ReadPiece(size_t tensor, size_t piece, ChunkKind kind,
                                            int64_t begin, int64_t end,
                                            std::vector<float>& values) {
  const Piece& from = tensors_[tensor].pieces[piece];
  values.resize(static_cast<size_t>(end - begin));
  const absl::Span<std::byte> bytes(reinterpret_cast<std::byte*>(values.data()),
                                    values.size() * sizeof(float));
  const ByteRange range = {(begin - from.first) * kFloatBytes, (end - begin) * kFloatBytes};
  if (from.rank == communicator_.rank()) {
    return own_->ReadRange(
        from.name, kind, range, [&](int64_t offset_bytes, absl::Span<const std::byte> read) {
          std::ranges::copy(read, bytes.begin() + (offset_bytes - range.offset_bytes));
          return absl::OkStatus();
        });
  }
  for (int64_t at = 0; at < range.size_bytes; at += kWindowBytes) {
    const int64_t size_bytes = std::min(kWindowBytes, range.size_bytes - at);
    GEMINI_RETURN_IF_ERROR(Ask(from.rank, {.kind = kind,
                                           .tensor = tensor,
                                           .piece = piece,
                                           .range = {range.offset_bytes + at, size_bytes}})
                               .status());
    const auto received = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(size_bytes));
    GEMINI_RETURN_IF_ERROR(
        Await(communicator_.Receive(communicator_.world(), received->data(), size_bytes, from.rank,
                                    kBytesTag, "read bytes"),
              received));
    std::ranges::copy(*received, bytes.begin() + at);
  }
  return absl::OkStatus();
}

absl::Status RanksParameterStore::ReadWindow(size_t tensor, ChunkKind kind, int64_t begin,
                                             int64_t end, std::vector<float>& window) {
  const Tensor& whole = tensors_[tensor];
  window.resize(static_cast<size_t>(end - begin));
  std::vector<BoxRun> runs;
  std::vector<float> values;
  for (size_t i = 0; i < whole.pieces.size(); ++i) {
    const Piece& piece = whole.pieces[i];
    if (!piece.is_first) continue;
    // From the first element that is needed to the last: of whole rows there is nothing between.
    runs.clear();
    int64_t first = piece.end(), last = piece.first;
    whole.boxes->VisitRunsInWhole(piece.place, begin, end, [&](BoxRun run) {
      const int64_t before = std::max<int64_t>(piece.first - run.local_offset, 0);
      run.whole_offset += before;
      run.local_offset += before;
      run.count = std::min(run.count - before, piece.end() - run.local_offset);
      if (run.count <= 0) return;
      first = std::min(first, run.local_offset);
      last = std::max(last, run.local_offset + run.count);
      runs.push_back(run);
    });
    if (runs.empty()) continue;
    GEMINI_RETURN_IF_ERROR(ReadPiece(tensor, i, kind, first, last, values));
    for (const BoxRun& run : runs) {
      std::copy_n(values.begin() + (run.local_offset - first), run.count,
                  window.begin() + (run.whole_offset - begin));
    }
  }
  return absl::OkStatus();
}

absl::Status RanksParameterStore::ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                                            Sink sink) {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  const int64_t begin = range.offset_bytes / kFloatBytes;
  const int64_t end = std::min(range.end_bytes() / kFloatBytes, tensors_[tensor].num_elements);
  std::vector<float> window;
  for (int64_t at = begin; at < end; at += kWindowElements) {
    GEMINI_RETURN_IF_ERROR(
        ReadWindow(tensor, kind, at, std::min(at + kWindowElements, end), window));
    GEMINI_RETURN_IF_ERROR(sink(
        at * kFloatBytes, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(window.data()),
                                              window.size() * sizeof(float))));
  }
  return absl::OkStatus();
}

absl::Status RanksParameterStore::Write(absl::string_view name, ChunkKind kind, Source source) {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  model_.NoteUpdate();
  for (const Piece& piece : tensors_[tensor].pieces) {
    if (piece.rank != communicator_.rank()) continue;
    GEMINI_RETURN_IF_ERROR(own_->Write(
        piece.name, kind, [&](int64_t offset_bytes, absl::Span<std::byte> bytes) -> absl::Status {
          const int64_t begin = piece.first + offset_bytes / kFloatBytes;
          const int64_t end = begin + static_cast<int64_t>(bytes.size()) / kFloatBytes;
          absl::Status status;
          std::ranges::fill(bytes, std::byte{0});  // What no box has stays so.
          tensors_[tensor].boxes->VisitRunsInLocal(piece.place, begin, end, [&](const BoxRun& run) {
            if (!status.ok()) return;
            status =
                source(run.whole_offset * kFloatBytes,
                       bytes.subspan(static_cast<size_t>((run.local_offset - begin) * kFloatBytes),
                                     static_cast<size_t>(run.count * kFloatBytes)));
          });
          return status;
        }));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RanksParameterStore::TensorStep(absl::string_view name) const {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  const std::vector<Piece>& pieces = tensors_[tensor].pieces;
  if (pieces.empty()) return 0;  // It has no elements.
  for (const Piece& piece : pieces) {
    if (piece.rank == communicator_.rank()) return own_->TensorStep(piece.name);
  }
  return Ask(pieces.front().rank, {.what = Request::What::kStep, .tensor = tensor});
}

absl::Status RanksParameterStore::SetTensorStep(absl::string_view name, int64_t step) {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  for (const Piece& piece : tensors_[tensor].pieces) {
    if (piece.rank != communicator_.rank()) continue;
    GEMINI_RETURN_IF_ERROR(own_->SetTensorStep(piece.name, step));
  }
  return absl::OkStatus();
}

absl::Status RanksParameterStore::OnFirstRank(absl::FunctionRef<absl::Status()> work) {
  if (communicator_.rank() != 0) return Serve();
  const absl::Status status = work();
  const auto end = std::make_shared<Request>();
  end->what = Request::What::kEnd;
  end->verdict = RankVerdict(status);
  for (int64_t rank = 1; rank < communicator_.num_ranks(); ++rank) {
    GEMINI_RETURN_IF_ERROR(
        Await(communicator_.Send(communicator_.world(), end.get(), sizeof(Request), rank,
                                 kRequestTag, "read request"),
              end));
  }
  return MarkAsAgreed(status);
}

absl::Status RanksParameterStore::Serve() {
  while (true) {
    const auto request = std::make_shared<Request>();
    GEMINI_RETURN_IF_ERROR(
        Await(communicator_.Receive(communicator_.world(), request.get(), sizeof(Request),
                                    /*from_place=*/0, kRequestTag, "read request"),
              request));
    if (request->what == Request::What::kEnd) return MarkAsAgreed(request->verdict.ToStatus());
    const auto bytes = std::make_shared<std::vector<std::byte>>();
    const absl::StatusOr<int64_t> number = Answer(*request, *bytes);
    const auto reply = std::make_shared<Reply>();
    reply->verdict = RankVerdict(number.status());
    reply->number = number.value_or(0);
    GEMINI_RETURN_IF_ERROR(
        Await(communicator_.Send(communicator_.world(), reply.get(), sizeof(Reply),
                                 /*to_place=*/0, kReplyTag, "read reply"),
              reply));
    if (!number.ok() || request->what != Request::What::kRead) continue;
    GEMINI_RETURN_IF_ERROR(Await(communicator_.Send(communicator_.world(), bytes->data(),
                                                    static_cast<int64_t>(bytes->size()),
                                                    /*to_place=*/0, kBytesTag, "read bytes"),
                                 bytes));
  }
}

absl::StatusOr<int64_t> RanksParameterStore::Answer(const Request& request,
                                                    std::vector<std::byte>& bytes) {
  const absl::Status wrong = absl::InternalError("the first rank asks for what is not there");
  if (request.tensor >= tensors_.size() ||
      request.piece >= tensors_[request.tensor].pieces.size()) {
    return wrong;
  }
  const Piece& piece = tensors_[request.tensor].pieces[request.piece];
  if (piece.rank != communicator_.rank()) return wrong;
  if (request.what == Request::What::kStep) return own_->TensorStep(piece.name);
  const bool has_kind = request.kind == ChunkKind::kParam || request.kind == ChunkKind::kExpAvg ||
                        request.kind == ChunkKind::kExpAvgSq;
  if (!has_kind || request.range.offset_bytes < 0 || request.range.size_bytes < 0 ||
      request.range.size_bytes > kWindowBytes) {
    return wrong;
  }
  bytes.resize(static_cast<size_t>(request.range.size_bytes));
  int64_t filled_bytes = 0;
  GEMINI_RETURN_IF_ERROR(
      own_->ReadRange(piece.name, request.kind, request.range,
                      [&](int64_t offset_bytes, absl::Span<const std::byte> read) {
                        std::memcpy(bytes.data() + (offset_bytes - request.range.offset_bytes),
                                    read.data(), read.size());
                        filled_bytes += static_cast<int64_t>(read.size());
                        return absl::OkStatus();
                      }));
  if (filled_bytes == request.range.size_bytes) return filled_bytes;
  return absl::InternalError(
      absl::StrCat(piece.name, " gave ", filled_bytes, " of ", request.range.size_bytes, " bytes"));
}

}  // namespace gemini::trainer
