// SPDX-License-Identifier: Apache-2.0
// Verifies a peer's request and turns it into the server's types. No other code reads a peer's
// buffer.
// Thread: any.
#pragma once
#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/cost_model.h"
#include "gemini/tier.h"

namespace gemini::server {

enum class PeerRole { kUnknown, kTrainer, kObserver };

// Numbers are as the peer sent them: any int64_t. A table that was left out is zeros.
struct HelloRequest {
  uint32_t protocol = 0;
  std::string build;
  PeerRole role = PeerRole::kUnknown;
  std::string label;
};
struct OpenLeaseRequest {
  TierMap<int64_t> want;
  TierMap<int64_t> floor;
  bool takes_epochs = false;
};
struct AckEpochRequest {
  uint64_t epoch = 0;
  int64_t device_bytes = 0;
};
struct OpenSpaceRequest {
  std::string name;
  int64_t chunk_bytes = 0;
  int64_t num_bundles = 0;
  int64_t host_slots = 0;
  int64_t nvme_slots = 0;
  int64_t num_tensors = 0;
};
struct TakeSlabsRequest {
  uint64_t space = 0;
  int64_t first = 0;
  int64_t count = 0;
};
struct KeepSlabsRequest {
  int64_t num_slabs = 0;
};
struct CloseSpaceRequest {
  uint64_t space = 0;
};
struct CloseSessionRequest {};
struct GetStatusRequest {};
struct ListChunksRequest {
  std::string space;
  int64_t first = 0;
  int64_t count = 0;
};

struct OpenTraceRequest {
  int64_t size_bytes = 0;
};
struct MakePlanRequest {
  int64_t device_bytes = 0;
  int64_t chunk_bytes = 0;
  uint8_t policy = 0;  // A PolicyKind, or any other number.
  double param_fraction = 0;
  double optimizer_fraction = 0;
  MeasuredRates measured;
  double device_bandwidth = 0;
  int64_t device_apart_bytes = 0;
};
struct FindTraceRequest {
  std::string space;
  std::string phase;
  uint64_t tensors_hash = 0;
};
struct ReadTimelineRequest {
  std::string space;
  uint64_t first = 0;
};
struct FindPlanInputsRequest {
  std::string space;
  std::string phase;
};

struct Request {
  uint64_t id = 0;
  std::variant<HelloRequest, OpenLeaseRequest, OpenSpaceRequest, TakeSlabsRequest,
               CloseSpaceRequest, CloseSessionRequest, GetStatusRequest, ListChunksRequest,
               OpenTraceRequest, MakePlanRequest, FindTraceRequest, AckEpochRequest,
               ReadTimelineRequest, FindPlanInputsRequest, KeepSlabsRequest>
      body;
};

// INVALID_ARGUMENT: `bytes` is no verified message of the protocol, or one that only servers send.
absl::StatusOr<Request> ParseRequest(absl::string_view bytes);

}  // namespace gemini::server
