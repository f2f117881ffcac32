// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of a run tell each other more than tensors: how something went, and a few numbers.
// One rank that trains alone agrees with itself, so that the same program runs with and without.
// COLLECTIVE: each call here, but the accessors and Silence. All ranks make the same calls in the
//         same order.
// Thread: the one that issues the rank's collectives.
// Errors: of the Communicator; the job is over behind them. Those of Agree are the same in all
//         ranks (IsAgreed).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

class RankAgreement {
 public:
  RankAgreement() = default;
  // The communicator outlives this.
  explicit RankAgreement(Communicator& communicator) : communicator_(&communicator) {}

  int64_t rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  int64_t num_ranks() const { return communicator_ == nullptr ? 1 : communicator_->num_ranks(); }
  bool is_alone() const { return num_ranks() == 1; }
  bool is_first() const { return rank() == 0; }
  // What this rank sent, here and elsewhere. It is nothing where the rank is alone.
  SentByKind sent() const {
    return communicator_ == nullptr ? SentByKind() : communicator_->sent_by_kind();
  }

  // Returns what each rank has, by rank. `site`: as in Communicator.
  template <typename T>
  absl::StatusOr<std::vector<T>> Gather(const T& own, absl::string_view site) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<size_t>(num_ranks()), own);
    absl::Status status = GatherBytes(&own, all.data(), sizeof(T), site);
    if (!status.ok()) return status;
    return all;
  }
  // Returns OK if all ranks are, else one error in all of them, which names a rank.
  absl::Status Agree(const absl::Status& own) const;
  // Returns the text that the first rank has.
  absl::StatusOr<std::string> TextOfFirst(const std::string& own) const;

  // While one lives, what this rank issues goes to nobody (Communicator::set_silent). Nothing is to
  // be agreed on or gathered then: the answers would mean nothing.
  class Silence {
   public:
    explicit Silence(const RankAgreement& ranks) : communicator_(ranks.communicator_) { Set(true); }
    Silence(const Silence&) = delete;
    Silence& operator=(const Silence&) = delete;
    ~Silence() { Set(false); }

   private:
    void Set(bool is_silent) {
      if (communicator_ != nullptr) communicator_->set_silent(is_silent);
    }
    Communicator* const communicator_;
  };

 private:
  absl::Status GatherBytes(const void* own, void* all, size_t size_bytes,
                           absl::string_view site) const;

  Communicator* communicator_ = nullptr;  // Null: alone.
};

}  // namespace gemini::trainer
