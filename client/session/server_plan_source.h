// SPDX-License-Identifier: Apache-2.0
// Gets plans from the session's server, which keeps the traces. Each trace is written into memory
// that the server made, and the plan is returned in memory that nobody can write.
// Thread: any; calls wait for each other, and for other requests of the connection.
// Errors: the server's refusal. INVALID_ARGUMENT: what it sent is no plan of this trace.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/plan/plan_source.h"
#include "client/session/host_pins.h"
#include "client/wire/connection.h"
#include "gemini/policy_options.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

struct ServerPlanOptions {
  int64_t chunk_bytes = 0;
  PolicyOptions policy = {};
  int64_t device_bandwidth = 0;  // Bytes a second in each direction; 0 stands for the machine's.
  // Each request reports the rates of this timeline, to refresh the server's cost model. It
  // outlives the source, and may be null.
  const TimelineShm* timeline = nullptr;
  // The bytes of DEVICE used beside a plan's budget (LeasedDevice::SetApart). It outlives the
  // source; null stands for none.
  const std::atomic<int64_t>* apart_bytes = nullptr;
  // Progress of registering the memory that copies use: until it rests, copies are slower than
  // afterwards. Null if they are not.
  std::shared_ptr<const PinProgress> pins = nullptr;
};

class ServerPlanSource : public PlanSource {
 public:
  // A plan of 100,000 uses takes half a second, and others' plans may be made before it.
  static constexpr absl::Duration kPlanTimeout = absl::Minutes(5);

  // `connection` outlives this.
  ServerPlanSource(Connection& connection, ServerPlanOptions options)
      : connection_(connection), options_(options) {}

  absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) override;
  absl::StatusOr<std::optional<Trace>> FindTrace(const std::string& phase,
                                                 const std::vector<TracedTensor>& tensors) override;
  int64_t epoch() const override {
    return options_.pins == nullptr ? 0 : options_.pins->num_rests.load(std::memory_order_acquire);
  }

 private:
  Connection& connection_;
  const ServerPlanOptions options_;
  // Held over all requests of a plan, and until its answer is read: a session has one room for
  // traces, and the next answer takes the memory of this one.
  Mutex mutex_;
};

}  // namespace gemini::client
