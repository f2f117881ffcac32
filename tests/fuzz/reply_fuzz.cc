// SPDX-License-Identifier: Apache-2.0
// What a client reads from its server: answers on the control connection, through the real session,
// plan source and views. The client survives whatever a server says; it fails with a status.
// Input: a byte, who reads; a byte, with which descriptors; six unused; then the answers, each
//        behind two bytes of its length. Who asks for more than there is finds the server gone.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "client/device/device_slabs.h"
#include "client/session/server_plan_source.h"
#include "client/session/session.h"
#include "gemini/plan/plan_wire.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/protocol.h"
#include "gemini/shm/lease_shm.h"
#include "gemini/shm/space_shm.h"
#include "gemini/system/check.h"
#include "gemini/system/seqpacket.h"
#include "policies/planner/planner.h"
#include "server/reply_wire.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/traces.h"
#include "tools/status_view.h"

namespace gemini::client {
namespace {

constexpr size_t kHeadBytes = 8;
constexpr int64_t kChunkBytes = 4096;
constexpr int64_t kArenaBytes = 4 * kChunkBytes;
constexpr int64_t kBundles = 2;
constexpr int64_t kTensors = 3;
constexpr int64_t kHostSlots = 8;
enum Reader : uint8_t {
  kSession = 0,
  kPlan = 1,
  kTrace = 2,
  kStatus = 3,
  kChunks = 4,
  kGpuSession = 5,
};
constexpr uint8_t kNumReaders = 6;

const Trace& TrainStep() {
  static const Trace trace = server::StepTrace(3, 2 * kChunkBytes);
  return trace;
}

UniqueFd MemfdOf(int64_t size_bytes) {
  UniqueFd fd(::memfd_create("fuzzed", MFD_CLOEXEC));
  GEMINI_CHECK(fd && ::ftruncate(fd.get(), size_bytes) == 0);
  return fd;
}
UniqueFd MemfdOf(absl::string_view bytes) {
  UniqueFd fd = MemfdOf(static_cast<int64_t>(bytes.size()));
  GEMINI_CHECK(::pwrite(fd.get(), bytes.data(), bytes.size(), 0) ==
               static_cast<ssize_t>(bytes.size()));
  return fd;
}

// The answers wait in the socket; behind them the server hangs up.
class QueuedServer {
 public:
  QueuedServer() {
    std::array<int, 2> ends = {};
    GEMINI_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    client_ = UniqueFd(ends[0]);
    server_ = UniqueFd(ends[1]);
  }
  void Queue(absl::string_view answer, absl::Span<const int> fds) {
    SendPacket(server_.get(), answer, fds).IgnoreError();
  }
  UniqueFd TakeClient() {
    ::shutdown(server_.get(), SHUT_WR);
    return std::move(client_);
  }

