// SPDX-License-Identifier: Apache-2.0
#include "tools/status_view.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "gemini/byte_size.h"
#include "gemini/chunk_state.h"
#include "gemini/ids.h"
#include "gemini/stall_cause.h"
#include "gemini/tier.h"
#include "gemini/wire_element.h"

namespace gemini::tools {
namespace {

using nlohmann::json;

std::string Escaped(const flatbuffers::String* text) {
  return text == nullptr ? "" : absl::CEscape(absl::string_view(text->data(), text->size()));
}

int64_t Of(const wire::TierBytes* bytes, Tier tier) {
  if (bytes == nullptr) return 0;
  switch (tier) {
    case Tier::kDevice:
      return bytes->device();
    case Tier::kHost:
      return bytes->host();
    case Tier::kNvme:
      return bytes->nvme();
  }
  return 0;
}

int64_t Of(const wire::TierSlots* slots, Tier tier) {
  if (slots == nullptr) return 0;
  switch (tier) {
    case Tier::kDevice:
      return slots->device();
    case Tier::kHost:
      return slots->host();
    case Tier::kNvme:
      return slots->nvme();
  }
  return 0;
}

const wire::TierStatus* TierOf(const wire::StatusReply& status, Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return status.device();
    case Tier::kHost:
      return status.host();
    case Tier::kNvme:
      return status.nvme();
  }
  return nullptr;
}

// The sum over all tiers. A server that lies may send numbers whose sum is none: it is shown as the
// nearest that is.
int64_t TotalOf(const wire::TierSlots* slots) {
  int64_t total = 0;
  for (Tier tier : kAllTiers) {
    const int64_t added = Of(slots, tier);
    if (__builtin_add_overflow(total, added, &total)) {
      // Only two numbers of one sign overflow.
      total = added < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
    }
  }
  return total;
}

// A server that lies may name a chunk below 0, which has no kind.
std::string KindText(ChunkId chunk) {
  return chunk.value() < 0 ? "no kind" : std::string(ChunkKindName(KindOf(chunk)));
}

template <typename PerTier>
json TierJson(const PerTier* values) {
  json object;
  for (Tier tier : kAllTiers) object[std::string(TierName(tier))] = Of(values, tier);
  return object;
}

// "12 MiB / 64 MiB": used of granted.
std::string UsedOfGranted(const wire::TenantStatus& tenant, Tier tier) {
  return absl::StrCat(FormatByteSize(Of(tenant.used(), tier)), " / ",
                      FormatByteSize(Of(tenant.granted(), tier)));
}

std::string Duration(int64_t nanoseconds) {
  return absl::FormatDuration(absl::Trunc(absl::Nanoseconds(nanoseconds), absl::Milliseconds(1)));
}

// A rate that no machine has is shown as the largest that can be, and what is no number as 0.
std::string Rate(double bytes_per_second) {
  const double shown = bytes_per_second > 0 ? std::min(bytes_per_second, 9e18) : 0;
  return FormatByteSize(static_cast<int64_t>(shown));
}

// "transfer 12ms, update 3ms": the parts of `values` that are not 0.
template <typename Name, typename Show>
std::string PartsText(const flatbuffers::Vector<int64_t>* values, int count, Name name, Show show) {
  std::string text;
  for (int i = 0; values != nullptr && i < std::min<int>(count, values->size()); ++i) {
    const int64_t value = ElementOf(*values, i);
    if (value == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", name(i), " ", show(value));
  }
  return text;
}

std::string StallsText(const wire::SpaceStatus& space) {
  return PartsText(
      space.stall_by_cause_ns(), kNumStallCauses,
      [](int i) { return StallCauseName(static_cast<StallCause>(i)); }, Duration);
}

std::string DivergencesText(const wire::SpaceStatus& space) {
  return PartsText(
      space.divergences(), kNumDivergences,
      [](int i) { return DivergenceName(static_cast<Divergence>(i)); },
      [](int64_t count) { return absl::StrCat(count); });
}

// What the session's last step took, and how fast bytes went over the link in it.
std::string LastStepText(const wire::SpaceStatus& space) {
  if (space.step_ns() <= 0) return "";
  const auto step_ns = static_cast<double>(space.step_ns());
  const auto rate = [&](int64_t bytes) { return Rate(static_cast<double>(bytes) * 1e9 / step_ns); };
  const double stalled = std::clamp(static_cast<double>(space.step_stall_ns()) / step_ns, 0.0, 1.0);
  return absl::StrFormat("  last step: %s, %.1f%% of it stalled; HOST to DEVICE %s/s, back %s/s\n",
                         Duration(space.step_ns()), 100 * stalled, rate(space.step_fetch_bytes()),
                         rate(space.step_evict_bytes()));
}

// Why it waited, how many rounds followed their plan, and what the update still has to do.
std::string RoundsText(const wire::SpaceStatus& space) {
  std::string text;
  const std::string stalls = StallsText(space);
  if (!stalls.empty()) absl::StrAppend(&text, "  stalled for: ", stalls, "\n");
  if (space.rounds() > 0) {
    const std::string left = DivergencesText(space);
    absl::StrAppend(&text, "  ", space.planned_rounds(), " of ", space.rounds(),
                    " rounds followed their plan", left.empty() ? "" : "; left it: ", left, "\n");
  }
  if (space.update_pending() > 0) {
    absl::StrAppend(&text, "  ", space.update_pending(), " bundles await their update\n");
  }
  return text;
}

// A line a directory that something was written to.
std::string WearText(const wire::StatusReply& status) {
  std::string text;
  if (status.nvme_wear() == nullptr) return text;
  const int64_t budget = status.nvme_daily_write_budget();
  for (const wire::NvmeWear* wear : *status.nvme_wear()) {
    if (wear->written() == 0) continue;
    absl::StrAppend(&text, text.empty() ? "\n" : "", "NVME wear of ", Escaped(wear->directory()),
                    ": ", FormatByteSize(wear->written()), " written, ",
                    FormatByteSize(wear->written_today()), " today (UTC)");
    if (budget > 0) {
      absl::StrAppend(&text, wear->written_today() > budget ? ", ABOVE the budget of " : " of ",
                      FormatByteSize(budget), " a day");
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

json WearJson(const wire::StatusReply& status) {
  json array = json::array();
  if (status.nvme_wear() == nullptr) return array;
  for (const wire::NvmeWear* wear : *status.nvme_wear()) {
    array.push_back({{"directory", Escaped(wear->directory())},
                     {"written_bytes", wear->written()},
                     {"written_today_bytes", wear->written_today()}});
  }
  return array;
}

std::string DamageText(const wire::SpaceStatus& space) {
  if (space.damaged_chunks() <= 0) return "";
  const ChunkId last(space.last_damaged());
  return absl::StrCat("  ", space.damaged_chunks(), " chunks were lost on NVMe",
                      last.value() < 0
                          ? ""
                          : absl::StrCat(", the last is chunk ", last.value(), " (", KindText(last),
                                         " of bundle ", BundleOf(last).value(), ")"),
                      ": its job cannot use them; check the disk and the memory\n");
}

std::string FailedWritesText(const wire::SpaceStatus& space) {
  if (space.failed_nvme_writes() <= 0) return "";
  return absl::StrCat("  ", space.failed_nvme_writes(),
                      " writes to NVMe failed, whose chunks stayed in HOST: the server's log says "
                      "where and why\n");
}

json LastDamagedJson(const wire::SpaceStatus& space) {
  const ChunkId last(space.last_damaged());
  if (last.value() < 0) return nullptr;
  return {{"chunk", last.value()}, {"bundle", BundleOf(last).value()}, {"kind", KindText(last)}};
}

json PartsJson(const flatbuffers::Vector<int64_t>* values, int count,
               absl::FunctionRef<absl::string_view(int)> name) {
  json object = json::object();
  for (int i = 0; values != nullptr && i < std::min<int>(count, values->size()); ++i) {
    object[std::string(name(i))] = ElementOf(*values, i);
  }
  return object;
}

}  // namespace

std::string StatusText(const wire::StatusReply& status) {
  std::string text = absl::StrFormat(
      "%s, up %s\n\n", Escaped(status.build()),
      absl::FormatDuration(absl::Trunc(absl::Nanoseconds(status.uptime_ns()), absl::Seconds(1))));
  absl::StrAppendFormat(&text, "%-8s%12s%12s%12s%12s\n", "TIER", "CAPACITY", "LEASED", "RECLAIMING",
                        "FREE");
  for (Tier tier : kAllTiers) {
    const wire::TierStatus* row = TierOf(status, tier);
    if (row == nullptr) continue;
    absl::StrAppendFormat(&text, "%-8s%12s%12s%12s%12s\n", TierName(tier),
                          FormatByteSize(row->capacity()), FormatByteSize(row->leased()),
                          FormatByteSize(row->reclaiming()), FormatByteSize(row->free()));
  }
  if (const wire::CostModel* costs = status.costs(); costs != nullptr) {
    absl::StrAppendFormat(
        &text,
        "\nHOST to DEVICE %s/s, back %s/s; NVME read %s/s, write %s/s; updates of "
        "%.3gM parameters/s in HOST, %.3gM on DEVICE\n",
        Rate(costs->host_to_device()), Rate(costs->device_to_host()), Rate(costs->nvme_read()),
        Rate(costs->nvme_write()), costs->update_elements() / 1e6,
        costs->device_update_elements() / 1e6);
  }
  text += WearText(status);
  absl::StrAppendFormat(&text, "\n%-24s%10s %-24s%-24s%-24s%-16s%s\n", "TENANT", "PID",
                        " DEVICE USED", "HOST USED", "NVME USED", "LEASE", "REQUESTS");
  if (status.tenants() != nullptr) {
    for (const wire::TenantStatus* tenant : *status.tenants()) {
      const std::string lease = absl::StrCat(tenant->lease(), ".", tenant->generation(),
                                             tenant->fenced() ? " fenced" : "");
      absl::StrAppendFormat(&text, "%-24s%10d  %-23s%-24s%-24s%-16s%d\n", Escaped(tenant->label()),
                            tenant->pid(), UsedOfGranted(*tenant, Tier::kDevice),
                            UsedOfGranted(*tenant, Tier::kHost),
                            UsedOfGranted(*tenant, Tier::kNvme), lease, tenant->requests());
      if (tenant->device_target() < Of(tenant->granted(), Tier::kDevice)) {
        absl::StrAppendFormat(&text, "  asked to give way, down to %s of DEVICE, in epoch %d\n",
                              FormatByteSize(tenant->device_target()), tenant->epoch());
      }
      if (const std::string refusal = Escaped(tenant->plan_refusal()); !refusal.empty()) {
        absl::StrAppendFormat(&text, "  placed on demand, for its plan was refused: %s\n", refusal);
      }
    }
  }
  if (status.spaces() == nullptr) return text;
  for (const wire::SpaceStatus* space : *status.spaces()) {
    absl::StrAppendFormat(&text, "\nSPACE %s, %d bundles, chunks of %s, step %d\n",
                          Escaped(space->name()), space->num_bundles(),
                          FormatByteSize(space->chunk_bytes()), space->step());
    absl::StrAppendFormat(&text, "  FREE %d   HOLD %d (DEVICE %d, HOST %d, NVME %d)   COMPUTE %d\n",
                          space->chunks_free(), TotalOf(space->chunks_hold()),
                          Of(space->chunks_hold(), Tier::kDevice),
                          Of(space->chunks_hold(), Tier::kHost),
                          Of(space->chunks_hold(), Tier::kNvme), space->chunks_compute());
    if (space->chunks_invalid() > 0) {
      absl::StrAppendFormat(&text,
                            "  %d words of its segment make no sense: the trainer is damaged\n",
                            space->chunks_invalid());
    }
    absl::StrAppendFormat(&text, "  fetched %s, written back %s, stalled %s\n",
                          FormatByteSize(space->fetch_bytes()),
                          FormatByteSize(space->evict_bytes()), Duration(space->stall_ns()));
    text +=
        LastStepText(*space) + RoundsText(*space) + DamageText(*space) + FailedWritesText(*space);
    absl::StrAppendFormat(&text, "  DEVICE now: %s, of it %s no chunk\n",
                          FormatByteSize(space->device_used_bytes()),
                          FormatByteSize(space->device_non_model_bytes()));
  }
  return text;
}

json StatusJson(const wire::StatusReply& status) {
  json object = {{"build", Escaped(status.build())},
                 {"uptime_ns", status.uptime_ns()},
                 {"tiers", json::object()},
                 {"nvme_wear", WearJson(status)},
                 {"nvme_daily_write_budget_bytes", status.nvme_daily_write_budget()},
                 {"tenants", json::array()},
                 {"spaces", json::array()}};
  for (Tier tier : kAllTiers) {
    const wire::TierStatus* row = TierOf(status, tier);
    if (row == nullptr) continue;
    object["tiers"][std::string(TierName(tier))] = {{"capacity_bytes", row->capacity()},
                                                    {"leased_bytes", row->leased()},
                                                    {"reclaiming_bytes", row->reclaiming()},
                                                    {"free_bytes", row->free()}};
  }
  if (const wire::CostModel* costs = status.costs(); costs != nullptr) {
    object["costs"] = {{"host_to_device", costs->host_to_device()},
                       {"device_to_host", costs->device_to_host()},
                       {"nvme_read", costs->nvme_read()},
                       {"nvme_write", costs->nvme_write()},
                       {"update_elements_per_second", costs->update_elements()},
                       {"device_update_elements_per_second", costs->device_update_elements()},
                       {"copy_latency_ns", costs->copy_latency_ns()}};
  }
  if (status.tenants() != nullptr) {
    for (const wire::TenantStatus* tenant : *status.tenants()) {
      object["tenants"].push_back({{"session", tenant->session()},
                                   {"label", Escaped(tenant->label())},
                                   {"pid", tenant->pid()},
                                   {"uid", tenant->uid()},
                                   {"lease", tenant->lease()},
                                   {"generation", tenant->generation()},
                                   {"fenced", tenant->fenced()},
                                   {"granted_bytes", TierJson(tenant->granted())},
                                   {"floor_bytes", TierJson(tenant->floor())},
                                   {"used_bytes", TierJson(tenant->used())},
                                   {"requests", tenant->requests()},
                                   {"want_bytes", TierJson(tenant->want())},
                                   {"epoch", tenant->epoch()},
                                   {"device_target_bytes", tenant->device_target()},
                                   {"plan_refusal", Escaped(tenant->plan_refusal())}});
    }
  }
  if (status.spaces() != nullptr) {
    for (const wire::SpaceStatus* space : *status.spaces()) {
      object["spaces"].push_back(
          {{"space", space->space()},
           {"name", Escaped(space->name())},
           {"session", space->session()},
           {"chunk_bytes", space->chunk_bytes()},
           {"num_bundles", space->num_bundles()},
           {"slots", TierJson(space->slots())},
           {"chunks_free", space->chunks_free()},
           {"chunks_hold", TierJson(space->chunks_hold())},
           {"chunks_compute", space->chunks_compute()},
           {"chunks_invalid", space->chunks_invalid()},
           {"step", space->step()},
           {"min_commit_step", space->min_commit_step()},
           {"max_commit_step", space->max_commit_step()},
           {"fetch_bytes", space->fetch_bytes()},
           {"evict_bytes", space->evict_bytes()},
           {"stall_ns", space->stall_ns()},
           {"device_used_bytes", space->device_used_bytes()},
           {"device_non_model_bytes", space->device_non_model_bytes()},
           {"stall_by_cause_ns",
            PartsJson(space->stall_by_cause_ns(), kNumStallCauses,
                      [](int i) { return StallCauseName(static_cast<StallCause>(i)); })},
           {"divergences",
            PartsJson(space->divergences(), kNumDivergences,
                      [](int i) { return DivergenceName(static_cast<Divergence>(i)); })},
           {"rounds", space->rounds()},
           {"planned_rounds", space->planned_rounds()},
           {"update_pending", space->update_pending()},
           {"damaged_chunks", space->damaged_chunks()},
           {"last_damaged", LastDamagedJson(*space)},
           {"failed_nvme_writes", space->failed_nvme_writes()},
           {"step_ns", space->step_ns()},
           {"step_stall_ns", space->step_stall_ns()},
           {"step_fetch_bytes", space->step_fetch_bytes()},
           {"step_evict_bytes", space->step_evict_bytes()}});
    }
  }
  return object;
}

std::string ChunksHeader(const std::string& space, const wire::ChunksReply& first_page) {
  return absl::StrFormat("%s: %d chunks of %s\n%8s  %-11s%-9s%-8s%8s%6s%7s%8s\n",
                         absl::CEscape(space), first_page.num_chunks(),
                         FormatByteSize(first_page.chunk_bytes()), "BUNDLE", "KIND", "STATE",
                         "TIER", "SLOT", "PINS", "DIRTY", "STEP");
}

std::string ChunksText(const wire::ChunksReply& page) {
  std::string text;
  if (page.chunks() == nullptr) return text;
  for (const wire::ChunkStatus* chunk : *page.chunks()) {
    const ChunkId id(chunk->chunk());
    if (chunk->invalid() || chunk->state() > 2 || chunk->tier() >= kNumTiers) {
      absl::StrAppendFormat(&text, "%8d  %-11s%s\n", BundleOf(id).value(), KindText(id),
                            "its word makes no sense: the trainer is damaged");
      continue;
    }
    const ChunkState state = static_cast<ChunkState>(chunk->state());
    if (state == ChunkState::kFree) continue;
    absl::StrAppendFormat(&text, "%8d  %-11s%-9s%-8s%8d%6d%7s%8d\n", BundleOf(id).value(),
                          KindText(id), ChunkStateName(state),
                          TierName(static_cast<Tier>(chunk->tier())), chunk->slot(), chunk->pins(),
                          chunk->dirty() ? "yes" : "no", chunk->commit_step());
  }
  return text;
}

json ChunksJson(const wire::ChunksReply& page) {
  json array = json::array();
  if (page.chunks() == nullptr) return array;
  for (const wire::ChunkStatus* chunk : *page.chunks()) {
    const ChunkId id(chunk->chunk());
    json row = {
        {"chunk", chunk->chunk()}, {"bundle", BundleOf(id).value()}, {"kind", KindText(id)}};
    if (chunk->invalid() || chunk->state() > 2 || chunk->tier() >= kNumTiers) {
      row["invalid"] = true;
    } else {
      const ChunkState state = static_cast<ChunkState>(chunk->state());
      row["state"] = std::string(ChunkStateName(state));
      if (state != ChunkState::kFree) {
        row["tier"] = std::string(TierName(static_cast<Tier>(chunk->tier())));
        row["slot"] = chunk->slot();
        row["pins"] = chunk->pins();
        row["dirty"] = chunk->dirty();
        row["commit_step"] = chunk->commit_step();
      }
    }
    array.push_back(std::move(row));
  }
  return array;
}

}  // namespace gemini::tools
