// SPDX-License-Identifier: Apache-2.0
#include "server/daemon_options.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "gemini/byte_size.h"
#include "gemini/device_name.h"
#include "gemini/nearest_name.h"
#include "gemini/protocol.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/runtime_directory.h"
#include "gemini/system/status_macros.h"
#include "toml++/toml.h"

namespace gemini::server {
namespace {

constexpr std::array<absl::string_view, 11> kKeys = {"runtime-dir",
                                                     "state-dir",
                                                     "device",
                                                     "device-memory",
                                                     "host-memory",
                                                     "nvme",
                                                     "nvme-io",
                                                     "log-level",
                                                     "drain-timeout",
                                                     "epoch-timeout",
                                                     "nvme-daily-write-budget"};

// Everything as text, from wherever it came.
struct Settings {
  std::string runtime_directory;
  std::optional<std::string> state_directory;  // Empty: nothing is kept.
  std::string device;
  std::string device_memory;
  std::string host_memory;
  std::vector<std::string> nvme;
  std::string nvme_io;
  std::string log_level;
  std::string drain_timeout;
  std::string epoch_timeout;
  std::string nvme_daily_write_budget;
};

absl::StatusOr<std::string> TextOf(const std::string& key, const toml::node& node) {
  if (const auto text = node.value<std::string>(); text.has_value() && node.is_string()) {
    return *text;
  }
  if (const auto number = node.value<int64_t>(); number.has_value() && node.is_integer()) {
    return absl::StrCat(*number);
  }
  return absl::InvalidArgumentError(absl::StrCat("key '", key, "' is no string or whole number"));
}

absl::StatusOr<Settings> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return absl::NotFoundError(absl::StrCat("configuration file ", path, ": cannot be read"));
  std::ostringstream text;
  text << file.rdbuf();
  toml::table table;
  try {
    table = toml::parse(text.str(), path);
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(absl::StrCat("configuration file ", path, ", line ",
                                                   error.source().begin.line, ": ",
                                                   std::string(error.description())));
  }
  Settings settings;
  for (const auto& [toml_key, node] : table) {
    const std::string key(toml_key.str());
    if (key == "nvme" && node.is_array()) {
      for (const toml::node& item : *node.as_array()) {
        GEMINI_ASSIGN_OR_RETURN(std::string place, TextOf(key, item));
        settings.nvme.push_back(std::move(place));
      }
      continue;
    }
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("configuration file ", path, ", line ", toml_key.source().begin.line,
                       ": unknown key '", key, "'", DidYouMean(key, kKeys)));
    }
    GEMINI_ASSIGN_OR_RETURN(std::string value, TextOf(key, node));
    if (key == "runtime-dir") settings.runtime_directory = value;
    if (key == "state-dir") settings.state_directory = value;
    if (key == "device") settings.device = value;
    if (key == "device-memory") settings.device_memory = value;
    if (key == "host-memory") settings.host_memory = value;
    if (key == "nvme") settings.nvme = {value};
    if (key == "nvme-io") settings.nvme_io = value;
    if (key == "log-level") settings.log_level = value;
    if (key == "drain-timeout") settings.drain_timeout = value;
    if (key == "epoch-timeout") settings.epoch_timeout = value;
    if (key == "nvme-daily-write-budget") settings.nvme_daily_write_budget = value;
  }
  return settings;
}

absl::StatusOr<NvmeDirectory> ParseNvme(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("nvme '", text, "': write DIR:SIZE, e.g. /mnt/nvme:200GiB"));
  }
  GEMINI_ASSIGN_OR_RETURN(const int64_t capacity, ParseByteSize(text.substr(colon + 1)));
  return NvmeDirectory{text.substr(0, colon), capacity};
}

absl::StatusOr<NvmeEngine> ParseNvmeEngine(absl::string_view text) {
  if (text == "auto") return NvmeEngine::kAuto;
  if (text == "io_uring") return NvmeEngine::kUring;
  if (text == "pread") return NvmeEngine::kPread;
  return absl::InvalidArgumentError(
      absl::StrCat("nvme-io '", text, "': one of auto, io_uring, pread"));
}

absl::StatusOr<absl::Duration> ParseSeconds(absl::string_view key, const std::string& text) {
  double seconds;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0 && seconds < 1e6)) {
    return absl::InvalidArgumentError(absl::StrCat(key, " '", text, "': a number of seconds"));
  }
  return absl::Seconds(seconds);
}

