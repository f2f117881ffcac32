// SPDX-License-Identifier: Apache-2.0
// geminid as its users meet it: starting, refusing to start, ending.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/protocol.h"
#include "tests/server/daemon_process.h"
#include "tests/server/traces.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kSmall = {"--device-memory", "1MiB", "--host-memory", "64MiB"};

struct Ended {
  int exit_code = -1;
  std::string output;
};

class DaemonTest : public ::testing::Test {
 protected:
  static std::vector<std::string> Flags(std::vector<std::string> more) {
    more.insert(more.begin(), kSmall.begin(), kSmall.end());
    return more;
  }
  static absl::StatusOr<DaemonProcess> Start(const std::vector<std::string>& more = {}) {
    return DaemonProcess::Start(GEMINI_GEMINID_PATH, Flags(more));
  }
  // Starts geminid with `directory` as its runtime directory; its log comes out of ReadLine.
  static absl::StatusOr<ChildProcess> StartWithLog(const std::string& directory,
                                                   const std::string& more = "") {
    return ChildProcess::Start(
        {"/bin/sh", "-c",
         absl::StrCat("exec '", GEMINI_GEMINID_PATH,
                      "' --device-memory 1MiB --host-memory 64MiB --state-dir '' ", more,
                      " --runtime-dir '", directory, "' 2>&1")});
  }
  // Runs geminid to its end; stderr and stdout together.
  static Ended Run(const std::vector<std::string>& flags) {
    std::string command = absl::StrCat("exec '", GEMINI_GEMINID_PATH, "'");
    for (const std::string& flag : flags) absl::StrAppend(&command, " '", flag, "'");
    auto process = ChildProcess::Start({"/bin/sh", "-c", command + " 2>&1"});
    EXPECT_OK(process);
    Ended ended;
    while (true) {
      const absl::StatusOr<std::string> line = process->ReadLine(absl::Seconds(20));
      if (!line.ok()) {
        EXPECT_THAT(line, StatusIs(absl::StatusCode::kUnavailable)) << "it did not end";
        break;
      }
      absl::StrAppend(&ended.output, *line, "\n");
    }
    process->Signal(SIGTERM);
    const int status = process->Reap();
    if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
    return ended;
  }
};

TEST_F(DaemonTest, TheDirectoryIs0700AndTheSocket0600) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start());
  struct stat info;
  ASSERT_EQ(::stat(daemon.directory().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700);
  ASSERT_EQ(::stat(daemon.socket_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(DaemonTest, ASecondDaemonNamesTheFirstAndLeavesItAlone) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start());
  const Ended second = Run(Flags({"--runtime-dir", daemon.directory(), "--state-dir", ""}));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.output, AllOf(HasSubstr(absl::StrCat("pid ", daemon.process().pid())),
                                   HasSubstr("--runtime-dir")));
  EXPECT_OK(daemon.Connect("still served"));
}

// A page that a client gave back, where the machine has no other (server/tiers/peer_memory.h).
TEST_F(DaemonTest, ItHandlesSigbus) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start());
  std::ifstream status(absl::StrCat("/proc/", daemon.process().pid(), "/status"));
  uint64_t caught = 0;
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "SigCgt:")) caught = std::stoull(line.substr(7), nullptr, 16);
  }
  EXPECT_NE(caught & (uint64_t{1} << (SIGBUS - 1)), 0u);
}

TEST_F(DaemonTest, ASocketThatADeadDaemonLeftIsReplaced) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start());
  daemon.process().Signal(SIGKILL);
  ASSERT_TRUE(daemon.process().WaitDead(absl::Seconds(20)));
  ASSERT_TRUE(std::filesystem::exists(daemon.socket_path()));
  // The helper makes a directory of its own, so the second one is started by hand.
  auto second =
      ChildProcess::Start({GEMINI_GEMINID_PATH, "--device-memory", "1MiB", "--host-memory", "64MiB",
                           "--runtime-dir", daemon.directory(), "--state-dir", ""});
  ASSERT_OK(second);
  absl::Status connected;
  const absl::Time start = absl::Now();
  do {
    connected = daemon.Connect("next").status();
  } while (!connected.ok() && absl::Now() < start + absl::Seconds(20));
  EXPECT_OK(connected);
}

