// SPDX-License-Identifier: Apache-2.0
// What each call of the virtual memory API takes, by the size of the allocation, with the GPU idle and while a
// kernel that has nothing to do with the memory runs for 100 ms.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/unique_fd.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr int64_t kSpinNanoseconds = 100'000'000;
constexpr int kRepetitions = 15;

class CallTimes {
 public:
  explicit CallTimes(bool busy) : busy_(busy) {}

  // Times the call behind a kernel that has just begun, where busy.
  template <typename Call>
  void Time(const std::string& name, Call call) {
    if (busy_) {
      GEMINI_NEED(::cudaDeviceSynchronize());
      Spin(kSpinNanoseconds, nullptr);
    }
    const absl::Time start = absl::Now();
    Need(call(), name);
    times_[name].push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }

  nlohmann::json Medians() {
    nlohmann::json medians;
    for (auto& [name, times] : times_) {
      std::sort(times.begin(), times.end());
      medians[name] = times[times.size() / 2];
    }
    return medians;
  }

 private:
  const bool busy_;
  std::map<std::string, std::vector<double>> times_;
};

void AskForSize(int64_t mebibytes, bool busy) {
  const Driver& driver = Driver::Get();
  const auto size = static_cast<size_t>(mebibytes) << 20;
  const CUmemAllocationProp properties = DeviceMemory();
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CallTimes times(busy);
  for (int i = 0; i < (busy ? 5 : kRepetitions); ++i) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemGenericAllocationHandle imported = 0;
    CUdeviceptr address = 0;
    int fd = -1;
    times.Time("create", [&] { return driver.MemCreate(&handle, size, &properties, 0); });
    times.Time("export", [&] {
      return driver.MemExportToShareableHandle(&fd, handle,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    });
    const UniqueFd owner(fd);
    times.Time("import", [&] {
      return driver.MemImportFromShareableHandle(&imported,
                                                 reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    });
    times.Time("reserve", [&] { return driver.MemAddressReserve(&address, size, 0, 0, 0); });
    times.Time("map", [&] { return driver.MemMap(address, size, 0, imported, 0); });
    times.Time("set_access", [&] { return driver.MemSetAccess(address, size, &access, 1); });
    times.Time("unmap", [&] { return driver.MemUnmap(address, size); });
    times.Time("address_free", [&] { return driver.MemAddressFree(address, size); });
    times.Time("release_import", [&] { return driver.MemRelease(imported); });
    times.Time("release_last", [&] { return driver.MemRelease(handle); });
  }
  Answer(absl::StrCat("us of each call on ", mebibytes, " MiB, the GPU ", busy ? "busy" : "idle"),
         times.Medians());
}

int Main() {
  NeedGpu();
  UseDevice();
  const CUmemAllocationProp properties = DeviceMemory();
  Answer("granularity of device memory in bytes", GranularityBytes(properties));
  for (const int64_t mebibytes : {2, 20, 200}) AskForSize(mebibytes, /*busy=*/false);
  for (const int64_t mebibytes : {2, 200}) AskForSize(mebibytes, /*busy=*/true);
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
