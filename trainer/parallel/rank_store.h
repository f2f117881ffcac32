// SPDX-License-Identifier: Apache-2.0
// Connects ranks before they have a communicator, by LibTorch's TCPStore, which the launcher or the
// first rank serves.
// COLLECTIVE: Gather and SharePlace. All ranks make the same calls, in one order.
// Errors: what one rank cannot do is told to all, at once: they do not wait for those that have not
//         come, and all return the same error (IsAgreed). A rank that does not come within the
//         limit is named. Nothing is thrown.
// Trust:  whoever reaches the store may write to it, as in every job that torchrun starts.
// Thread: one.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"
#include "torch/csrc/distributed/c10d/Store.hpp"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_environment.h"

namespace gemini::trainer {

struct RankStoreOptions {
  int64_t rank = 0;
  int64_t num_ranks = 1;
  Rendezvous place;
  // The first rank has a listening socket here where the launcher serves no store. Without one it
  // listens at the place's port itself, to all that reach it.
  UniqueFd listening = {};
  absl::Duration limit;  // How long a rank is waited for.
  // How long ranks that leave wait for others that have only to read, or to tell an error.
  absl::Duration patience = absl::Seconds(5);
};

// A store that is gone throws, and LibTorch would print that with a backtrace first, each time: it
// does not behind this.
void SilenceWarningsOfStores();

// Returns a socket that listens at a port of the system's choice, and writes where to `place`, with
// a prefix that nobody else knows: at this machine alone if all ranks are on it, else at its name.
absl::StatusOr<UniqueFd> ListenForRanks(bool one_machine, Rendezvous& place);
// COLLECTIVE. Sets the first rank's place in all.
absl::Status SharePlace(const RankAgreement& ranks, Rendezvous& place);

class RankStore {
 public:
  // UNAVAILABLE: nobody serves the store there within the limit, or this rank cannot.
  static absl::StatusOr<std::unique_ptr<RankStore>> Open(RankStoreOptions options);
  // The first rank, if it serves the store, waits until the others have left it. They wait until
  // the first one leaves: it has told then what all have as an error, and a launcher that sees one
  // of them end may end it. All wait for the patience at most.
  ~RankStore();
  RankStore(const RankStore&) = delete;
  RankStore& operator=(const RankStore&) = delete;

  // COLLECTIVE. Returns what each rank has, by rank. `what` names it in messages, as in "their
  // GPUs". DEADLINE_EXCEEDED: ranks have not come within the limit; names them. UNAVAILABLE: the
  // store is gone. Others are those of a rank that has an error in place of a text.
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view what,
                                                  const absl::StatusOr<std::string>& own);

 private:
  RankStore(RankStoreOptions options, c10::intrusive_ptr<c10d::Store> store);
  std::string KeyOf(int64_t rank) const;
  // Tells what this rank has, or that all have come.
  void Tell(const absl::StatusOr<std::string>& own);
  // The error of the rank that has one. It is the same in all ranks.
  absl::Status ErrorOf(const std::vector<uint8_t>& told, const absl::Status& own) const;
  // Names the ranks that have not told anything.
  absl::Status Missing(absl::string_view what);
  bool serves() const { return options_.rank == 0 && !options_.place.is_served; }

  const RankStoreOptions options_;
  const c10::intrusive_ptr<c10d::Store> store_;
  int64_t number_ = 0;  // Of the Gather that is under way.
};

}  // namespace gemini::trainer
