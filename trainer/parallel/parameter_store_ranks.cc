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
constexpr int64_t kRequestTag = 1;
constexpr int64_t kReplyTag = 2;
constexpr int64_t kBytesTag = 3;

std::vector<ShardCut> CutsOf(const GatheredLm& model) {
  std::vector<ShardCut> cuts;
  for (const std::unique_ptr<GatheredUnit>& unit : model.units()) cuts.push_back(unit->cut());
  return cuts;
}

}  // namespace

struct RanksParameterStore::Request {
  enum class What : int32_t { kRead, kStep, kEnd };
  What what = What::kRead;
  ChunkKind kind = ChunkKind::kParam;
  uint64_t tensor = 0;  // Its place in tensors_, and the part's place in that.
  uint64_t part = 0;
  ByteRange range = {};      // In the part. At most a window.
  RankVerdict verdict = {};  // Of kEnd: of the first rank's work.
};

struct RanksParameterStore::Reply {
  RankVerdict verdict;
  int64_t number = 0;  // The tensor's step.
};

RanksParameterStore::RanksParameterStore(std::unique_ptr<ParameterStore> own, GatheredLm& model,
                                         Communicator& communicator)
    : own_(std::move(own)),
      model_(model),
      communicator_(communicator),
      exchange_(communicator, CutsOf(model)) {
  for (const std::unique_ptr<GatheredUnit>& unit : model.units()) {
    const size_t first = tensors_.size();
    for (const UnitTensor& tensor : unit->tensors()) {
      places_[tensor.name] = tensors_.size();
      tensors_.emplace_back();
    }
    const bool replicated = unit->cut().num_ranks() == 1;
    for (int64_t rank = 0; rank < unit->cut().num_ranks(); ++rank) {
      for (const ShardPiece& piece : unit->cut().PiecesOf(rank)) {
        const auto tensor = static_cast<size_t>(piece.tensor);
        tensors_[first + tensor].push_back({.rank = replicated ? communicator_.rank() : rank,
                                            .name = PieceName(unit->tensors()[tensor].name, piece),
                                            .offset_bytes = piece.first * kFloatBytes,
                                            .size_bytes = piece.count * kFloatBytes});
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

absl::Status RanksParameterStore::ReadThere(const Part& part, Request request, Sink sink) const {
  const int64_t end_bytes = request.range.end_bytes();
  for (int64_t at = request.range.offset_bytes; at < end_bytes; at += kWindowBytes) {
    const int64_t size_bytes = std::min(kWindowBytes, end_bytes - at);
    request.range = {at, size_bytes};
    GEMINI_RETURN_IF_ERROR(Ask(part.rank, request).status());
    const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(size_bytes));
    GEMINI_RETURN_IF_ERROR(
        Await(communicator_.Receive(communicator_.world(), bytes->data(), size_bytes, part.rank,
                                    kBytesTag, "read bytes"),
              bytes));
    GEMINI_RETURN_IF_ERROR(sink(part.offset_bytes + at, *bytes));
  }
  return absl::OkStatus();
}

absl::Status RanksParameterStore::ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                                            Sink sink) {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  for (size_t i = 0; i < tensors_[tensor].size(); ++i) {
    const Part& part = tensors_[tensor][i];
    if (!range.Overlaps(part.offset_bytes, part.size_bytes)) continue;
    const int64_t first = std::max(range.offset_bytes - part.offset_bytes, int64_t{0});
    const int64_t end = std::min(range.end_bytes() - part.offset_bytes, part.size_bytes);
    const ByteRange in_part = {first, end - first};
    if (part.rank == communicator_.rank()) {
      GEMINI_RETURN_IF_ERROR(own_->ReadRange(
          part.name, kind, in_part, [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
            return sink(part.offset_bytes + offset_bytes, bytes);
          }));
    } else {
      const Request request = {.kind = kind, .tensor = tensor, .part = i, .range = in_part};
      GEMINI_RETURN_IF_ERROR(ReadThere(part, request, sink));
    }
  }
  return absl::OkStatus();
}

absl::Status RanksParameterStore::Write(absl::string_view name, ChunkKind kind, Source source) {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  model_.NoteUpdate();
  for (const Part& part : tensors_[tensor]) {
    if (part.rank != communicator_.rank()) continue;
    GEMINI_RETURN_IF_ERROR(
        own_->Write(part.name, kind, [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
          return source(part.offset_bytes + offset_bytes, bytes);
        }));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RanksParameterStore::TensorStep(absl::string_view name) const {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  const std::vector<Part>& parts = tensors_[tensor];
  if (parts.empty()) return 0;  // It has no elements.
  for (const Part& part : parts) {
    if (part.rank == communicator_.rank()) return own_->TensorStep(part.name);
  }
  return Ask(parts.front().rank, {.what = Request::What::kStep, .tensor = tensor});
}

absl::Status RanksParameterStore::SetTensorStep(absl::string_view name, int64_t step) {
  GEMINI_ASSIGN_OR_RETURN(const size_t tensor, Find(name));
  for (const Part& part : tensors_[tensor]) {
    if (part.rank != communicator_.rank()) continue;
    GEMINI_RETURN_IF_ERROR(own_->SetTensorStep(part.name, step));
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
  if (request.tensor >= tensors_.size() || request.part >= tensors_[request.tensor].size()) {
    return wrong;
  }
  const Part& part = tensors_[request.tensor][request.part];
  if (part.rank != communicator_.rank()) return wrong;
  if (request.what == Request::What::kStep) return own_->TensorStep(part.name);
  const bool has_kind = request.kind == ChunkKind::kParam || request.kind == ChunkKind::kExpAvg ||
                        request.kind == ChunkKind::kExpAvgSq;
  if (!has_kind || request.range.offset_bytes < 0 || request.range.size_bytes < 0 ||
      request.range.size_bytes > kWindowBytes) {
    return wrong;
  }
  bytes.resize(static_cast<size_t>(request.range.size_bytes));
  int64_t filled_bytes = 0;
  GEMINI_RETURN_IF_ERROR(
      own_->ReadRange(part.name, request.kind, request.range,
                      [&](int64_t offset_bytes, absl::Span<const std::byte> piece) {
                        std::memcpy(bytes.data() + (offset_bytes - request.range.offset_bytes),
                                    piece.data(), piece.size());
                        filled_bytes += static_cast<int64_t>(piece.size());
                        return absl::OkStatus();
                      }));
  if (filled_bytes == request.range.size_bytes) return filled_bytes;
  return absl::InternalError(
      absl::StrCat(part.name, " gave ", filled_bytes, " of ", request.range.size_bytes, " bytes"));
}

}  // namespace gemini::trainer
