// SPDX-License-Identifier: Apache-2.0
// What the client costs: a pin of a resident chunk, a request to the server, a copy.
// Each benchmark interleaves what it measures with its baseline and reports the counters that
// tools/measure reads: `value`, `baseline`, and `checked` (1: the result was verified).
#include <benchmark/benchmark.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "client/session/session.h"
#include "client/wire/connection.h"
#include "gemini/byte_size.h"
#include "gemini/protocol.h"
#include "gemini/system/mutex.h"
#include "gemini/system/seqpacket.h"
#include "server/embedded_server.h"

namespace gemini::client {
namespace {

using Clock = std::chrono::steady_clock;

double NsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Report(benchmark::State& state, double value, double baseline, bool checked) {
  state.counters["value"] = value;
  state.counters["baseline"] = baseline;
  state.counters["checked"] = checked ? 1 : 0;
}

constexpr int64_t kChunkBytes = 64 * kKiB;
constexpr int64_t kChunks = 128;

TierMap<int64_t> LeaseBytes() {
  TierMap<int64_t> bytes;
  bytes[Tier::kDevice] = kChunks * kChunkBytes;
  bytes[Tier::kHost] = (kChunks + 2) * kChunkBytes;
  return bytes;
}

absl::StatusOr<std::unique_ptr<server::EmbeddedServer>> StartServer() {
  server::ServerOptions options;
  options.capacity_bytes = LeaseBytes();
  return server::EmbeddedServer::Start(options);
}

// Pin and Unpin of one chunk among 128 resident ones, in an order that no cache line predicts.
void pin_ns(benchmark::State& state) {
  const auto server = StartServer();
  if (!server.ok()) return state.SkipWithError(server.status().ToString().c_str());
  auto socket = (*server)->Connect();
  SessionOptions options = {.want_bytes = LeaseBytes(),
                            .floor_bytes = LeaseBytes(),
                            .chunk_bytes = kChunkBytes,
                            .label = "gemini-bench"};
  const auto session = Session::Open(*std::move(socket), options);
  if (!session.ok()) return state.SkipWithError(session.status().ToString().c_str());
  const auto store =
      (*session)->OpenSpace({.name = "bench", .num_bundles = kChunks, .host_slots = kChunks + 2});
  if (!store.ok()) return state.SkipWithError(store.status().ToString().c_str());
  Residency& residency = (*session)->residency();
  bool checked = true;
  std::vector<RangeId> ranges;
  for (int64_t i = 0; i < kChunks; ++i) {
    auto spare = (*store)->AcquireSpare();
    if (!spare.ok()) return state.SkipWithError(spare.status().ToString().c_str());
    std::memset(spare->data(), static_cast<int>(i), kChunkBytes);
    std::pair<ChunkKind, HostChunk> fresh(ChunkKind::kParam, *std::move(spare));
    checked &= (*store)->Commit(BundleId(i), 0, absl::MakeSpan(&fresh, 1)).ok();
    ranges.push_back(residency.AddRange(**store, BundleId(i), 1, ChunkKind::kParam));
  }
  const auto visit_all = [&] {
    for (int64_t i = 0; i < kChunks; ++i) {
      const RangeId range = ranges[i * 37 % kChunks];
      std::byte* address = nullptr;
      checked &= residency.Pin({&range, 1}, {&address, 1}).ok() &&
                 *address == static_cast<std::byte>(range.value());
      residency.Unpin(range, /*dirty=*/false);
    }
  };
  visit_all();
  const int64_t fetched = residency.stats().fetch_bytes;
  Mutex mutex;
  std::vector<double> pins, locks;
  for (auto _ : state) {
    const auto start = Clock::now();
    visit_all();
    pins.push_back(NsSince(start) / kChunks);
    const auto between = Clock::now();
    for (int64_t i = 0; i < kChunks; ++i) {
      MutexLock lock(mutex);
      benchmark::ClobberMemory();
    }
    locks.push_back(NsSince(between) / kChunks);
    state.SetIterationTime(pins.back() * kChunks * 1e-9);
  }
  checked &= residency.stats().fetch_bytes == fetched;  // All were resident all the time.
  Report(state, Median(pins), Median(locks), checked);
}
BENCHMARK(pin_ns)->UseManualTime()->MinTime(0.5);

// GetStatus and its verified reply, from an embedded server; below it an echo of one byte.
void request_us(benchmark::State& state) {
  const auto server = StartServer();
  if (!server.ok()) return state.SkipWithError(server.status().ToString().c_str());
  Connection connection(*(*server)->Connect());
  bool checked = connection
                     .Call(
                         wire::Body::Hello,
                         [](flatbuffers::FlatBufferBuilder& builder) {
                           return wire::CreateHelloDirect(builder, kProtocolVersion, "gemini-bench",
                                                          wire::Role::kObserver, "gemini-bench")
                               .Union();
                         },
                         wire::Body::HelloReply)
                     .ok();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return state.SkipWithError("no socketpair");
  }
  UniqueFd near_end(ends[0]);
  std::thread echo([far_end = UniqueFd(ends[1])] {
    for (;;) {
      const absl::StatusOr<Packet> packet = ReceivePacket(far_end.get());
      if (!packet.ok() || !SendPacket(far_end.get(), packet->bytes, {}).ok()) return;
    }
  });
  std::vector<double> requests, echoes;
  for (auto _ : state) {
    const auto start = Clock::now();
    const absl::StatusOr<Reply> reply = connection.Call(
        wire::Body::GetStatus,
        [](flatbuffers::FlatBufferBuilder& builder) {
          return wire::CreateGetStatus(builder).Union();
        },
        wire::Body::StatusReply);
    requests.push_back(NsSince(start) / 1e3);
    checked &= reply.ok() && reply->As<wire::StatusReply>()->device() != nullptr;
    const auto between = Clock::now();
    checked &= SendPacket(near_end.get(), "x", {}).ok() && ReceivePacket(near_end.get()).ok();
    echoes.push_back(NsSince(between) / 1e3);
    state.SetIterationTime(requests.back() * 1e-6);
  }
  near_end.Reset();
  echo.join();
  Report(state, Median(requests), Median(echoes), checked);
}
BENCHMARK(request_us)->UseManualTime()->MinTime(0.5);

// 32 copies of 4 MiB, more than the caches hold, through the engine's fetch stream and by memcpy.
void copy_fraction_of_memcpy(benchmark::State& state) {
  constexpr int64_t kCopyBytes = 4 * kMiB;
  constexpr int64_t kCopies = 32;
  std::vector<char> source(kCopies * kCopyBytes, 1), destination(kCopies * kCopyBytes, 2);
  CopyEngineHost engine;
  std::vector<double> fractions, rates;
  bool checked = true;
  const auto by_engine = [&] {
    const auto start = Clock::now();
    CopyEvent last;
    for (int64_t i = 0; i < kCopies; ++i) {
      last = engine.Copy(CopyStream::kFetch, destination.data() + i * kCopyBytes,
                         source.data() + i * kCopyBytes, kCopyBytes, {});
    }
    engine.Wait(last);
    return NsSince(start);
  };
  const auto by_memcpy = [&] {
    const auto start = Clock::now();
    for (int64_t i = 0; i < kCopies; ++i) {
      std::memcpy(destination.data() + i * kCopyBytes, source.data() + i * kCopyBytes, kCopyBytes);
      benchmark::ClobberMemory();
    }
    return NsSince(start);
  };
  for (auto _ : state) {
    // Each goes first in turn: the second finds caches and the clock as the first left them.
    const bool engine_first = fractions.size() % 2 == 0;
    const double early_ns = engine_first ? 0 : by_memcpy();
    source[0] = static_cast<char>(fractions.size());
    const double engine_ns = by_engine();
    checked &= destination[0] == source[0] && destination.back() == source.back();
    const double memcpy_ns = engine_first ? by_memcpy() : early_ns;
    fractions.push_back(memcpy_ns / engine_ns);
    rates.push_back(static_cast<double>(kCopies * kCopyBytes) / static_cast<double>(kGiB) /
                    (memcpy_ns * 1e-9));
    state.SetIterationTime(engine_ns * 1e-9);
  }
  checked &= source == destination;
  Report(state, Median(fractions), Median(rates), checked);
}
BENCHMARK(copy_fraction_of_memcpy)->UseManualTime()->MinTime(1);

}  // namespace
}  // namespace gemini::client