 private:
  UniqueFd client_;
  UniqueFd server_;
};

// What a session of one space is sent; one size too small spoils each in turn.
std::vector<int> LeaseFds(uint8_t choice) {
  static const UniqueFd segment = MemfdOf(int64_t{sizeof(LeaseSegmentShm)});
  static const UniqueFd timeline = MemfdOf(int64_t{sizeof(TimelineShm)});
  static const UniqueFd arena = MemfdOf(kArenaBytes);
  static const UniqueFd small = MemfdOf(int64_t{16});
  std::vector<int> fds = {segment.get(), timeline.get(), arena.get()};
  if ((choice & 3) != 3) return fds;
  fds[choice >> 2 & 1] = small.get();
  return fds;
}
std::vector<int> SpaceFds(uint8_t choice) {
  static const UniqueFd client = MemfdOf(ClientSegmentLayout(kBundles, kTensors).size_bytes);
  static const UniqueFd server = MemfdOf(int64_t{sizeof(ServerSegmentShm)});
  static const UniqueFd slab = MemfdOf(kHostSlots * kChunkBytes);
  static const UniqueFd small = MemfdOf(int64_t{16});
  std::vector<int> fds = {client.get(), server.get(), small.get(), slab.get()};
  if ((choice & 0x30) == 0x30) fds[choice >> 6] = small.get();
  return fds;
}

// Slabs of memory files, as a GPU's are mapped.
class FileSlabs : public DeviceSlabs {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceSlabs>> Reserve(const DeviceSlabsOffer& offer) {
    const auto& [slab_bytes, num_slabs, gpu_uuid, is_counted] = offer;
    // No more than was asked for, in whole slabs.
    GEMINI_CHECK((num_slabs - 1) * slab_bytes < kArenaBytes);
    GEMINI_CHECK(slab_bytes > 0 && num_slabs > 0);
    const auto size = static_cast<size_t>(slab_bytes * num_slabs);
    void* const begin =
        ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return absl::ResourceExhaustedError("no such range is free");
    return std::unique_ptr<DeviceSlabs>(
        new FileSlabs(static_cast<std::byte*>(begin), slab_bytes, num_slabs));
  }
  ~FileSlabs() override { ::munmap(begin_, static_cast<size_t>(slab_bytes_ * num_slabs_)); }

