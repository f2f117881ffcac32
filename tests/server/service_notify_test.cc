// SPDX-License-Identifier: Apache-2.0
#include "server/service_notify.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gemini/system/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

// Plays the service manager: a socket at $NOTIFY_SOCKET.
class ServiceNotifyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "notify-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/socket";
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.data(), path.size());
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    ::unsetenv("WATCHDOG_PID");
    ::unsetenv("WATCHDOG_USEC");
  }
  void TearDown() override {
    ::unsetenv("NOTIFY_SOCKET");
    std::filesystem::remove_all(directory_);
  }

  // The next message within that time; empty: there is none.
  std::string Hear(int timeout_ms) {
    pollfd readable = {socket_.get(), POLLIN, 0};
    if (::poll(&readable, 1, timeout_ms) != 1) return "";
    char text[64];
    const ssize_t size = ::recv(socket_.get(), text, sizeof(text), 0);
    return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
  }

  std::string directory_;
  UniqueFd socket_;
};

constexpr int kLongMs = 20'000;  // Below a sanitizer, on a busy machine.

TEST_F(ServiceNotifyTest, TheManagerHearsWhatIsSaid) {
  ASSERT_OK(NotifyServiceManager("READY=1"));
  EXPECT_EQ(Hear(kLongMs), "READY=1");
}

TEST_F(ServiceNotifyTest, OnlyTheProcessThatIsMeantIsWatched) {
  EXPECT_EQ(WatchdogTimeout(), std::nullopt);
  ::setenv("WATCHDOG_USEC", "30000000", 1);
  EXPECT_EQ(WatchdogTimeout(), absl::Seconds(30));
  ::setenv("WATCHDOG_PID", absl::StrCat(::getpid()).c_str(), 1);
  EXPECT_EQ(WatchdogTimeout(), absl::Seconds(30));
  ::setenv("WATCHDOG_PID", absl::StrCat(::getppid()).c_str(), 1);
  EXPECT_EQ(WatchdogTimeout(), std::nullopt);
  ::unsetenv("WATCHDOG_PID");
  for (const char* none : {"", "0", "-5", "soon"}) {
    ::setenv("WATCHDOG_USEC", none, 1);
    EXPECT_EQ(WatchdogTimeout(), std::nullopt) << none;
  }
}

TEST_F(ServiceNotifyTest, TheWatchdogIsFedByALoopThatRunsAndByNoneThatIsHeldUp) {
  ::setenv("WATCHDOG_USEC", "2000", 1);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EventLoop> loop, EventLoop::Make());
  FeedWatchdog(*loop);
  std::thread owner([&] { loop->Run(); });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Hear(kLongMs), "WATCHDOG=1");
  std::binary_semaphore held(0), release(0);
  loop->Post([&] {
    held.release();
    release.acquire();
  });
  held.acquire();
  while (!Hear(0).empty()) continue;
  EXPECT_EQ(Hear(100), "");  // Fifty times what the manager waits.
  release.release();
  EXPECT_EQ(Hear(kLongMs), "WATCHDOG=1");
  loop->Stop();
  owner.join();
}

}  // namespace
}  // namespace gemini::server
