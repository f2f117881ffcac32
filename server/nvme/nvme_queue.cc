// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_queue.h"

#include <algorithm>
#include <utility>

#include "gemini/system/check.h"

namespace gemini::server {

void NvmeQueue::Push(const NvmeTransfer& transfer, NvmeIo::Done done) {
  GEMINI_CHECK(transfer.size_bytes > 0);
  auto moving = std::make_shared<Moving>();
  moving->transfer = transfer;
  moving->done = std::move(done);
  auto tenant = Find(transfer.tenant);
  if (tenant == turns_.end()) {
    tenant = turns_.insert(turns_.end(), {transfer.tenant, kNvmePieceBytes, {}});
  }
  tenant->waiting.push_back(std::move(moving));
}

std::optional<NvmeQueue::Piece> NvmeQueue::Next() {
  while (!turns_.empty()) {
    Tenant& tenant = turns_.front();
    const std::shared_ptr<Moving> moving = tenant.waiting.front();
    const int64_t begin_bytes = moving->begun_bytes;
    const int64_t left_bytes = moving->transfer.size_bytes - begin_bytes;
    const int64_t host_offset = moving->transfer.host_offset_bytes + begin_bytes;
    const int64_t size_bytes =
        std::min(left_bytes, kNvmePieceBytes - host_offset % kNvmePieceBytes);
    if (tenant.deficit_bytes < size_bytes) {
      tenant.deficit_bytes += kNvmePieceBytes;  // For its next turn.
      turns_.splice(turns_.end(), turns_, turns_.begin());
      continue;
    }
    tenant.deficit_bytes -= size_bytes;
    moving->begun_bytes += size_bytes;
    ++moving->num_pieces;
    if (size_bytes == left_bytes) {
      tenant.waiting.pop_front();
      if (tenant.waiting.empty()) turns_.pop_front();
    }
    return Piece{moving, begin_bytes, size_bytes};
  }
  return std::nullopt;
}

std::optional<NvmeQueue::Ended> NvmeQueue::Finish(const Piece& piece, const absl::Status& status) {
  Moving& moving = *piece.of;
  --moving.num_pieces;
  const bool waits = moving.status.ok() && moving.begun_bytes < moving.transfer.size_bytes;
  moving.status.Update(status);
  if (waits && !status.ok()) {
    const auto tenant = Find(moving.transfer.tenant);
    tenant->waiting.pop_front();
    if (tenant->waiting.empty()) turns_.erase(tenant);
  }
  if (moving.num_pieces > 0 || (waits && status.ok())) return std::nullopt;
  return Ended{std::move(moving.done), moving.status};
}

std::vector<NvmeQueue::Ended> NvmeQueue::Cancel(uint64_t tenant_id, uint64_t space) {
  std::vector<Ended> ended;
  const auto tenant = Find(tenant_id);
  if (tenant == turns_.end()) return ended;
  std::erase_if(tenant->waiting, [&](const std::shared_ptr<Moving>& moving) {
    if (moving->transfer.space != space) return false;
    moving->status = absl::AbortedError("its space was closed");
    if (moving->num_pieces == 0) ended.push_back({std::move(moving->done), moving->status});
    return true;
  });
  if (tenant->waiting.empty()) turns_.erase(tenant);
  return ended;
}

std::vector<NvmeQueue::Ended> NvmeQueue::CancelAll(const absl::Status& why) {
  std::vector<Ended> ended;
  for (Tenant& tenant : std::exchange(turns_, {})) {
    for (const std::shared_ptr<Moving>& moving : tenant.waiting) {
      moving->status = why;
      if (moving->num_pieces == 0) ended.push_back({std::move(moving->done), why});
    }
  }
  return ended;
}

std::list<NvmeQueue::Tenant>::iterator NvmeQueue::Find(uint64_t tenant) {
  return std::find_if(turns_.begin(), turns_.end(),
                      [tenant](const Tenant& one) { return one.id == tenant; });
}

}  // namespace gemini::server
