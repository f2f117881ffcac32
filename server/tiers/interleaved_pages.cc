// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/interleaved_pages.h"

#include <numa.h>
#include <numaif.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/numa_nodes.h"
#include "server/loop/server_log.h"

namespace gemini::server {
namespace {

void LogOnce(absl::string_view reason) {
  static std::once_flag once;
  std::call_once(once, [&] {
    ServerLog().warn(
        "HOST memory is not spread over the NUMA nodes, updates may be slower: {}. Or start the "
        "server under numactl "
        "--interleave=all",
        std::string(reason));
  });
}

// `call` failed.
void LogRefusal(absl::string_view call) {
  const int error = errno;
  LogOnce(absl::StrCat(call, ": ", std::strerror(error), ": in a container give it CAP_SYS_NICE"));
}

}  // namespace

std::vector<int> NodesOfSlabs() {
  const absl::StatusOr<std::vector<NumaNode>> nodes = NumaNodesHere();
  if (nodes.ok()) return NodesToInterleave(*nodes);
  LogOnce(nodes.status().message());
  return {};
}

InterleavedPages::InterleavedPages(absl::Span<const int> nodes) {
  if (nodes.empty()) return;
  int policy = MPOL_DEFAULT;
  if (::get_mempolicy(&policy, nullptr, 0, nullptr, 0) != 0) {
    LogRefusal("get_mempolicy");
    return;
  }
  if (policy != MPOL_DEFAULT) return;
  const std::unique_ptr<bitmask, decltype(&numa_bitmask_free)> mask(numa_allocate_nodemask(),
                                                                    &numa_bitmask_free);
  if (mask == nullptr) return;
  for (const int node : nodes) numa_bitmask_setbit(mask.get(), static_cast<unsigned>(node));
  // The kernel takes the number of bits for one too many.
  if (::set_mempolicy(MPOL_INTERLEAVE, mask->maskp, mask->size + 1) != 0) {
    LogRefusal("set_mempolicy");
    return;
  }
  is_active_ = true;
}

InterleavedPages::~InterleavedPages() {
  if (is_active_) (void)::set_mempolicy(MPOL_DEFAULT, nullptr, 0);
}

}  // namespace gemini::server
