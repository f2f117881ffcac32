// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_transport_mpi.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "trainer/parallel/mpi_module.h"

namespace gemini::trainer {

absl::StatusOr<std::unique_ptr<RankTransport>> MakeMpiTransport(const std::string& path,
                                                                int64_t rank, int64_t num_ranks) {
  // Never closed: MPI keeps threads and handlers. Open MPI's own plugins find its symbols by this.
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("several ranks need MPI: ", ::dlerror(),
                     ": install openmpi-bin, and build where libopenmpi-dev is installed"));
  }
  const auto make =
      reinterpret_cast<decltype(&gemini_make_mpi_transport)>(::dlsym(module, kMakeMpiTransport));
  if (make == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, " is of another Gemini: ", ::dlerror()));
  }
  absl::StatusOr<std::unique_ptr<RankTransport>> made = absl::UnknownError("");
  make(rank, num_ranks, made);
  return made;
}

}  // namespace gemini::trainer
