// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/communicator_dry.h"

#include <memory>
#include <utility>

namespace gemini::trainer {

class CommunicatorDry::DryWork final : public PendingWork {
 public:
  DryWork(DryListener& listener, int64_t number) : listener_(listener), number_(number) {}
  absl::Status Wait() override {
    listener_.Awaited(number_);
    return absl::OkStatus();
  }
  bool Done() const override { return true; }

 private:
  DryListener& listener_;
  const int64_t number_;
};

Work CommunicatorDry::Issue(Operation operation) {
  if (listener_ == nullptr) return DoneWork(absl::OkStatus());
  const int64_t number = num_exchanges_++;
  listener_->Issued({.number = number,
                     .kind = operation.kind,
                     .group = operation.group,
                     .part_bytes = operation.part_bytes(),
                     .place = operation.place,
                     .tag = operation.tag,
                     .site = std::move(operation.site)});
  return std::make_shared<DryWork>(*listener_, number);
}

}  // namespace gemini::trainer
