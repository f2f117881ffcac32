// SPDX-License-Identifier: Apache-2.0
// Another job at the server of a test: it takes DEVICE memory from the first in the middle of its
// work, and gives it back.
// Thread: that of the first job.
#pragma once
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/session/session.h"
#include "client/wire/connection.h"
#include "gemini/layout.h"
#include "gtest/gtest.h"
#include "server/embedded_server.h"
#include "tests/client/session/observer.h"
#include "tests/status_matchers.h"

namespace gemini::client::hooks {

class SecondTenant {
 public:
  // `server` outlives this; `first` is the label of the job that is to give way.
  SecondTenant(server::EmbeddedServer& server, std::string first)
      : server_(server), first_(std::move(first)), observer_(ConnectObserver(server)) {}

  // Whether it waits for its memory, or has it.
  bool here() const { return pending_.valid() || session_ != nullptr; }
  // Takes what the server has decided by now; returns whether it waits no more.
  bool Look() {
    if (pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
      Decided(pending_.get());
    return !pending_.valid();
  }
  // Asks for memory. Returns when the server has asked the first job to give way, or has decided.
  void Arrive(int64_t device_bytes) {
    ASSERT_FALSE(here());
    pending_ = std::async(std::launch::async, [this, device_bytes] { return Open(device_bytes); });
    while (!Look()) {
      if (FirstIsAsked()) return;
    }
  }
  void Leave() {
    if (Look()) session_.reset();
  }

  int64_t admitted() const { return admitted_; }
  int64_t refused() const { return refused_; }

 private:
  absl::StatusOr<std::unique_ptr<Session>> Open(int64_t device_bytes) {
    auto socket = server_.Connect();
    if (!socket.ok()) return socket.status();
    SessionOptions options;
    options.want_bytes[Tier::kDevice] = device_bytes;
    options.floor_bytes = options.want_bytes;
    options.chunk_bytes = kPageBytes;
    options.label = "second tenant";
    return Session::Open(*std::move(socket), options);
  }
  void Decided(absl::StatusOr<std::unique_ptr<Session>> session) {
    if (session.ok()) {
      session_ = *std::move(session);
      ++admitted_;
    } else {
      // Before the first plan the first job's floor is all that it has.
      EXPECT_THAT(session.status(), StatusIs(absl::StatusCode::kResourceExhausted));
      ++refused_;
    }
  }
  bool FirstIsAsked() {
    const absl::StatusOr<Reply> reply = GetStatus(*observer_);
    EXPECT_OK(reply);
    if (!reply.ok()) return true;
    for (const wire::TenantStatus* tenant : *reply->As<wire::StatusReply>()->tenants()) {
      if (tenant->label()->str() == first_ && tenant->granted() != nullptr &&
          tenant->device_target() < tenant->granted()->device()) {
        return true;
      }
    }
    return false;
  }

  server::EmbeddedServer& server_;
  const std::string first_;
  const std::unique_ptr<Connection> observer_;
  std::future<absl::StatusOr<std::unique_ptr<Session>>> pending_;
  std::unique_ptr<Session> session_;
  int64_t admitted_ = 0;
  int64_t refused_ = 0;
};

}  // namespace gemini::client::hooks
