// SPDX-License-Identifier: Apache-2.0
// A slab, an extent and an engine, for the tests of nvme_io_conformance.h.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <ostream>
#include <string>

#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/mapped_memory.h"
#include "server/nvme/nvme_io.h"
#include "server/tiers/sealed_memfd.h"
#include "tests/status_matchers.h"

namespace gemini::server {

struct NvmeIoCase {
  std::string name;
  std::function<std::unique_ptr<NvmeIo>()> make;
  bool direct = false;  // The extent is open with O_DIRECT.
  friend void PrintTo(const NvmeIoCase& tested, std::ostream* out) { *out << tested.name; }
};

class NvmeIoConformance : public ::testing::TestWithParam<NvmeIoCase> {
 protected:
  static constexpr int64_t kChunk = 256 * kKiB;
  static constexpr int64_t kChunks = 16;

  void SetUp() override {
    ::signal(SIGXFSZ, SIG_IGN);  // As geminid does.
    ASSERT_OK_AND_ASSIGN(host_, MakeSealedMemfd("host", kChunks * kChunk, MemfdPages::kAllocated));
    std::string name = ::testing::TempDir() + "/extent-XXXXXX";
    file_ = UniqueFd(::mkstemp(name.data()));
    ASSERT_TRUE(file_);
    const int direct = GetParam().direct ? O_DIRECT : 0;
    nvme_ = UniqueFd(::open(name.c_str(), O_RDWR | O_CLOEXEC | direct));
    ASSERT_TRUE(nvme_) << "no O_DIRECT in " << ::testing::TempDir();
    ::unlink(name.c_str());
    ASSERT_EQ(::posix_fallocate(file_.get(), 0, kChunks * kChunk), 0);
    io_ = GetParam().make();
  }

  NvmeTransfer Transfer(IoOperation operation, int64_t host_chunk, int64_t nvme_chunk) const {
    return {operation, host_.get(), host_chunk * kChunk, nvme_.get(), nvme_chunk * kChunk, kChunk};
  }
  absl::Status Run(const NvmeTransfer& transfer) {
    std::latch done(1);
    absl::Status result;
    io_->Submit(transfer, [&](const absl::Status& status) {
      result = status;
      done.count_down();
    });
    done.wait();
    return result;
  }
  void FillHost(int64_t chunk, char value) const {
    const std::string bytes(kChunk, value);
    ASSERT_EQ(::pwrite(host_.get(), bytes.data(), kChunk, chunk * kChunk), kChunk);
  }
  static std::string Chunk(int fd, int64_t chunk) {
    std::string bytes(kChunk, '\0');
    EXPECT_EQ(::pread(fd, bytes.data(), kChunk, chunk * kChunk), kChunk);
    return bytes;
  }

  void Forget(int host_fd) {
    std::latch forgotten(1);
    io_->Forget({host_fd}, [&] { forgotten.count_down(); });
    forgotten.wait();
  }

  UniqueFd host_;
  UniqueFd file_;  // What nvme_ is, for the test itself: through the page cache.
  UniqueFd nvme_;
  std::unique_ptr<NvmeIo> io_;
};

// A slab that a test looks into, longer than what an engine may take as one piece.
struct MappedSlab {
  explicit MappedSlab(int64_t size_bytes)
      : fd(*MakeSealedMemfd("slab", size_bytes, MemfdPages::kAllocated)),
        memory(*MappedMemory::Map(fd.get(), size_bytes, MappedMemory::Access::kReadWrite)) {}
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(memory.data()); }
  UniqueFd fd;
  MappedMemory memory;
};

}  // namespace gemini::server