TEST_F(DaemonTest, TermWaitsForTheLastLeaseAndRefusesNewOnes) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start({"--drain-timeout", "60"}));
  ASSERT_OK_AND_ASSIGN(WireClient job, daemon.Connect("job"));
  ASSERT_OK_AND_ASSIGN(WireClient late, daemon.Connect("late"));
  ASSERT_OK(job.OpenLease({{0, kMiB, 0}}, {{}}));
  daemon.process().Signal(SIGTERM);
  absl::Status refused;
  const absl::Time start = absl::Now();
  while (absl::Now() < start + absl::Seconds(20)) {
    // Until the signal has arrived a lease is given and closed with its session.
    refused = late.OpenLease({{0, kMiB, 0}}, {{}}).status();
    if (absl::IsUnavailable(refused)) break;
    if (refused.ok()) {
      ASSERT_OK(late.CloseSession());
      absl::StatusOr<WireClient> again = daemon.Connect("late");
      if (!again.ok()) {
        refused = absl::UnavailableError("draining");
        break;
      }
      late = *std::move(again);
    }
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  EXPECT_FALSE(daemon.process().WaitDead(absl::Milliseconds(200)));
  EXPECT_OK(job.OpenSpace({.name = "s", .host_slots = 1}));  // The open job is still served.
  ASSERT_OK(job.CloseSession());
  ASSERT_TRUE(daemon.process().WaitDead(absl::Seconds(20)));
  const int status = daemon.process().Reap();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(std::filesystem::exists(daemon.socket_path()));
}

TEST_F(DaemonTest, TheDrainEndsAtItsTimeoutAndASecondSignalEndsItAtOnce) {
  for (const bool second_signal : {false, true}) {
    ASSERT_OK_AND_ASSIGN(DaemonProcess daemon,
                         Start({"--drain-timeout", second_signal ? "600" : "0.1"}));
    ASSERT_OK_AND_ASSIGN(WireClient job, daemon.Connect("job"));
    ASSERT_OK(job.OpenLease({{0, kMiB, 0}}, {{}}));
    daemon.process().Signal(SIGTERM);
    if (second_signal) {
      // A pending signal absorbs its like: another one.
      daemon.process().Signal(SIGINT);
    }
    ASSERT_TRUE(daemon.process().WaitDead(absl::Seconds(20)));
    const int status = daemon.process().Reap();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_THAT(job.Receive(), StatusIs(absl::StatusCode::kUnavailable));
  }
}

TEST_F(DaemonTest, TheEpochTimeoutIsASetting) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start({"--epoch-timeout", "0.05"}));
  ASSERT_OK_AND_ASSIGN(WireClient holder, daemon.Connect("holder"));
  const int64_t all = NumbersOf(*holder.GetStatus(), Tier::kDevice).capacity;
  ASSERT_OK(holder.OpenLease({{all, 0, 0}}, {{}}, /*takes_epochs=*/true));
  ASSERT_OK_AND_ASSIGN(WireClient newcomer, daemon.Connect("newcomer"));
  EXPECT_THAT(newcomer.OpenLease({{4096, 0, 0}}, {{4096, 0, 0}}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("did not answer within 50ms: 'holder'")));
  // Clients wait as long as it may be.
  const Ended ended = Run(Flags({"--epoch-timeout", "61"}));
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.output, HasSubstr("epoch-timeout 61: at most 60 seconds"));
}

// Somebody cleaned the directory up while the first one ran.
TEST_F(DaemonTest, ADaemonWhoseLockWasReplacedLeavesTheNewOnesSocketAlone) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start());
  const std::string lock = daemon.directory() + "/geminid.lock";
  ASSERT_EQ(::unlink(lock.c_str()), 0);
  ASSERT_EQ(::unlink(daemon.socket_path().c_str()), 0);
  auto second =
      ChildProcess::Start({GEMINI_GEMINID_PATH, "--device-memory", "1MiB", "--host-memory", "64MiB",
                           "--runtime-dir", daemon.directory(), "--state-dir", ""});
  ASSERT_OK(second);
  const absl::Time start = absl::Now();
  while (!daemon.Connect("second").ok() && absl::Now() < start + absl::Seconds(20)) {
  }
  daemon.process().Signal(SIGTERM);
  ASSERT_TRUE(daemon.process().WaitDead(absl::Seconds(20)));
  EXPECT_OK(daemon.Connect("second"));
}

