// SPDX-License-Identifier: Apache-2.0
// A real embedded server and sessions with it, for tests of the client.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/session/session.h"
#include "client/wire/connection.h"
#include "gemini/layout.h"
#include "gtest/gtest.h"
#include "server/embedded_server.h"
#include "tests/client/session/observer.h"
#include "tests/status_matchers.h"

namespace gemini::client {

inline constexpr int64_t kTestChunkBytes = kPageBytes;

inline TierMap<int64_t> Bytes(int64_t device, int64_t host, int64_t nvme) {
  TierMap<int64_t> bytes;
  bytes.values = {device, host, nvme};
  return bytes;
}

// Fills `chunk` with words that name their writer and version, so that a mix of two is seen.
inline void FillChunk(std::byte* chunk, uint64_t tag, int64_t size_bytes = kTestChunkBytes) {
  uint64_t* const words = reinterpret_cast<uint64_t*>(chunk);
  for (int64_t i = 0; i < size_bytes / 8; ++i) words[i] = tag * 1'000'003 + i;
}
inline bool ChunkHolds(const std::byte* chunk, uint64_t tag, int64_t size_bytes = kTestChunkBytes) {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(chunk);
  for (int64_t i = 0; i < size_bytes / 8; ++i) {
    if (words[i] != tag * 1'000'003 + i) return false;
  }
  return true;
}
inline bool ChunkIsZero(const std::byte* chunk) {
  for (int64_t i = 0; i < kTestChunkBytes; ++i) {
    if (chunk[i] != std::byte{0}) return false;
  }
  return true;
}

class SessionFixture : public ::testing::Test {
 protected:
  SessionFixture() {
    std::string pattern = ::testing::TempDir() + "/gemini-client-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    StartServer(DefaultServer());
  }
  ~SessionFixture() override {
    session_.reset();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  server::ServerOptions DefaultServer() const {
    server::ServerOptions options;
    options.capacity_bytes = Bytes(16 << 20, 64 << 20, 0);
    options.nvme_directories = {{.path = directory_, .capacity_bytes = 64 << 20}};
    return options;
  }
  // In the place of the one that runs; no session may be open.
  void StartServer(const server::ServerOptions& options) {
    server_.reset();
    auto server = server::EmbeddedServer::Start(options);
    EXPECT_OK(server);
    if (server.ok()) server_ = *std::move(server);
  }

  absl::StatusOr<std::unique_ptr<Session>> TryOpen(TierMap<int64_t> want, TierMap<int64_t> floor) {
    auto socket = server_->Connect();
    if (!socket.ok()) return socket.status();
    SessionOptions options;
    options.want_bytes = want;
    options.floor_bytes = floor;
    options.chunk_bytes = chunk_bytes_;
    options.label = "client test";
    options.nvme_checksums = nvme_checksums_;
    options.make_slabs = make_slabs_;
    options.make_copies = make_copies_;
    return Session::Open(*std::move(socket), options);
  }

  // Opens session_ with a lease of so many slots.
  void OpenSession(int64_t device_slots, int64_t host_slots, int64_t nvme_slots) {
    const TierMap<int64_t> bytes =
        Bytes(device_slots * chunk_bytes_, host_slots * chunk_bytes_, nvme_slots * chunk_bytes_);
    auto session = TryOpen(bytes, bytes);
    ASSERT_OK(session);
    session_ = *std::move(session);
  }
  ChunkStore* OpenSpace(const std::string& name, int64_t num_bundles, int64_t host_slots,
                        int64_t nvme_slots) {
    auto store = session_->OpenSpace({.name = name,
                                      .num_bundles = num_bundles,
                                      .host_slots = host_slots,
                                      .nvme_slots = nvme_slots});
    EXPECT_OK(store);
    return store.ok() ? *store : nullptr;
  }

  // What the server, which trusts nothing in the segment, reads of all chunks of the space.
  struct SeenChunk {
    ChunkState state;
    Tier tier;
    bool dirty;
    int pins;
    int64_t commit_step;
    bool invalid;
  };
  std::vector<SeenChunk> Look(const std::string& space) {
    std::vector<SeenChunk> seen;
    const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
    int64_t num_chunks = 1;
    while (static_cast<int64_t>(seen.size()) < num_chunks) {
      auto reply = observer->Call(
          wire::Body::ListChunks,
          [&](flatbuffers::FlatBufferBuilder& builder) {
            return wire::CreateListChunksDirect(builder, space.c_str(),
                                                static_cast<int64_t>(seen.size()), 256)
                .Union();
          },
          wire::Body::ChunksReply);
      EXPECT_OK(reply);
      if (!reply.ok()) break;
      const wire::ChunksReply* page = reply->As<wire::ChunksReply>();
      num_chunks = page->num_chunks();
      if (page->chunks() == nullptr || page->chunks()->size() == 0) break;
      for (const wire::ChunkStatus* chunk : *page->chunks()) {
        seen.push_back({.state = static_cast<ChunkState>(chunk->state()),
                        .tier = static_cast<Tier>(chunk->tier()),
                        .dirty = chunk->dirty(),
                        .pins = chunk->pins(),
                        .commit_step = chunk->commit_step(),
                        .invalid = chunk->invalid()});
      }
    }
    return seen;
  }

  // Returns when a tenant has this much of DEVICE.
  void AwaitGrant(int64_t device_bytes) {
    const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
    for (;;) {
      const absl::StatusOr<Reply> reply = GetStatus(*observer);
      ASSERT_OK(reply);
      const auto* const tenants = reply->As<wire::StatusReply>()->tenants();
      const bool granted = std::ranges::any_of(*tenants, [&](const wire::TenantStatus* tenant) {
        return tenant->granted() != nullptr && tenant->granted()->device() == device_bytes;
      });
      if (granted) return;
    }
  }

  // Commits `tag`'s bytes as the chunk at `step`.
  static absl::Status CommitTag(ChunkStore& store, BundleId bundle, ChunkKind kind, int64_t step,
                                uint64_t tag) {
    auto spare = store.AcquireSpare();
    if (!spare.ok()) return spare.status();
    FillChunk(spare->data(), tag, store.chunk_bytes());
    std::pair<ChunkKind, HostChunk> fresh(kind, *std::move(spare));
    return store.Commit(bundle, step, absl::MakeSpan(&fresh, 1));
  }

  int64_t chunk_bytes_ = kTestChunkBytes;
  bool nvme_checksums_ = true;
  decltype(SessionOptions::make_slabs) make_slabs_;
  decltype(SessionOptions::make_copies) make_copies_;
  std::string directory_;
  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<Session> session_;
};

}  // namespace gemini::client
