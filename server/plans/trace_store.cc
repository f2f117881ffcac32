// SPDX-License-Identifier: Apache-2.0
#include "server/plans/trace_store.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/trace_generated.h"
#include "server/loop/server_log.h"
#include "server/plans/state_file.h"

namespace gemini::server {
namespace {

constexpr absl::string_view kSuffix = ".trace";
constexpr char kKeptIdentifier[] = "GMK1";
// Beside the trace: the space's name, and FlatBuffers' own.
constexpr int64_t kMaxFileBytes = kMaxTraceBytes + 4096;

uint64_t Checksum(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// By the key's hash: a space's or phase's name need not be one for a file.
std::string FileName(const TraceKey& key) {
  const std::string text = absl::StrCat(key.space, "\n", key.phase, "\n", key.tensors_hash);
  return absl::StrCat(absl::Hex(Checksum(text), absl::kZeroPad16), kSuffix);
}

}  // namespace

std::string EncodeKeptTrace(const KeptTrace& kept) {
  flatbuffers::FlatBufferBuilder builder;
  const auto space = builder.CreateString(kept.key.space);
  const auto bytes =
      builder.CreateVector(reinterpret_cast<const uint8_t*>(kept.trace.data()), kept.trace.size());
  builder.Finish(wire::CreateKeptTrace(builder, space, Checksum(kept.trace), bytes),
                 kKeptIdentifier);
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

absl::StatusOr<KeptTrace> DecodeKeptTrace(absl::string_view bytes) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (!verifier.VerifyBuffer<wire::KeptTrace>(kKeptIdentifier)) {
    return absl::DataLossError("it is no kept trace");
  }
  const auto& kept = *flatbuffers::GetRoot<wire::KeptTrace>(bytes.data());
  if (kept.space() == nullptr || kept.trace() == nullptr) {
    return absl::DataLossError("a kept trace without its parts");
  }
  KeptTrace content;
  content.trace.assign(reinterpret_cast<const char*>(kept.trace()->data()), kept.trace()->size());
  if (Checksum(content.trace) != kept.checksum()) return absl::DataLossError("a wrong checksum");
  const absl::StatusOr<Trace> trace = DecodeTrace(content.trace);
  if (!trace.ok()) return trace.status();
  content.key = {kept.space()->str(), trace->phase, TensorsHash(trace->tensors)};
  return content;
}

TraceStore::TraceStore(std::string directory, int64_t max_bytes)
    : directory_(std::move(directory)), max_bytes_(max_bytes) {
  if (!directory_.empty()) Load();
}

void TraceStore::Load() {
  std::vector<std::string> names = ListStateFiles(directory_, kSuffix);
  // More than are ever kept were left by an earlier version, and would take long to read.
  for (; names.size() > kMaxKeptTraces; names.pop_back()) {
    RemoveStateFile(directory_, names.back());
  }
  // The latest are inserted last: they are the most recent then.
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) {
    absl::StatusOr<std::string> bytes = ReadStateFile(directory_, name, kMaxFileBytes);
    absl::StatusOr<KeptTrace> content =
        bytes.ok() ? DecodeKeptTrace(*bytes) : absl::StatusOr<KeptTrace>(bytes.status());
    if (!content.ok()) {
      ServerLog().warn("left out the kept trace {}/{}: {}: remove it", directory_,
                       absl::CHexEscape(name), content.status().ToString());
      continue;
    }
    Insert(content->key, std::move(content->trace));
  }
}

void TraceStore::Count(const KeptTrace& kept, int sign) {
  const int64_t bytes = sign * static_cast<int64_t>(kept.trace.size());
  Taken& of_space = by_space_[kept.key.space];
  for (Taken* taken : {&sum_, &of_space}) {
    taken->bytes += bytes;
    taken->traces += sign;
  }
  if (of_space.traces == 0) by_space_.erase(kept.key.space);
}

void TraceStore::Remove(Position at) {
  Count(*at, -1);
  by_key_.erase(at->key);
  recent_.erase(at);
}

TraceStore::Position TraceStore::FindVictim() {
  Position victim = std::prev(recent_.end());
  int64_t most = -1;
  for (Position at = std::prev(recent_.end()); at != recent_.begin(); --at) {
    const Taken& taken = by_space_[at->key.space];
    const int64_t has = sum_.bytes > max_bytes_ ? taken.bytes : taken.traces;
    if (has <= most) continue;
    most = has;
    victim = at;
  }
  return victim;
}

void TraceStore::Insert(const TraceKey& key, std::string trace) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) Remove(found->second);
  recent_.push_front({key, std::move(trace)});
  by_key_[key] = recent_.begin();
  Count(recent_.front(), 1);
  while ((sum_.bytes > max_bytes_ || sum_.traces > kMaxKeptTraces) && recent_.size() > 1) {
    const Position victim = FindVictim();
    if (!directory_.empty()) RemoveStateFile(directory_, FileName(victim->key));
    Remove(victim);
  }
}

void TraceStore::Keep(const TraceKey& key, std::string trace) {
  if (const auto found = by_key_.find(key);
      found != by_key_.end() && found->second->trace == trace) {
    recent_.splice(recent_.begin(), recent_, found->second);
    return;
  }
  if (!directory_.empty()) {
    const absl::Status written =
        WriteStateFile(directory_, FileName(key), EncodeKeptTrace({key, trace}));
    if (!written.ok()) ServerLog().warn("a trace is kept in memory only: {}", written.ToString());
  }
  Insert(key, std::move(trace));
}

const std::string* TraceStore::Find(const TraceKey& key) {
  auto found = recent_.end();
  if (key.tensors_hash != 0) {
    if (const auto at = by_key_.find(key); at != by_key_.end()) found = at->second;
  } else {
    found = std::find_if(recent_.begin(), recent_.end(), [&key](const KeptTrace& kept) {
      return kept.key.space == key.space && kept.key.phase == key.phase;
    });
  }
  if (found == recent_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found);
  return &recent_.front().trace;
}

}  // namespace gemini::server
