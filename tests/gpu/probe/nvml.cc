// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/nvml.h"

#include <dlfcn.h>

#include <array>
#include <type_traits>

#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/timing.h"

namespace gemini::probe {
namespace {

// What other counters of the driver may move by meanwhile.
constexpr int64_t kSlackBytes = int64_t{32} << 20;
constexpr absl::Duration kPatience = absl::Seconds(20);

// nvml.h is not part of every toolkit; this much of its interface has not changed since its first
// version.
struct Memory {
  unsigned long long total, free, used;
};

struct Nvml {
  void* device = nullptr;
  int (*get_memory)(void* device, Memory* memory) = nullptr;
  int (*get_driver)(char* version, unsigned size) = nullptr;
};

// All null where there is no NVML.
const Nvml& Load() {
  static const Nvml nvml = [] {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return Nvml();
    const auto find = [library](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    Nvml found;
    int (*init)() = nullptr;
    int (*get_device)(unsigned index, void** device) = nullptr;
    const bool complete = find("nvmlInit_v2", init) &&
                          find("nvmlDeviceGetHandleByIndex_v2", get_device) &&
                          find("nvmlDeviceGetMemoryInfo", found.get_memory) &&
                          find("nvmlSystemGetDriverVersion", found.get_driver);
    if (!complete || init() != 0 || get_device(0, &found.device) != 0) return Nvml();
    return found;
  }();
  return nvml;
}

Memory ReadMemory() {
  Memory memory = {};
  NeedTrue(Load().get_memory != nullptr, "NVML is here");
  NeedTrue(Load().get_memory(Load().device, &memory) == 0, "nvmlDeviceGetMemoryInfo succeeds");
  return memory;
}

}  // namespace

int64_t UsedDeviceBytes() { return static_cast<int64_t>(ReadMemory().used); }

int64_t FreeDeviceBytes() { return static_cast<int64_t>(ReadMemory().free); }

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

nlohmann::json UntilUsedIsAtMost(absl::Time start, int64_t bytes) {
  int64_t used = 0;
  const absl::Duration time = TimeUntil(start, kPatience, [&] {
    used = UsedDeviceBytes();
    return used <= bytes + kSlackBytes;
  });
  nlohmann::json answer = {{"ms", absl::ToDoubleMilliseconds(time)},
                           {"MiB_left", MiB(used - bytes)}};
  if (time == absl::InfiniteDuration()) answer["ms"] = "never, in 20 s";
  return answer;
}

std::string DriverRelease() {
  std::array<char, 80> version = {};
  if (Load().get_driver == nullptr) return "unknown, there is no NVML";
  if (Load().get_driver(version.data(), version.size()) != 0) return "unknown, NVML fails";
  return version.data();
}

}  // namespace gemini::probe
