// SPDX-License-Identifier: Apache-2.0
#include "server/daemon_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/config/key_table.h"
#include "gemini/device_name.h"
#include "gemini/protocol.h"
#include "gemini/system/runtime_directory.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {
namespace {

// What the keys say, before it is known what the machine has.
struct Settings {
  DaemonOptions options;
  std::string device = "host";
  int64_t device_bytes = kAutoBytes;
  int64_t host_bytes = kAutoBytes;
  std::string nvme_engine = "auto";
  double drain_seconds = 30;
  double epoch_seconds = 10;
};

KeyTable DaemonKeys(Settings& settings) {
  ServerOptions& server = settings.options.server;
  return KeyTable({
      PathKey({"runtime-dir", "DIR", "Directory of the socket and the lock"},
              settings.options.runtime_directory),
      PathKey({"state-dir", "DIR",
               "Directory of the traces and the cost model that are kept between runs; \"\" for "
               "none"},
              server.state_directory),
      TextKey({"device", "NAME",
               "What is DEVICE: host, for host memory that plays it, or a GPU such as cuda:0"},
              settings.device),
      SizeKey({"device-memory", "SIZE",
               "DEVICE capacity; auto: a quarter of the available memory, or fifteen sixteenths of "
               "what is free on the GPU"},
              settings.device_bytes, 0),
      SizeKey({"host-memory", "SIZE", "HOST capacity; auto: three quarters of the rest"},
              settings.host_bytes, 0),
      NvmeKey({"nvme", "DIR:SIZE", "Room on a disk; may be given several times"},
              server.nvme_directories),
      ChoiceKey(
          {"nvme-io", "NAME", "What moves chunks to and from those; auto: io_uring where it works"},
          settings.nvme_engine, {"auto", "io_uring", "pread"}),
      SizeKey({"nvme-daily-write-budget", "SIZE",
               "Warn when more is written to one of them on a UTC day; 0: never"},
              server.nvme_daily_write_budget_bytes, 0),
      ChoiceKey({"log-level", "NAME", "How much is told"}, settings.options.log_level,
                {"debug", "info", "warn", "error"}),
      NumberKey({"drain-timeout", "SECONDS", "How long to wait for jobs after SIGTERM"},
                settings.drain_seconds, 0, 1e6),
      NumberKey({"epoch-timeout", "SECONDS",
                 "How long a new job waits for others that were asked to give way, at most 60"},
                settings.epoch_seconds, 0, 1e6),
  });
}

absl::StatusOr<DaemonOptions> Resolve(Settings settings, int64_t available_bytes) {
  DaemonOptions options = std::move(settings.options);
  GEMINI_ASSIGN_OR_RETURN(options.gpu, ParseDeviceName(settings.device));
  // Without a GPU, DEVICE is memory of the machine too. A quarter for it, and of the rest three
  // quarters for HOST, leave room for the trainers themselves.
  options.device_memory_given = settings.device_bytes != kAutoBytes;
  int64_t device = settings.device_bytes;
  if (!options.device_memory_given) device = options.gpu.has_value() ? 0 : available_bytes / 4;
  const int64_t left = available_bytes - (options.gpu.has_value() ? 0 : device);
  const int64_t host =
      settings.host_bytes == kAutoBytes ? std::max<int64_t>(0, left) / 4 * 3 : settings.host_bytes;
  if (host > left) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.gpu.has_value() ? std::string()
                                : absl::StrCat("device-memory ", FormatByteSize(device), " and "),
        "host-memory ", FormatByteSize(host), ": more than the ", FormatByteSize(available_bytes),
        " that the machine and its control group have available: ask for less"));
  }
  options.server.capacity_bytes[Tier::kDevice] = device;
  options.server.capacity_bytes[Tier::kHost] = host;
  if (settings.nvme_engine == "io_uring") options.server.nvme_engine = NvmeEngine::kUring;
  if (settings.nvme_engine == "pread") options.server.nvme_engine = NvmeEngine::kPread;
  options.drain_timeout = absl::Seconds(settings.drain_seconds);
  options.server.epoch_timeout = absl::Seconds(settings.epoch_seconds);
  if (options.server.epoch_timeout > kMaxEpochTimeout) {
    return absl::InvalidArgumentError(absl::StrCat(
        "epoch-timeout ", settings.epoch_seconds, ": at most ",
        absl::ToInt64Seconds(kMaxEpochTimeout), " seconds, for clients wait no longer"));
  }
  return options;
}

}  // namespace

absl::StatusOr<DaemonOptions> ParseDaemonOptions(absl::Span<const std::string> arguments,
                                                 int64_t available_bytes) {
  Settings settings;
  settings.options.runtime_directory = DefaultRuntimeDirectory();
  settings.options.server.state_directory = DefaultStateDirectory();
  settings.options.server.calibrate_at_start = true;
  const KeyTable keys = DaemonKeys(settings);
  const std::string help = keys.Help();  // Shows the defaults.
  GEMINI_ASSIGN_OR_RETURN(const Flags flags, keys.ParseFlags(arguments));
  DaemonOptions special;
  if (flags.help) {
    special.print_and_exit = absl::StrCat(
        "geminid owns the memory of this machine for training jobs: DEVICE, HOST and NVME.\n\n"
        "  geminid [--KEY VALUE ...]\n\n"
        "Every key is also a key of the TOML file; flags win. Sizes: 512MiB, 1.5TiB, 4096.\n\n",
        help);
    return special;
  }
  if (flags.version) {
    special.print_and_exit =
        absl::StrCat("geminid ", special.server.build, ", protocol ", kProtocolVersion, "\n");
    return special;
  }
  GEMINI_RETURN_IF_ERROR(keys.Apply(flags));
  return Resolve(std::move(settings), available_bytes);
}

}  // namespace gemini::server
