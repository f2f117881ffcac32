// SPDX-License-Identifier: Apache-2.0
// Runs the server inside another process, on a thread of its own, for programs and tests that need
// no daemon. Clients are connected to it by socketpairs, so protocol and code are the daemon's. Of
// client/, only client/front/ includes this.
// Thread: any for all calls; the destructor is the last call.
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
