// SPDX-License-Identifier: Apache-2.0
// The real server on a thread of its own, joined to its clients by socketpairs: one protocol, one
// code path. For programs and tests; the client library never includes this.
// Thread: any for all calls; the destructor comes last.
#pragma once
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "gemini/system/unique_fd.h"
#include "server/loop/server_options.h"

namespace gemini::server {

class Server;

class EmbeddedServer {
 public:
  // Starts the thread. Errors: as Server::Make.
  static absl::StatusOr<std::unique_ptr<EmbeddedServer>> Start(ServerOptions options);
  EmbeddedServer(const EmbeddedServer&) = delete;
  EmbeddedServer& operator=(const EmbeddedServer&) = delete;
  // Waits for I/O in flight, stops and joins. Sessions still open see a hang-up.
  ~EmbeddedServer();

  // Returns a connected SEQPACKET descriptor, CLOEXEC, blocking. A session that ends without
  // CloseSession keeps its bytes until the server stops: its mappings may still be in use in this
  // process, whose death would end the server too. RESOURCE_EXHAUSTED: no descriptors left.
  absl::StatusOr<UniqueFd> Connect();

 private:
  explicit EmbeddedServer(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;  // The thread's while it runs.
  std::thread thread_;
};

}  // namespace gemini::server
