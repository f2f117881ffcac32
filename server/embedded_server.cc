// SPDX-License-Identifier: Apache-2.0
#include "server/embedded_server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "gemini/system/errno_status.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/status_macros.h"
#include "server/server.h"

namespace gemini::server {

absl::StatusOr<std::unique_ptr<EmbeddedServer>> EmbeddedServer::Start(ServerOptions options) {
  GEMINI_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Make(std::move(options)));
  return std::unique_ptr<EmbeddedServer>(new EmbeddedServer(std::move(server)));
}

EmbeddedServer::EmbeddedServer(std::unique_ptr<Server> server) : server_(std::move(server)) {
  // Signals belong to the program's own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([running = server_.get()] { running->Run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread_.native_handle(), "gemini-server");
}

EmbeddedServer::~EmbeddedServer() {
  // Destroyed here and not by its thread: Stop may still be inside the loop when that one ends.
  server_->loop().Stop();
  thread_.join();
  server_->loop().Adopt();
}

absl::StatusOr<UniqueFd> EmbeddedServer::Connect() {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  (void)RefuseDescriptors(ours.get());  // Before a client has the other end to send on.
  server_->loop().Post([server = server_.get(), socket = std::move(ours)]() mutable {
    server->AddConnection(std::move(socket));
  });
  return theirs;
}

}  // namespace gemini::server
