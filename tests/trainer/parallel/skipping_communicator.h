// SPDX-License-Identifier: Apache-2.0
// A communicator that skips the collectives of one site: each rank is left with what it has. What
// compares ranks with one process must notice.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gemini/system/status_macros.h"
#include "gtest/gtest.h"
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// Exchanges by another communicator, in groups of the same ranks.
class SkippingCommunicator final : public Communicator {
 public:
  SkippingCommunicator(Communicator& inner, std::string skipped)
      : Communicator(inner.rank(), inner.num_ranks()),
        inner_(inner),
        skipped_(std::move(skipped)),
        groups_({&inner.world()}) {}

 protected:
  Work Issue(Operation operation) override {
    const RankGroup& group = *groups_[static_cast<size_t>(operation.group->id)];
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
        return DoneWork(absl::OkStatus());
      }
      case CollectiveKind::kReduceScatter: {
        if (!skip) {
          return inner_.ReduceScatter(group, operation.type, operation.from, operation.to,
                                      operation.count, operation.site);
        }
        const int64_t bytes = operation.count * SumTypeBytes(operation.type);
        std::memmove(operation.to, operation.from + group.place * bytes,
                     static_cast<size_t>(bytes));
        return DoneWork(absl::OkStatus());
      }
      case CollectiveKind::kAllReduce:
        if (skip) return DoneWork(absl::OkStatus());
        return inner_.AllReduce(group, operation.type, operation.to, operation.count,
                                operation.site);
      case CollectiveKind::kAllToAll:
        if (!skip) {
          return inner_.AllToAll(group, operation.from, operation.to, operation.count,
                                 operation.site);
        }
        std::memcpy(operation.to, operation.from,
                    static_cast<size_t>(operation.count * group.size()));
        return DoneWork(absl::OkStatus());
      case CollectiveKind::kShift:
        if (!skip) {
          return inner_.Shift(group, operation.from, operation.to, operation.count, operation.site);
        }
        std::memcpy(operation.to, operation.from, static_cast<size_t>(operation.count));
        return DoneWork(absl::OkStatus());
      default:
        ADD_FAILURE() << operation.site;
        return DoneWork(absl::OkStatus());
    }
  }
  absl::Status Prepare(const RankGroup& group) override {
    // A group's first rank says which one it is.
    std::vector<int64_t> first_of(static_cast<size_t>(num_ranks()));
    GEMINI_RETURN_IF_ERROR(inner_
                               .AllGather(inner_.world(), &group.ranks.front(), first_of.data(),
                                          sizeof(int64_t), "groups")
                               ->Wait());
    std::map<int64_t, std::vector<int64_t>> ranks;
    for (size_t i = 0; i < first_of.size(); ++i) {
      ranks[first_of[i]].push_back(static_cast<int64_t>(i));
    }
    std::vector<std::vector<int64_t>> groups;
    for (auto& [first, of_group] : ranks) groups.push_back(std::move(of_group));
    GEMINI_ASSIGN_OR_RETURN(groups_.emplace_back(), inner_.MakeGroup(group.name, groups));
    return absl::OkStatus();
  }

 private:
  Communicator& inner_;
  const std::string skipped_;
  std::vector<const RankGroup*> groups_;  // By ids: the inner one's.
};

}  // namespace gemini::trainer
