// SPDX-License-Identifier: Apache-2.0
// geminid: the server as a daemon. Exit codes: 0 drained or stopped, 1 could not start, 2 wrong
// usage.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gemini/byte_size.h"
#include "gemini/system/descriptor_limit.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/host_memory.h"
#include "gemini/system/status_macros.h"
#include "server/daemon_options.h"
#include "server/loop/server_log.h"
#include "server/runtime_claim.h"
#include "server/server.h"
#include "server/service_notify.h"
#include "server/tiers/gpu_device.h"
#include "server/tiers/peer_memory.h"

namespace gemini::server {
namespace {

absl::StatusOr<UniqueFd> TakeSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  GEMINI_RETURN_IF_ERROR(PeerMemory::Survive());
  ::signal(SIGXFSZ, SIG_IGN);  // A write past a file-size limit is EFBIG, a status like another.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return ErrnoStatus(errno, "signalfd");
  return fd;
}

absl::Status Serve(DaemonOptions options) {
  RaiseDescriptorLimit();
  if (options.gpu.has_value()) {
    const int64_t given_bytes = options.server.capacity_bytes[Tier::kDevice];
    GEMINI_RETURN_IF_ERROR(
        UseGpu(*options.gpu,
               options.device_memory_given ? std::optional<int64_t>(given_bytes) : std::nullopt,
               options.server));
  }
  GEMINI_ASSIGN_OR_RETURN(const UniqueFd signals, TakeSignals());
  GEMINI_ASSIGN_OR_RETURN(RuntimeClaim claim, RuntimeClaim::Take(options.runtime_directory));
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Make(options.server));
  GEMINI_RETURN_IF_ERROR(server->Listen(claim.TakeListener()));
  bool draining = false;
  GEMINI_RETURN_IF_ERROR(server->loop()
                             .Watch(signals.get(), EPOLLIN,
                                    [&](uint32_t) {
                                      signalfd_siginfo info;
                                      if (::read(signals.get(), &info, sizeof(info)) !=
                                          sizeof(info))
                                        return;
                                      NotifyServiceManager("STOPPING=1").IgnoreError();
                                      if (draining) {
                                        ServerLog().warn("a second signal: stopping at once");
                                        server->loop().Stop();
                                        return;
                                      }
                                      draining = true;
                                      server->Drain(options.drain_timeout);
                                    })
                             .status());
  const TierMap<int64_t>& capacity = options.server.capacity_bytes;
  int64_t nvme_bytes = 0;
  for (const NvmeDirectory& directory : options.server.nvme_directories) {
    nvme_bytes += directory.capacity_bytes;
  }
  ServerLog().info("ready on {}: DEVICE {}, HOST {}, NVME {}", claim.socket_path(),
                   FormatByteSize(capacity[Tier::kDevice]), FormatByteSize(capacity[Tier::kHost]),
                   FormatByteSize(nvme_bytes));
  const absl::Status notified = NotifyServiceManager("READY=1");
  if (!notified.ok()) ServerLog().warn("{}", notified.ToString());
  FeedWatchdog(server->loop());
  server->Run();
  ServerLog().info("stopped");
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<int64_t> available = AvailableHostMemory();
  if (!available.ok()) {
    std::fprintf(stderr, "geminid: %s\n", available.status().ToString().c_str());
    return 1;
  }
  absl::StatusOr<DaemonOptions> options = ParseDaemonOptions(arguments, *available);
  if (!options.ok()) {
    std::fprintf(stderr, "geminid: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  if (!options->print_and_exit.empty()) {
    std::fputs(options->print_and_exit.c_str(), stdout);
    return 0;
  }
  ServerLog().set_level(spdlog::level::from_str(options->log_level));
  const absl::Status served = Serve(*std::move(options));
  if (served.ok()) return 0;
  std::fprintf(stderr, "geminid: %s\n", std::string(served.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace gemini::server

int main(int argc, char** argv) {
  const int code = gemini::server::Main(std::vector<std::string>(argv + 1, argv + argc));
  if (gemini::server::IsServerLogStuck()) ::_exit(code);
  return code;
}
