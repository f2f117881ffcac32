// SPDX-License-Identifier: Apache-2.0
// A communicator that skips the collectives of one site: each rank is left with what it has. What
// compares ranks with one process must notice.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// Exchanges by another communicator, among all ranks.
class SkippingCommunicator final : public Communicator {
 public:
  SkippingCommunicator(Communicator& inner, std::string skipped)
      : Communicator(inner.rank(), inner.num_ranks()),
        inner_(inner),
        skipped_(std::move(skipped)) {}

 protected:
  Work Issue(Operation operation) override {
    const RankGroup& group = inner_.world();
    const bool skip = operation.site == skipped_;
    switch (operation.kind) {
      case CollectiveKind::kAllGather: {
        if (!skip) {
          return inner_.AllGather(group, operation.from, operation.to, operation.count,
                                  operation.site);
        }
        const std::vector<std::byte> own(operation.from, operation.from + operation.count);
        std::memset(operation.to, 0, static_cast<size_t>(operation.count * group.size()));
        std::memcpy(operation.to + group.place * operation.count, own.data(), own.size());
        return std::make_shared<DoneWork>();
      }
      case CollectiveKind::kReduceScatter: {
        if (!skip) {
          return inner_.ReduceScatter(group, operation.type, operation.from, operation.to,
                                      operation.count, operation.site);
        }
        const int64_t bytes = operation.count * SumTypeBytes(operation.type);
        std::memmove(operation.to, operation.from + group.place * bytes,
                     static_cast<size_t>(bytes));
        return std::make_shared<DoneWork>();
      }
      case CollectiveKind::kAllReduce:
        if (skip) return std::make_shared<DoneWork>();
        return inner_.AllReduce(group, operation.type, operation.to, operation.count,
                                operation.site);
      default:
        ADD_FAILURE() << operation.site;
        return std::make_shared<DoneWork>();
    }
  }
  absl::Status Prepare(const RankGroup& /*group*/) override { return absl::OkStatus(); }

 private:
  class DoneWork final : public PendingWork {
   public:
    absl::Status Wait() override { return absl::OkStatus(); }
    bool Done() const override { return true; }
  };

  Communicator& inner_;
  const std::string skipped_;
};

}  // namespace gemini::trainer
