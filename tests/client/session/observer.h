// SPDX-License-Identifier: Apache-2.0
// An observer at the server of a test, such as memstat is at a daemon.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "client/wire/connection.h"
#include "gemini/protocol.h"
#include "gtest/gtest.h"
#include "server/embedded_server.h"
#include "tests/status_matchers.h"

namespace gemini::client {

// Returns a connection that has said hello. The test fails where the server does not take it.
inline std::unique_ptr<Connection> ConnectObserver(server::EmbeddedServer& server) {
  auto socket = server.Connect();
  EXPECT_OK(socket);
  auto observer = std::make_unique<Connection>(*std::move(socket));
  EXPECT_OK(observer->Call(
      wire::Body::Hello,
      [](flatbuffers::FlatBufferBuilder& builder) {
        return wire::CreateHelloDirect(builder, kProtocolVersion, "test", wire::Role::kObserver,
                                       "observer")
            .Union();
      },
      wire::Body::HelloReply));
  return observer;
}

// Returns the server's StatusReply. Errors: as Connection::Call.
inline absl::StatusOr<Reply> GetStatus(Connection& observer) {
  return observer.Call(
      wire::Body::GetStatus,
      [](flatbuffers::FlatBufferBuilder& builder) {
        return wire::CreateGetStatus(builder).Union();
      },
      wire::Body::StatusReply);
}

}  // namespace gemini::client