  absl::Status Map(int fd) override {
    struct stat info = {};
    GEMINI_CHECK(num_mapped_ < num_slabs_);
    if (::fstat(fd, &info) != 0 || info.st_size < slab_bytes_) {
      return absl::UnavailableError("no slab");
    }
    if (::mmap(begin_ + num_mapped_ * slab_bytes_, static_cast<size_t>(slab_bytes_),
               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
      return absl::UnavailableError("it cannot be mapped");
    }
    ++num_mapped_;
    return absl::OkStatus();
  }
  // What is not kept stays mapped, as nothing may touch it.
  absl::Status Keep(int64_t num_slabs) override {
    num_mapped_ = std::min(num_mapped_, num_slabs);
    return absl::OkStatus();
  }
  std::byte* data() const override { return begin_; }
  int64_t num_mapped() const override { return num_mapped_; }

 private:
  FileSlabs(std::byte* begin, int64_t slab_bytes, int64_t num_slabs)
      : begin_(begin), slab_bytes_(slab_bytes), num_slabs_(num_slabs) {}
  std::byte* const begin_;
  const int64_t slab_bytes_;
  const int64_t num_slabs_;
  int64_t num_mapped_ = 0;
};

void OpenSession(UniqueFd socket, bool with_gpu) {
  SessionOptions options;
  options.want_bytes = {{kArenaBytes, kHostSlots * kChunkBytes, 0}};
  options.takes_epochs = true;
  options.chunk_bytes = kChunkBytes;
  options.label = "fuzz";
  if (with_gpu) options.make_slabs = FileSlabs::Reserve;
  auto session = Session::Open(std::move(socket), std::move(options));
  if (!session.ok()) return;
  const auto space = (*session)->OpenSpace({.name = "space",
                                            .num_bundles = kBundles,
                                            .host_slots = kHostSlots,
                                            .nvme_slots = 0,
                                            .num_tensors = kTensors});
  GEMINI_CHECK(space.ok() == (space.ok() && *space != nullptr));
  if (const auto target = (*session)->device().TakeChange(); target.has_value()) {
    GEMINI_CHECK((*session)->device().Map(*target) <= target->device_bytes);
  }
  (*session)->Close().IgnoreError();
}

void AskForPlan(UniqueFd socket) {
  Connection connection(std::move(socket));
  ServerPlanSource source(connection, {.chunk_bytes = kChunkBytes});
  const auto plan = source.MakePlan(TrainStep(), 16 * kChunkBytes);
  if (!plan.ok()) return;
  GEMINI_CHECK(CheckPlan(*plan).ok());
  GEMINI_CHECK(plan->num_positions() == TrainStep().num_positions());
  GEMINI_CHECK(plan->device_bytes <= 16 * kChunkBytes);
}

void AskForTrace(UniqueFd socket) {
  Connection connection(std::move(socket));
  ServerPlanSource source(connection, {.chunk_bytes = kChunkBytes});
  const auto trace = source.FindTrace("train", TrainStep().tensors);
  if (!trace.ok() || !trace->has_value()) return;
  GEMINI_CHECK(CheckTrace(**trace).ok());
  GEMINI_CHECK((*trace)->phase == "train" && (*trace)->tensors == TrainStep().tensors);
}

void ShowStatus(UniqueFd socket) {
  Connection connection(std::move(socket));
  const auto reply = connection.Call(
      wire::Body::GetStatus,
      [](flatbuffers::FlatBufferBuilder& b) { return wire::CreateGetStatus(b).Union(); },
      wire::Body::StatusReply);
  if (!reply.ok()) return;
  const auto& status = *reply->As<wire::StatusReply>();
  const std::string text = tools::StatusText(status);
  // A terminal obeys control characters; a peer's are escaped.
  for (const char c : text) GEMINI_CHECK(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  tools::StatusJson(status).dump();
}

void ShowChunks(UniqueFd socket) {
  Connection connection(std::move(socket));
  const auto reply = connection.Call(
      wire::Body::ListChunks,
      [](flatbuffers::FlatBufferBuilder& b) {
        return wire::CreateListChunksDirect(b, "space", 0, 100).Union();
      },
      wire::Body::ChunksReply);
  if (!reply.ok()) return;
  const auto& page = *reply->As<wire::ChunksReply>();
  tools::ChunksHeader("space", page);
  tools::ChunksText(page);
  tools::ChunksJson(page).dump();
}

std::string Seed(Reader reader, std::vector<std::string> answers) {
  std::string seed(kHeadBytes, '\0');
  seed[0] = static_cast<char>(reader);
  for (const std::string& answer : answers) {
    seed += static_cast<char>(answer.size() & 0xff);
    seed += static_cast<char>(answer.size() >> 8);
    seed += answer;
  }
  return seed;
}

}  // namespace
}  // namespace gemini::client

namespace gemini::fuzz {

std::vector<std::string> Seeds() {
  using namespace client;
  const std::string trace = EncodeTrace(TrainStep());
  const auto packed = policies::PackTrace(TrainStep(), kChunkBytes);
  GEMINI_CHECK(packed.ok());
  const auto plan = policies::MakePlan({.trace = *packed,
                                        .budget_bytes = {{16 * kChunkBytes, 1 << 30, 0}},
                                        .costs = {},
                                        .policy = {}});
  GEMINI_CHECK(plan.ok());
  const std::string encoded = EncodePlan(*plan);
  server::SpaceStatusAnswer space = {
      .space = 1, .name = "space", .chunk_bytes = 4096, .num_bundles = 2};
  server::ListedChunk chunk = {.chunk = ChunkId(1), .residency = {}, .commit_step = 3};
  const server::StatusAnswer status = {
      .tenants = {{.session = 1, .label = "label\x1b[31m", .pid = 7}},
      .spaces = {space},
      .build = "build",
      .uptime = absl::Seconds(3),
      .nvme_wear = {{.path = "/disk"}}};
  return {
      Seed(kSession, {server::EncodeHelloReply(1, {.build = "gemini", .session = 1}),
                      server::EncodeLeaseReply(2, {.lease = 1,
                                                   .generation = 1,
                                                   .granted = {{kArenaBytes, 1 << 15, 0}},
                                                   .device_arena_bytes = kArenaBytes}),
                      server::EncodeSpaceReply(3, {.space = 1,
                                                   .generation = 1,
                                                   .slots_per_slab = kHostSlots,
                                                   .num_slabs = 1,
                                                   .slabs_sent = 1}),
                      server::EncodeDone(4), server::EncodeDone(5)}),
      Seed(kGpuSession, {server::EncodeHelloReply(1, {.build = "gemini", .session = 1}),
                         server::EncodeLeaseReply(2, {.lease = 1,
                                                      .generation = 1,
                                                      .granted = {{kArenaBytes, 1 << 15, 0}},
                                                      .device_arena_bytes = kArenaBytes,
                                                      .device_slab_bytes = kArenaBytes / 2}),
                         server::EncodeSlabsReply(3, 2),
                         server::EncodeSpaceReply(4, {.space = 1,
                                                      .generation = 1,
                                                      .slots_per_slab = kHostSlots,
                                                      .num_slabs = 1,
                                                      .slabs_sent = 1}),
                         server::EncodeDone(5), server::EncodeDone(6)}),
      // Slots of all that would take memory of the client's.
      Seed(kGpuSession, {server::EncodeHelloReply(1, {.build = "gemini", .session = 1}),
                         server::EncodeLeaseReply(2, {.lease = 1,
                                                      .generation = 1,
                                                      .granted = {{0, 1 << 15, 0}},
                                                      .device_arena_bytes = int64_t{1} << 36,
                                                      .device_slab_bytes = 1 << 30})}),
      Seed(kSession, {server::EncodeRefusal(1, absl::ResourceExhaustedError("no room"))}),
      Seed(kPlan,
           {server::EncodeTraceRoom(1),
            server::EncodePlanReply(2, static_cast<int64_t>(encoded.size()), 4096), encoded}),
      Seed(kTrace, {server::EncodeTraceReply(1, static_cast<int64_t>(trace.size())), trace}),
      Seed(kStatus, {server::EncodeStatusReply(1, status)}),
      Seed(kChunks, {server::EncodeChunksReply(
                        1, {.num_chunks = 16, .chunk_bytes = 4096, .chunks = {chunk}})}),
  };
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gemini;
  using namespace gemini::client;
  if (size < kHeadBytes) return 0;
  absl::string_view rest = fuzz::BytesOf(data, size).substr(kHeadBytes);
  std::vector<absl::string_view> answers;
  while (rest.size() > 2 && answers.size() < 6) {
    const size_t length = static_cast<uint8_t>(rest[0]) | static_cast<uint8_t>(rest[1]) << 8;
    rest.remove_prefix(2);
    answers.push_back(rest.substr(0, length));
    rest.remove_prefix(answers.back().size());
  }
  const auto reader = static_cast<Reader>(data[0] % kNumReaders);
  QueuedServer server;
  // The last "answer" of a plan or a trace is what its memory holds.
  const bool has_memory = reader == kPlan || reader == kTrace;
  UniqueFd memory;
  if (has_memory && !answers.empty()) {
    memory = MemfdOf(answers.back());
    answers.pop_back();
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    std::vector<int> fds;
    const bool is_session = reader == kSession || reader == kGpuSession;
    const size_t space_answer = reader == kGpuSession ? 3 : 2;
    if (is_session && i == 1) fds = LeaseFds(data[1]);
    // The arena's file does for a slab.
    if (reader == kGpuSession && i == 2) fds = {LeaseFds(0)[2], LeaseFds(0)[2]};
    if (is_session && i == space_answer) fds = SpaceFds(data[1]);
    if (has_memory) fds = {memory.get()};
    server.Queue(answers[i], fds);
  }
  switch (reader) {
    case kSession:
      OpenSession(server.TakeClient(), /*with_gpu=*/false);
      break;
    case kPlan:
      AskForPlan(server.TakeClient());
      break;
    case kTrace:
      AskForTrace(server.TakeClient());
      break;
    case kStatus:
      ShowStatus(server.TakeClient());
      break;
    case kChunks:
      ShowChunks(server.TakeClient());
      break;
    case kGpuSession:
      OpenSession(server.TakeClient(), /*with_gpu=*/true);
      break;
  }
  return 0;
}
