// SPDX-License-Identifier: Apache-2.0
// A file that was cut short has no page to give, as a machine without memory has none.
#include "server/tiers/peer_memory.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "gemini/layout.h"
#include "gemini/system/unique_fd.h"
#include "server/loop/worker_thread.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

class PeerMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/peer-XXXXXX";
    file_ = UniqueFd(::mkstemp(path.data()));
    ::unlink(path.c_str());
    const std::string bytes(2 * kPageBytes, 'x');
    ASSERT_EQ(::pwrite(file_.get(), bytes.data(), bytes.size(), 0), 2 * kPageBytes);
  }
  void CutSecondPage() { ASSERT_EQ(::ftruncate(file_.get(), kPageBytes), 0); }

  UniqueFd file_;
};

// Not the compiler's to leave out.
char At(const std::byte* data, int64_t offset) {
  return static_cast<char>(*static_cast<const volatile std::byte*>(data + offset));
}

TEST_F(PeerMemoryTest, APageThatIsGoneReadsAsZeros) {
  ASSERT_OK(PeerMemory::Survive());
  ASSERT_OK_AND_ASSIGN(const PeerMemory memory, PeerMemory::Map(file_.get(), 2 * kPageBytes));
  CutSecondPage();
  EXPECT_EQ(At(memory.data(), 2 * kPageBytes - 1), '\0');
  EXPECT_EQ(At(memory.data(), kPageBytes), '\0');
  EXPECT_EQ(At(memory.data(), kPageBytes - 1), 'x');
}

// It reads the segments of spaces that it destroys.
TEST_F(PeerMemoryTest, AWorkerReadsZerosToo) {
  ASSERT_OK(PeerMemory::Survive());
  ASSERT_OK_AND_ASSIGN(const PeerMemory memory, PeerMemory::Map(file_.get(), 2 * kPageBytes));
  CutSecondPage();
  char read = 'x';
  {
    WorkerThread worker("worker");
    worker.Run([&] { read = At(memory.data(), kPageBytes); });
  }
  EXPECT_EQ(read, '\0');
}

TEST_F(PeerMemoryTest, WhatWasMovedIsStillKnown) {
  ASSERT_OK(PeerMemory::Survive());
  PeerMemory memory;
  {
    ASSERT_OK_AND_ASSIGN(PeerMemory first, PeerMemory::Map(file_.get(), 2 * kPageBytes));
    memory = std::move(first);
  }
  CutSecondPage();
  EXPECT_EQ(At(memory.data(), kPageBytes), '\0');
}

using PeerMemoryDeathTest = PeerMemoryTest;

TEST_F(PeerMemoryDeathTest, ASigbusThatIsSentEndsTheProcess) {
  const auto send = [] {
    ASSERT_OK(PeerMemory::Survive());
    ::kill(::getpid(), SIGBUS);
  };
  EXPECT_EXIT(send(), ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(PeerMemoryDeathTest, AnotherSigbusEndsTheProcess) {
  const auto read_other_memory = [this] {
    ASSERT_OK(PeerMemory::Survive());
    // Its place in the list is free again when it is gone.
    ASSERT_OK(PeerMemory::Map(file_.get(), 2 * kPageBytes));
    ASSERT_OK_AND_ASSIGN(
        const MappedMemory other,
        MappedMemory::Map(file_.get(), 2 * kPageBytes, MappedMemory::Access::kReadOnly));
    CutSecondPage();
    At(other.data(), kPageBytes);
  };
  EXPECT_EXIT(read_other_memory(), ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace gemini::server
