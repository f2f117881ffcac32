// SPDX-License-Identifier: Apache-2.0
#include "server/wire/stopped_processes.h"

#include <chrono>

#include "server/wire/peer_process.h"

namespace gemini::server {
namespace {

constexpr int64_t kValidNs = 100'000'000;

}  // namespace

bool StoppedProcesses::Contains(pid_t pid) {
  const int64_t now_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  if (now_ns >= valid_until_ns_) {
    read_.clear();  // So it is never larger than the sessions of 100 ms.
    valid_until_ns_ = now_ns + kValidNs;
  }
  const auto [found, is_new] = read_.try_emplace(pid, false);
  if (is_new) found->second = IsStopped(pid);
  return found->second;
}

}  // namespace gemini::server