// The process's descriptors are used up, down to the spare one.
TEST_F(DaemonTest, WithoutDescriptorsItRestsAndServesAgainWhenThereAreSome) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start());
  // Answered by the thread that measures the machine first.
  ASSERT_OK_AND_ASSIGN(WireClient observer, daemon.Connect("observer", wire::Role::kObserver));
  ASSERT_OK(observer.FindTrace("none", "none", 1));
  ASSERT_OK(observer.CloseSession());
  clockid_t clock;
  ASSERT_EQ(::clock_getcpuclockid(daemon.process().pid(), &clock), 0);
  const auto used = [&] {
    timespec now = {};
    ::clock_gettime(clock, &now);
    return absl::DurationFromTimespec(now);
  };
  rlimit before = {};
  rlimit none = {.rlim_cur = 3, .rlim_max = 0};
  ASSERT_EQ(::prlimit(daemon.process().pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  none.rlim_max = before.rlim_max;
  ASSERT_EQ(::prlimit(daemon.process().pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  ASSERT_OK_AND_ASSIGN(WireClient waiting, WireClient::ConnectTo(daemon.socket_path()));
  const absl::Duration start = used();
  ::poll(nullptr, 0, 500);  // The interval measured.
  EXPECT_LT(used() - start, absl::Milliseconds(50));
  ASSERT_EQ(::prlimit(daemon.process().pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_OK(waiting.Hello("waited"));
}

TEST_F(DaemonTest, AStderrThatNobodyReadsHoldsNobodyUp) {
  // The reading end of its stdout is here and never read; its stderr goes there too.
  std::string directory = ::testing::TempDir() + "/stuck-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  ASSERT_OK_AND_ASSIGN(ChildProcess process, StartWithLog(directory));
  const std::string socket = directory + "/geminid.sock";
  const absl::Time start = absl::Now();
  while (!WireClient::ConnectTo(socket).ok() && absl::Now() < start + absl::Seconds(20)) {
  }
  // A line each, some 100 bytes: ten times what the pipe holds.
  for (int i = 0; i < 6'000; ++i) {
    ASSERT_OK_AND_ASSIGN(WireClient garbage, WireClient::ConnectTo(socket));
    ASSERT_OK(garbage.SendRaw("garbage"));
    EXPECT_THAT(garbage.Receive(), StatusIs(absl::StatusCode::kUnavailable));
  }
  process.Signal(SIGTERM);
  EXPECT_TRUE(process.WaitDead(absl::Seconds(20)));
  std::filesystem::remove_all(directory);
}

// Together they lost more sessions than may be connected, and all of them live.
TEST_F(DaemonTest, SessionsThatHungUpTakeNoNewcomersPlace) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start({"--log-level", "error"}));
  std::vector<pid_t> children;
  std::array<int, 2> done;
  ASSERT_EQ(::pipe2(done.data(), O_CLOEXEC), 0);
  const UniqueFd reading(done[0]);
  const UniqueFd writing(done[1]);
  for (int i = 0; i < 5; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    char lost = 0;
    for (; lost < 60; ++lost) {
      auto client = daemon.Connect("lost");
      if (!client.ok() || !client->OpenLease({{0, 4096, 0}}, {{0, 4096, 0}}).ok()) break;
    }
    (void)!::write(writing.get(), &lost, 1);
    while (true) ::pause();
  }
  for (size_t i = 0; i < children.size(); ++i) {
    char lost = 0;
    ASSERT_EQ(::read(reading.get(), &lost, 1), 1);
    EXPECT_EQ(lost, 60);
  }
  EXPECT_OK(daemon.Connect("newcomer"));
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

// A phase is text of a client's, and gets into the refusal of a plan.
TEST_F(DaemonTest, AnotherUidIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start());
  // The modes keep others out before the check does: opened up for this test.
  ASSERT_EQ(::chmod(daemon.directory().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(daemon.socket_path().c_str(), 0666), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(3);
    auto client = WireClient::ConnectTo(daemon.socket_path());
    if (!client.ok()) ::_exit(4);
    // More than may be connected, and each of them says nothing.
    std::vector<WireClient> others;
    for (int i = 0; i < 600; ++i) {
      auto other = WireClient::ConnectTo(daemon.socket_path());
      if (!other.ok()) ::_exit(6);
      others.push_back(*std::move(other));
      if (!absl::IsPermissionDenied(others.back().Receive().status())) ::_exit(7);
      if (!absl::IsUnavailable(others.back().Receive().status())) ::_exit(8);
    }
    ::_exit(absl::IsPermissionDenied(client->Receive().status()) ? 0 : 5);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(DaemonTest, WhatItCannotUseIsNamedAndItExitsNonZero) {
  std::string folder = ::testing::TempDir() + "/options-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string config = folder + "/geminid.toml";
  std::ofstream(config) << "host-memroy = \"1GiB\"\n";
  const std::string no_device = folder + "/device.toml";
  std::ofstream(no_device) << "device = \"gpu\"\n";
  const std::string dir = folder + "/run";
  struct Case {
    std::vector<std::string> flags;
    std::string message;
  };
  for (const Case& bad : {
           Case{{"--config", config}, "did you mean 'host-memory'?"},
           Case{{"--config", no_device}, "device 'gpu'"},
           Case{{"--config", folder + "/none.toml"}, "none.toml"},
           Case{{"--hots-memory", "1GiB"}, "did you mean '--host-memory'?"},
           Case{{"--host-memory", "1GB"}, "KiB, MiB, GiB"},
           Case{{"--device-memory", "1MiB", "--host-memory", "900TiB"}, "ask for less"},
           Case{Flags({"--runtime-dir", dir, "--nvme", "/mnt"}), "DIR:SIZE"},
           Case{Flags({"--runtime-dir", dir, "--nvme", folder + "/absent:1GiB"}), "/absent"},
           Case{Flags({"--runtime-dir", folder + "/" + std::string(120, 'd')}),
                "pass a shorter --runtime-dir"},
           Case{Flags({"--runtime-dir", folder + "/no/parent"}), "no/parent"},
           Case{Flags({"--runtime-dir", config}), "no directory"},
           Case{Flags({"--runtime-dir", "/tmp"}), "mode 700"},
           // No machine has so many, if it has a driver at all.
           Case{Flags({"--device", "cuda:4096"}), "cuda:"},
           Case{Flags({"--log-level", "loud"}), "debug, info, warn, error"},
           Case{Flags({"--nvme-io", "aio"}), "one of auto, io_uring, pread"},
           Case{Flags({"--nvme-daily-write-budget", "500GB"}), "KiB, MiB, GiB"},
       }) {
    const Ended ended = Run(bad.flags);
    EXPECT_GT(ended.exit_code, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(bad.message));
  }
  std::filesystem::remove_all(folder);
}

TEST_F(DaemonTest, AConfigurationFileSetsWhatFlagsDoNot) {
  std::string folder = ::testing::TempDir() + "/config-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string config = folder + "/geminid.toml";
  std::ofstream(config) << "host-memory = \"8MiB\"\ndevice-memory = \"2MiB\"\nnvme = [\"" << folder
                        << ":4MiB\"]\nlog-level = \"error\"\nnvme-io = \"pread\"\n";
  ASSERT_OK_AND_ASSIGN(
      DaemonProcess daemon,
      DaemonProcess::Start(GEMINI_GEMINID_PATH, {"--config", config, "--device-memory", "3MiB"}));
  ASSERT_OK_AND_ASSIGN(WireClient client, daemon.Connect("c"));
  EXPECT_EQ(client.free_at_hello(), (TierMap<int64_t>{{3 * kMiB, 8 * kMiB, 4 * kMiB}}));
  std::filesystem::remove_all(folder);
}

// The directory's file system has less room than its capacity says: a file-size limit stands in.
TEST_F(DaemonTest, AFullNvmeDirectoryIsARefusalAndNothingIsHeld) {
  std::string folder = ::testing::TempDir() + "full-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, Start({"--nvme", folder + ":64MiB"}));
  const rlimit limit = {.rlim_cur = kMiB, .rlim_max = kMiB};
  ASSERT_EQ(::prlimit(daemon.process().pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  ASSERT_OK_AND_ASSIGN(WireClient client, daemon.Connect("job"));
  ASSERT_OK(client.OpenLease({{0, 512 * kKiB, 32 * kMiB}}, {{}}));
  EXPECT_THAT(client.OpenSpace({.name = "s", .host_slots = 1, .nvme_slots = 8000}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(folder)));
  EXPECT_OK(client.OpenSpace({.name = "s", .host_slots = 1, .nvme_slots = 100}));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST_F(DaemonTest, ALineOfItsLogNamesTheEngineOfNvmeIoAndWhy) {
  std::string folder = ::testing::TempDir() + "/engine-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_OK_AND_ASSIGN(ChildProcess process, StartWithLog(folder, "--nvme-io pread"));
  ASSERT_OK_AND_ASSIGN(const std::string line, process.ReadLine(absl::Seconds(20)));
  EXPECT_THAT(line, AllOf(HasSubstr("4 threads with pread and pwrite"), HasSubstr("--nvme-io")));
  process.Signal(SIGTERM);
  EXPECT_TRUE(process.WaitDead(absl::Seconds(20)));
  std::filesystem::remove_all(folder);
}

// A peer's text is in statuses of any depth: here the phase of a trace, which the planner's refusal
// names.
TEST_F(DaemonTest, AClientForgesNoLineOfItsLog) {
  std::string folder = ::testing::TempDir() + "/forged-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_OK_AND_ASSIGN(ChildProcess process, StartWithLog(folder));
  const auto line_with = [&](absl::string_view text) -> std::string {
    for (;;) {
      const absl::StatusOr<std::string> line = process.ReadLine(absl::Seconds(20));
      if (!line.ok()) return line.status().ToString();
      if (absl::StrContains(*line, text)) return *line;
    }
  };
  EXPECT_THAT(line_with("ready on"), HasSubstr("ready on"));
  ASSERT_OK_AND_ASSIGN(WireClient client, WireClient::ConnectTo(folder + "/geminid.sock"));
  ASSERT_OK(client.Hello("job"));
  ASSERT_OK(client.OpenLease({{4096, 0, 0}}, {{}}));
  const std::string phase =
      "a\n[2026-11-24] [error] disk broken \x1b[31m \xc2\x9b"
      "31m \xc3\xa9";
  ASSERT_OK(client.WriteTrace(EncodeTrace(StepTrace(2, 3 * 4096, phase))));
  EXPECT_THAT(client.MakePlan({.device_bytes = 4096}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const std::string line = line_with("refused a request");
  EXPECT_THAT(line,
              HasSubstr("a\\x0a[2026-11-24] [error] disk broken \\x1b[31m \\xc2\\x9b31m \xc3\xa9"));
  EXPECT_OK(client.CloseSession());
  process.Signal(SIGTERM);
  EXPECT_TRUE(process.WaitDead(absl::Seconds(20)));
  std::filesystem::remove_all(folder);
}

TEST_F(DaemonTest, WhatIsWrittenAboveTheDaysBudgetIsSaidOnceAndShown) {
  std::string folder = ::testing::TempDir() + "wear-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/geminid.toml") << "nvme-daily-write-budget = \"8KiB\"\n";
  ASSERT_OK_AND_ASSIGN(
      ChildProcess process,
      ChildProcess::Start(
          {"/bin/sh", "-c",
           absl::StrCat("exec '", GEMINI_GEMINID_PATH, "' --device-memory 1MiB --host-memory 64MiB",
                        " --state-dir '' --runtime-dir '", folder, "/run' --nvme '", folder,
                        ":1MiB' --config '", folder, "/geminid.toml' 2>'", folder, "/log'")}));
  absl::StatusOr<WireClient> client = absl::UnavailableError("");
  const absl::Time start = absl::Now();
  while (!client.ok() && absl::Now() < start + absl::Seconds(20)) {
    client = WireClient::ConnectTo(folder + "/run/geminid.sock");
  }
  ASSERT_OK(client);
  ASSERT_OK(client->Hello("writer"));
  ASSERT_OK(client->OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client->OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  const auto shown = [&client] {
    const absl::StatusOr<WireReply> status = client->GetStatus();
    EXPECT_OK(status);
    const wire::StatusReply& reply = *status->message().body_as_StatusReply();
    EXPECT_EQ(reply.nvme_daily_write_budget(), 8 * kKiB);
    return std::pair(reply.nvme_wear()->Get(0)->directory()->str(),
                     reply.nvme_wear()->Get(0)->written());
  };
  EXPECT_EQ(shown(), std::pair(folder, int64_t{0}));
  for (uint64_t slot = 0; slot < 4; ++slot) {
    ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, slot)), 0);
  }
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 0, 0)), 0);
  EXPECT_EQ(shown(), std::pair(folder, 16 * kKiB));
  process.Signal(SIGINT);
  ASSERT_OK(client->CloseSession());
  ASSERT_TRUE(process.WaitDead(absl::Seconds(20)));
  std::ifstream log(folder + "/log");
  int warnings = 0;
  for (std::string line; std::getline(log, line);) {
    if (line.find("more than 8 KiB were written to NVMe directory") != std::string::npos)
      ++warnings;
  }
  EXPECT_EQ(warnings, 1);
  std::filesystem::remove_all(folder);
}

TEST_F(DaemonTest, VersionAndHelpExitWithZero) {
  EXPECT_EQ(Run({"--help"}).exit_code, 0);
  const Ended version = Run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, HasSubstr(absl::StrCat("protocol ", kProtocolVersion)));
}

}  // namespace
}  // namespace gemini::server