absl::StatusOr<DaemonOptions> Resolve(const Settings& settings, int64_t available_bytes) {
  DaemonOptions options;
  options.runtime_directory =
      settings.runtime_directory.empty() ? DefaultRuntimeDirectory() : settings.runtime_directory;
  options.server.state_directory =
      settings.state_directory.has_value() ? *settings.state_directory : DefaultStateDirectory();
  options.server.calibrate_at_start = true;
  GEMINI_ASSIGN_OR_RETURN(options.gpu, ParseDeviceName(settings.device));
  // Without a GPU, DEVICE is memory of the machine too. A quarter for it, and of the rest three
  // quarters for HOST, leave room for the trainers themselves.
  int64_t device = options.gpu.has_value() ? 0 : available_bytes / 4;
  options.device_memory_given = !settings.device_memory.empty();
  if (options.device_memory_given) {
    GEMINI_ASSIGN_OR_RETURN(device, ParseByteSize(settings.device_memory));
  }
  const int64_t left = available_bytes - (options.gpu.has_value() ? 0 : device);
  int64_t host = std::max<int64_t>(0, left) / 4 * 3;
  if (!settings.host_memory.empty()) {
    GEMINI_ASSIGN_OR_RETURN(host, ParseByteSize(settings.host_memory));
  }
  if (host > left) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.gpu.has_value() ? std::string()
                                : absl::StrCat("device-memory ", FormatByteSize(device), " and "),
        "host-memory ", FormatByteSize(host), ": more than the ", FormatByteSize(available_bytes),
        " that the machine and its control group have available: ask for less"));
  }
  options.server.capacity_bytes[Tier::kDevice] = device;
  options.server.capacity_bytes[Tier::kHost] = host;
  for (const std::string& text : settings.nvme) {
    GEMINI_ASSIGN_OR_RETURN(NvmeDirectory directory, ParseNvme(text));
    options.server.nvme_directories.push_back(std::move(directory));
  }
  if (!settings.nvme_io.empty()) {
    GEMINI_ASSIGN_OR_RETURN(options.server.nvme_engine, ParseNvmeEngine(settings.nvme_io));
  }
  if (!settings.nvme_daily_write_budget.empty()) {
    GEMINI_ASSIGN_OR_RETURN(options.server.nvme_daily_write_budget_bytes,
                            ParseByteSize(settings.nvme_daily_write_budget));
  }
  if (!settings.log_level.empty()) options.log_level = settings.log_level;
  const std::vector<std::string> levels = {"debug", "info", "warn", "error"};
  if (std::find(levels.begin(), levels.end(), options.log_level) == levels.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("log-level '", options.log_level, "': one of ", absl::StrJoin(levels, ", ")));
  }
  if (!settings.drain_timeout.empty()) {
    GEMINI_ASSIGN_OR_RETURN(options.drain_timeout,
                            ParseSeconds("drain-timeout", settings.drain_timeout));
  }
  if (!settings.epoch_timeout.empty()) {
    GEMINI_ASSIGN_OR_RETURN(options.server.epoch_timeout,
                            ParseSeconds("epoch-timeout", settings.epoch_timeout));
    if (options.server.epoch_timeout > kMaxEpochTimeout) {
      return absl::InvalidArgumentError(absl::StrCat(
          "epoch-timeout ", settings.epoch_timeout, ": at most ",
          absl::ToInt64Seconds(kMaxEpochTimeout), " seconds, for clients wait no longer"));
    }
  }
  return options;
}

}  // namespace

absl::StatusOr<DaemonOptions> ParseDaemonOptions(absl::Span<const std::string> arguments,
                                                 int64_t available_bytes) {
  CLI::App app(
      "geminid owns the memory of this machine for training jobs: DEVICE, HOST and NVME.\n"
      "Sizes are written 512MiB, 2GiB, 1.5TiB.",
      "geminid");
  std::string config;
  Settings flags;
  bool version = false;
  app.add_option("--config", config, "TOML file; its keys are these flags without the dashes");
  app.add_option("--runtime-dir", flags.runtime_directory,
                 "Directory of the socket and the lock (default $XDG_RUNTIME_DIR/gemini)");
  app.add_option(
      "--state-dir", flags.state_directory,
      "Directory of the traces and the cost model that are kept between runs; \"\" for none\n"
      "(default $STATE_DIRECTORY, $XDG_STATE_HOME/gemini or /var/lib/gemini)");
  app.add_option("--device", flags.device,
                 "What is DEVICE: host, for host memory that plays it, or a GPU such as cuda:0\n"
                 "(default host)");
  app.add_option(
      "--device-memory", flags.device_memory,
      "DEVICE capacity (default: a quarter of the available memory, or fifteen sixteenths\n"
      "of what is free on the GPU)");
  app.add_option("--host-memory", flags.host_memory,
                 "HOST capacity (default: three quarters of the rest)");
  app.add_option("--nvme", flags.nvme, "DIR:SIZE, more than once for more disks");
  app.add_option(
      "--nvme-io", flags.nvme_io,
      "What moves chunks to and from those: io_uring, pread, or auto for io_uring where it "
      "works (default auto)");
  app.add_option("--nvme-daily-write-budget", flags.nvme_daily_write_budget,
                 "Warn when more is written to one of them on a UTC day (default: never)");
  app.add_option("--log-level", flags.log_level, "debug, info, warn or error (default info)");
  app.add_option("--drain-timeout", flags.drain_timeout,
                 "Seconds to wait for jobs after SIGTERM (default 30)");
  app.add_option("--epoch-timeout", flags.epoch_timeout,
                 "Seconds that a new job waits for others that were asked to give way (default 10, "
                 "at most 60)");
  app.add_flag("--version", version, "Print the version and exit");
  app.allow_extras();
  DaemonOptions special;
  try {
    // CLI11 takes them in reverse.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    special.print_and_exit = app.help();
    return special;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (version) {
    special.print_and_exit =
        absl::StrCat("geminid ", special.server.build, ", protocol ", kProtocolVersion, "\n");
    return special;
  }
  if (!app.remaining().empty()) {
    std::string name = app.remaining().front();
    const std::string shown = name;
    name.erase(0, name.find_first_not_of('-'));
    return absl::InvalidArgumentError(
        absl::StrCat("unknown argument '", shown, "'", DidYouMean(name, kKeys, "--")));
  }
  Settings settings;
  if (!config.empty()) {
    GEMINI_ASSIGN_OR_RETURN(settings, ReadFile(config));
  }
  for (const auto member :
       {&Settings::runtime_directory, &Settings::device, &Settings::device_memory,
        &Settings::host_memory, &Settings::nvme_io, &Settings::log_level, &Settings::drain_timeout,
        &Settings::epoch_timeout, &Settings::nvme_daily_write_budget}) {
    if (!(flags.*member).empty()) settings.*member = flags.*member;
  }
  if (flags.state_directory.has_value()) settings.state_directory = flags.state_directory;
  if (!flags.nvme.empty()) settings.nvme = flags.nvme;
  return Resolve(settings, available_bytes);
}

}  // namespace gemini::server
