// SPDX-License-Identifier: Apache-2.0
// What each call of the virtual memory API takes, by the size of the allocation, with the GPU idle
// and while a kernel that has nothing to do with the memory runs for 100 ms. A process without a
// context creates and exports, one with a context imports and maps.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"
#include "tests/gpu/probe/driver.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/spinning_kernel.h"
#include "tests/gpu/probe/timing.h"
#include "tests/gpu/probe/vmm_memory.h"
#include "tests/gpu/probe/vmm_peers.h"

namespace gemini::probe {
namespace {

constexpr absl::Duration kKernelTime = absl::Milliseconds(100);

// The times of each call, behind a kernel that has just begun where there is one.
class CallTimes {
 public:
  explicit CallTimes(SpinningKernel* kernel) : kernel_(kernel) {}

  int repetitions() const { return kernel_ == nullptr ? 100 : 10; }

  void Time(const std::string& name, const std::function<CUresult()>& call) {
    BeginKernel();
    const absl::Time start = absl::Now();
    const CUresult result = call();
    times_[name].push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    Need(result, name);
  }

  // Of a call that the exporter makes and times.
  void Take(const std::string& name, const std::function<RemoteCall()>& call) {
    BeginKernel();
    times_[name].push_back(call().microseconds);
  }

  void AnswerFor(absl::string_view what) const {
    nlohmann::json percentiles;
    for (const auto& [name, times] : times_) percentiles[name] = Percentiles(times);
    const absl::string_view state = kernel_ == nullptr ? "idle" : "busy";
    Answer(absl::StrCat("us of each call on ", what, ", the GPU ", state), percentiles);
  }

 private:
  void BeginKernel() {
    if (kernel_ != nullptr) kernel_->Begin(kKernelTime);
  }

  SpinningKernel* const kernel_;  // Null: the GPU is idle.
  std::map<std::string, std::vector<double>> times_;
};

CUmemAccessDesc ReadAndWrite() {
  CUmemAccessDesc access = {};
  access.location = DeviceMemory().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

void AskForSize(const Exporter& exporter, int64_t mebibytes, SpinningKernel* kernel) {
  const Driver& driver = Driver::Get();
  const int64_t size_bytes = mebibytes << 20;
  const auto size = static_cast<size_t>(size_bytes);
  const CUmemAccessDesc access = ReadAndWrite();
  CallTimes times(kernel);
  for (int i = 0; i < times.repetitions(); ++i) {
    CUmemGenericAllocationHandle imported = 0;
    CUdeviceptr address = 0;
    UniqueFd fd;
    times.Take("create", [&] { return exporter.Create(size_bytes); });
    times.Take("export", [&] { return exporter.Export(fd); });
    times.Time("import", [&] {
      return driver.MemImportFromShareableHandle(&imported, AsShareableHandle(fd),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    });
    times.Time("close_descriptor", [&] {
      fd.Reset();
      return CUDA_SUCCESS;
    });
    times.Time("reserve", [&] { return driver.MemAddressReserve(&address, size, 0, 0, 0); });
    times.Time("map", [&] { return driver.MemMap(address, size, 0, imported, 0); });
    times.Time("set_access", [&] { return driver.MemSetAccess(address, size, &access, 1); });
    times.Time("unmap", [&] { return driver.MemUnmap(address, size); });
    times.Time("address_free", [&] { return driver.MemAddressFree(address, size); });
    times.Time("release_import", [&] { return driver.MemRelease(imported); });
    times.Take("release_last", [&] { return exporter.Release(); });
  }
  times.AnswerFor(absl::StrCat(mebibytes, " MiB"));
}

// 20 MiB side by side, of one allocation or of ten.
void AskForHandles(size_t num_handles, SpinningKernel* kernel) {
  const Driver& driver = Driver::Get();
  const size_t size = size_t{20} << 20;
  const size_t piece = size / num_handles;
  const CUmemAccessDesc access = ReadAndWrite();
  CUdeviceptr address = 0;
  GEMINI_NEED(driver.MemAddressReserve(&address, size, 0, 0, 0));
  std::vector<CUmemGenericAllocationHandle> handles;
  for (size_t i = 0; i < num_handles; ++i) {
    handles.push_back(CreateDeviceMemory(static_cast<int64_t>(piece)));
  }
  CallTimes times(kernel);
  for (int i = 0; i < times.repetitions(); ++i) {
    times.Time("map_each", [&] {
      CUresult result = CUDA_SUCCESS;
      for (size_t k = 0; k < num_handles && result == CUDA_SUCCESS; ++k) {
        result = driver.MemMap(address + k * piece, piece, 0, handles[k], 0);
      }
      return result;
    });
    times.Time("set_access_of_all", [&] { return driver.MemSetAccess(address, size, &access, 1); });
    times.Time("unmap_all", [&] { return driver.MemUnmap(address, size); });
  }
  times.AnswerFor(absl::StrCat(num_handles, " x ", piece >> 20, " MiB"));
  for (const CUmemGenericAllocationHandle handle : handles) {
    GEMINI_NEED(driver.MemRelease(handle));
  }
  GEMINI_NEED(driver.MemAddressFree(address, size));
}

int Main() {
  NeedGpu();
  const Exporter exporter;
  UseDevice();
  Answer("granularity of device memory in bytes", GranularityBytes());
  SpinningKernel kernel;
  for (SpinningKernel* const busy : {static_cast<SpinningKernel*>(nullptr), &kernel}) {
    for (const int64_t mebibytes : {2, 20, 200}) AskForSize(exporter, mebibytes, busy);
    for (const size_t num_handles : {1, 10}) AskForHandles(num_handles, busy);
  }
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
