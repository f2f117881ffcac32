// SPDX-License-Identifier: Apache-2.0
// A client to be killed: slab_holder SOCKET NUM_SLABS SLAB_BYTES
// Opens a lease of so many slabs of DEVICE, prints "ready", and takes them and gives them back
// until it is killed.
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "gemini/system/status_macros.h"
#include "tests/server/wire_client.h"

namespace gemini::server {
namespace {

absl::Status Hold(const char* socket, int64_t num_slabs, int64_t slab_bytes) {
  GEMINI_ASSIGN_OR_RETURN(WireClient client, WireClient::ConnectTo(socket));
  GEMINI_RETURN_IF_ERROR(client.Hello("slabs"));
  const TierMap<int64_t> want = {{num_slabs * slab_bytes, 0, 0}};
  GEMINI_RETURN_IF_ERROR(client.OpenLease(want, want, /*takes_epochs=*/true).status());
  std::printf("ready\n");
  std::fflush(stdout);
  while (true) {
    GEMINI_RETURN_IF_ERROR(client.TakeDeviceSlabs(0, num_slabs).status());
    GEMINI_RETURN_IF_ERROR(client.KeepDeviceSlabs(1));
  }
}

}  // namespace
}  // namespace gemini::server

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const absl::Status status =
      gemini::server::Hold(argv[1], std::atoll(argv[2]), std::atoll(argv[3]));
  std::fprintf(stderr, "slab_holder: %s\n", status.ToString().c_str());
  return 1;
}
