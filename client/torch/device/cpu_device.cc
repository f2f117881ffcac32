// SPDX-License-Identifier: Apache-2.0
#include "client/torch/device/cpu_device.h"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/kernels/device_kernels_host.h"
#include "client/torch/device/counting_allocator.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/mutex.h"

namespace gemini::client::hooks {
namespace {

class CpuDevice : public SessionDevice {
 public:
  c10::Device device() const override { return c10::Device(c10::DeviceType::CPU); }
  absl::Status Configure(SessionOptions&) override { return absl::OkStatus(); }
  void Begin(std::shared_ptr<Session> session, BudgetFollower&) override {
    kernels_.emplace(session->update_team());
    session_ = session;
    BeginChargingAllocations(std::move(session));
    counts_ = true;
  }
  void End() override {
    EndChargingAllocations();
    counts_ = false;
    session_.reset();
    kernels_.reset();
  }
  void SetCounting(bool counts) override {
    if (counts == counts_ || session_ == nullptr) return;
    counts_ = counts;
    if (counts) {
      BeginChargingAllocations(session_);
    } else {
      EndChargingAllocations();
    }
  }
  DeviceKernels& kernels() override { return *kernels_; }

  std::byte* NanScratch(int64_t size_bytes) override {
    MutexLock lock(mutex_);
    if (scratch_bytes_ < size_bytes) {
      void* const larger =
          std::aligned_alloc(kPageBytes, static_cast<size_t>(RoundUp(size_bytes, kPageBytes)));
      if (larger == nullptr) return nullptr;
      scratch_.emplace_back(static_cast<std::byte*>(larger));  // Those before may be in use.
      scratch_bytes_ = size_bytes;
    }
    // Anew each time: an operator may have written to it.
    std::memset(scratch_.back().get(), 0xff, static_cast<size_t>(scratch_bytes_));
    return scratch_.back().get();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::optional<DeviceKernelsHost> kernels_;
  std::shared_ptr<Session> session_;  // From Begin to End.
  bool counts_ = false;
  Mutex mutex_;
  std::vector<std::unique_ptr<std::byte, Free>> scratch_ ABSL_GUARDED_BY(mutex_);
  int64_t scratch_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Size of the last scratch.
};

}  // namespace

std::shared_ptr<SessionDevice> MakeCpuDevice() { return std::make_shared<CpuDevice>(); }

}  // namespace gemini::client::hooks
