// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_agreement.h"

#include <cstring>
#include <memory>

#include "gemini/system/status_macros.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {

absl::Status RankAgreement::GatherBytes(const void* own, void* all, size_t size_bytes,
                                        absl::string_view site) const {
  if (is_alone()) return absl::OkStatus();
  // Its own memory, which outlives a failure.
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(size_bytes * static_cast<size_t>(num_ranks()));
  std::byte* const part = bytes->data() + size_bytes * static_cast<size_t>(rank());
  std::memcpy(part, own, size_bytes);
  GEMINI_RETURN_IF_ERROR(Await(communicator_->AllGather(communicator_->world(), part, bytes->data(),
                                                        static_cast<int64_t>(size_bytes), site),
                               bytes));
  std::memcpy(all, bytes->data(), bytes->size());
  return absl::OkStatus();
}

absl::Status RankAgreement::Agree(const absl::Status& own) const {
  if (is_alone()) return own;
  GEMINI_ASSIGN_OR_RETURN(const std::vector<RankVerdict> verdicts,
                          Gather(RankVerdict(own), "verdicts"));
  return WorstOf(verdicts);
}

absl::StatusOr<std::string> RankAgreement::TextOfFirst(const std::string& own) const {
  if (is_alone()) return own;
  const auto size = std::make_shared<int64_t>(static_cast<int64_t>(own.size()));
  GEMINI_RETURN_IF_ERROR(Await(communicator_->Broadcast(communicator_->world(), size.get(),
                                                        sizeof(int64_t), /*place=*/0, "text size"),
                               size));
  const auto text = std::make_shared<std::string>(is_first() ? own : std::string());
  text->resize(static_cast<size_t>(*size));
  GEMINI_RETURN_IF_ERROR(Await(
      communicator_->Broadcast(communicator_->world(), text->data(), *size, /*place=*/0, "text"),
      text));
  return *text;
}

}  // namespace gemini::trainer
