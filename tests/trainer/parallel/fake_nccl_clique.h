// SPDX-License-Identifier: Apache-2.0
// What the library in NCCL's place (fake_nccl.h) knows of communicators.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/parallel/nccl_library.h"

namespace gemini::trainer {

// Ranks that share communicators, by whose numbers they are known here. One lock guards everything.
struct NcclClique {
  struct Operation {
    enum Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kSend, kReceive };
    Kind kind = kAllGather;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    size_t count = 0;
    NcclType type = NcclType::kByte;
    int peer = 0;  // Or the root.
  };
  struct Meeting {
    std::map<int, Operation> by_rank;
    bool is_done = false;
    int num_left = 0;
  };
  struct Message {
    const std::byte* from = nullptr;
    size_t size_bytes = 0;
    bool is_taken = false;
  };
  struct Split {
    struct Member {
      int color = 0;
      int key = 0;
      NcclComm** part = nullptr;
    };
    std::map<int, Member> by_rank;
    bool is_done = false;
  };
  int size = 0;
  int num_joined = 0;
  int num_finalized = 0;
  std::vector<NcclComm*> members;
  std::map<int64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> sent;  // By sender, receiver.
  std::map<int64_t, Split> splits;
  std::condition_variable changed;
};

struct NcclComm {
  NcclClique* clique = nullptr;
  const NcclClique* job = nullptr;  // What it was split from, at last.
  int rank = 0;
  int rank_in_job = 0;
  bool is_known = false;  // Its owner has asked for its state.
  bool is_aborting = false, is_aborted = false;
  bool is_finalized = false, is_destroyed = false;
  NcclResult error = NcclResult::kSuccess;
  int polls_in_progress = 1;
  int64_t num_splits = 0, num_collectives = 0, num_groups = 0;
  void* stream = nullptr;
  std::deque<std::function<void()>> to_launch;
};

}  // namespace gemini::trainer
