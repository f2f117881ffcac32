// SPDX-License-Identifier: Apache-2.0
#include "server/wire/request_wire.h"

#include "absl/strings/str_cat.h"
#include "gemini/wire_generated.h"

namespace gemini::server {
namespace {

std::string StringOf(const flatbuffers::String* text) {
  return text == nullptr ? std::string() : text->str();
}

TierMap<int64_t> BytesOf(const wire::TierBytes* bytes) {
  if (bytes == nullptr) return {};
  return {{bytes->device(), bytes->host(), bytes->nvme()}};
}

MeasuredRates RatesOf(const wire::MeasuredRates* rates) {
  if (rates == nullptr) return {};
  return {rates->host_to_device(), rates->device_to_host(),  rates->nvme_read(),
          rates->nvme_write(),     rates->update_elements(), rates->device_update_elements()};
}

PeerRole RoleOf(wire::Role role) {
  switch (role) {
    case wire::Role::kTrainer:
      return PeerRole::kTrainer;
    case wire::Role::kObserver:
      return PeerRole::kObserver;
    default:
      return PeerRole::kUnknown;
  }
}

}  // namespace

absl::StatusOr<Request> ParseRequest(absl::string_view bytes) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  // The identifier is read by the verifier only after it checked the size.
  if (!wire::VerifyMessageBuffer(verifier)) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes that are no message"));
  }
  const wire::Message* message = wire::GetMessage(bytes.data());
  Request request;
  request.id = message->request_id();
  if (message->body() == nullptr) return absl::InvalidArgumentError("a message without a body");
  switch (message->body_type()) {
    case wire::Body::Hello: {
      const wire::Hello* hello = message->body_as_Hello();
      request.body = HelloRequest{hello->protocol(), StringOf(hello->build()),
                                  RoleOf(hello->role()), StringOf(hello->label())};
      return request;
    }
    case wire::Body::OpenLease: {
      const wire::OpenLease* open = message->body_as_OpenLease();
      request.body =
          OpenLeaseRequest{BytesOf(open->want()), BytesOf(open->floor()), open->takes_epochs()};
      return request;
    }
    case wire::Body::OpenSpace: {
      const wire::OpenSpace* open = message->body_as_OpenSpace();
      request.body =
          OpenSpaceRequest{StringOf(open->name()), open->chunk_bytes(), open->num_bundles(),
                           open->host_slots(),     open->nvme_slots(),  open->num_tensors()};
      return request;
    }
    case wire::Body::TakeSlabs: {
      const wire::TakeSlabs* take = message->body_as_TakeSlabs();
      request.body = TakeSlabsRequest{take->space(), take->first(), take->count()};
      return request;
    }
    case wire::Body::KeepSlabs:
      request.body = KeepSlabsRequest{message->body_as_KeepSlabs()->num_slabs()};
      return request;
    case wire::Body::CloseSpace:
      request.body = CloseSpaceRequest{message->body_as_CloseSpace()->space()};
      return request;
    case wire::Body::CloseSession:
      request.body = CloseSessionRequest{};
      return request;
    case wire::Body::GetStatus:
      request.body = GetStatusRequest{};
      return request;
    case wire::Body::ListChunks: {
      const wire::ListChunks* list = message->body_as_ListChunks();
      request.body = ListChunksRequest{StringOf(list->space()), list->first(), list->count()};
      return request;
    }
    case wire::Body::OpenTrace:
      request.body = OpenTraceRequest{message->body_as_OpenTrace()->size_bytes()};
      return request;
    case wire::Body::MakePlan: {
      const wire::MakePlan* make = message->body_as_MakePlan();
      request.body = MakePlanRequest{
          make->device_bytes(),     make->chunk_bytes(),        make->policy(),
          make->param_fraction(),   make->optimizer_fraction(), RatesOf(make->measured()),
          make->device_bandwidth(), make->device_apart_bytes()};
      return request;
    }
    case wire::Body::FindTrace: {
      const wire::FindTrace* find = message->body_as_FindTrace();
      request.body =
          FindTraceRequest{StringOf(find->space()), StringOf(find->phase()), find->tensors_hash()};
      return request;
    }
    case wire::Body::AckEpoch: {
      const wire::AckEpoch* ack = message->body_as_AckEpoch();
      request.body = AckEpochRequest{ack->epoch(), ack->device_bytes()};
      return request;
    }
    case wire::Body::ReadTimeline: {
      const wire::ReadTimeline* read = message->body_as_ReadTimeline();
      request.body = ReadTimelineRequest{StringOf(read->space()), read->first()};
      return request;
    }
    case wire::Body::FindPlanInputs: {
      const wire::FindPlanInputs* find = message->body_as_FindPlanInputs();
      request.body = FindPlanInputsRequest{StringOf(find->space()), StringOf(find->phase())};
      return request;
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "a message of type ", static_cast<int>(message->body_type()), ", which no client sends"));
  }
}

}  // namespace gemini::server
