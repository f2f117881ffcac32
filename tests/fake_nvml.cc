// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml.so.1 that knows one GPU of 24 GiB with 20 GiB free, one MIG instance of 10 GiB
// with 9 free, and one GPU that fell off the bus.
#include <cstring>

namespace {

enum : int { kSuccess = 0, kNotSupported = 3, kNotFound = 6, kGpuIsLost = 15 };
constexpr unsigned long long kGiB = 1ull << 30;
int gpu = 0, mig = 0, lost = 0;

struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

extern "C" {

int nvmlInit_v2() { return kSuccess; }

const char* nvmlErrorString(int result) {
  return result == kNotFound ? "Not Found" : result == kGpuIsLost ? "GPU is lost" : "Success";
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == 0) {
    *device = &gpu;
  } else if (std::strcmp(uuid, "MIG-11111111-1111-1111-1111-111111111111") == 0) {
    *device = &mig;
  } else if (std::strcmp(uuid, "GPU-22222222-2222-2222-2222-222222222222") == 0) {
    *device = &lost;
  } else {
    return kNotFound;
  }
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(void* device, void* memory) {
  if (device == &lost) return kGpuIsLost;
  *static_cast<Memory*>(memory) = device == &gpu ? Memory{24 * kGiB, 20 * kGiB, 4 * kGiB}
                                                 : Memory{10 * kGiB, 9 * kGiB, 1 * kGiB};
  return kSuccess;
}

// Of a MIG instance it says neither.
int nvmlDeviceGetUtilizationRates(void* device, void* utilization) {
  if (device != &gpu) return kNotSupported;
  static_cast<unsigned*>(utilization)[0] = 87;
  static_cast<unsigned*>(utilization)[1] = 40;
  return kSuccess;
}

int nvmlDeviceGetPcieThroughput(void* device, int counter, unsigned* kilobytes_per_second) {
  if (device != &gpu) return kNotSupported;
  *kilobytes_per_second = counter == 0 ? 7'000'000 : 12'000'000;  // Sent, received.
  return kSuccess;
}

}  // extern "C"
