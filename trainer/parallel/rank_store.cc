// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_store.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "c10/util/Logging.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

constexpr char kAllHaveLeft[] = "all have left";
constexpr char kFirstLeaves[] = "the first leaves";
constexpr char kLimit[] = ": --collective-timeout is the limit";

// How a Gather went.
struct Outcome {
  int64_t rank = -1;  // That has an error. -1: none has, and all have come.
  RankVerdict verdict;
};
static_assert(std::is_trivially_copyable_v<Outcome>);

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::vector<uint8_t> Bytes(const Outcome& outcome) {
  std::vector<uint8_t> bytes(sizeof(outcome));
  std::memcpy(bytes.data(), &outcome, sizeof(outcome));
  return bytes;
}

std::chrono::milliseconds Milliseconds(absl::Duration time) {
  return absl::ToChronoMilliseconds(time);
}

// Whoever else can reach a store does not know it.
std::string Secret() {
  std::random_device device;
  std::string secret;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&secret, absl::Hex(device(), absl::kZeroPad8));
  return secret;
}

std::string FirstLine(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string PlaceOf(const RankStoreOptions& options) {
  return absl::StrCat(options.place.host, ":", options.place.port);
}

}  // namespace

void SilenceWarningsOfStores() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
}

absl::StatusOr<UniqueFd> ListenForRanks(bool one_machine, Rendezvous& place) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = ::htonl(one_machine ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof(own);
  auto* const any = reinterpret_cast<sockaddr*>(&own);
  if (!fd || ::bind(fd.get(), any, size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(fd.get(), any, &size) != 0) {
    return ErrnoStatus(errno, "a port by which ranks find each other");
  }
  std::array<char, 256> name = {"127.0.0.1"};
  if (!one_machine && ::gethostname(name.data(), name.size() - 1) != 0) {
    return ErrnoStatus(errno, "gethostname");
  }
  place.host = name.data();
  place.port = ::ntohs(own.sin_port);
  place.key_prefix = Secret();
  return fd;
}

absl::Status SharePlace(const RankAgreement& ranks, Rendezvous& place) {
  GEMINI_ASSIGN_OR_RETURN(place.host, ranks.TextOfFirst(place.host));
  GEMINI_ASSIGN_OR_RETURN(place.key_prefix, ranks.TextOfFirst(place.key_prefix));
  GEMINI_ASSIGN_OR_RETURN(const std::vector<int64_t> ports,
                          ranks.Gather(place.port, "port of a store"));
  place.port = ports.front();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankStore>> RankStore::Open(RankStoreOptions options) {
  SilenceWarningsOfStores();
  const bool serves = options.rank == 0 && !options.place.is_served;
  try {
    c10d::TCPStoreOptions of_store;
    of_store.port = static_cast<uint16_t>(options.place.port);
    of_store.isServer = serves;
    of_store.waitWorkers = false;
    of_store.timeout = Milliseconds(options.limit);
    if (serves && options.listening) of_store.masterListenFd = options.listening.Release();
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        options.place.key_prefix,
        c10::make_intrusive<c10d::TCPStore>(options.place.host, of_store));
    return std::unique_ptr<RankStore>(new RankStore(std::move(options), std::move(store)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        serves ? "rank 0 cannot serve the ranks' store at "
               : absl::StrCat(options.place.is_served ? "the launcher" : "rank 0",
                              " has had no store of the ranks' for ",
                              absl::FormatDuration(options.limit), " at "),
        PlaceOf(options), ": ", FirstLine(error), ": MASTER_ADDR and MASTER_PORT say where it is"));
  }
}

RankStore::RankStore(RankStoreOptions options, c10::intrusive_ptr<c10d::Store> store)
    : options_(std::move(options)), store_(std::move(store)) {}

RankStore::~RankStore() {
  try {
    if (options_.rank == 0) {
      store_->set(kFirstLeaves, Bytes("yes"));
    } else {
      store_->wait({kFirstLeaves}, Milliseconds(options_.patience));
    }
  } catch (const std::exception&) {
    // The first one has not come, or is gone.
  }
  try {
    if (store_->add("left", 1) == options_.num_ranks) store_->set(kAllHaveLeft, Bytes("yes"));
    if (serves()) store_->wait({kAllHaveLeft}, Milliseconds(options_.patience));
  } catch (const std::exception&) {
    // A rank has not come, or is gone.
  }
}

std::string RankStore::KeyOf(int64_t rank) const { return absl::StrCat(number_, "/rank ", rank); }

void RankStore::Tell(const absl::StatusOr<std::string>& own) {
  Outcome outcome;
  if (own.ok()) {
    store_->set(KeyOf(options_.rank), Bytes(*own));
    if (store_->add(absl::StrCat(number_, "/count"), 1) < options_.num_ranks) return;
  } else {
    outcome = {.rank = options_.rank, .verdict = RankVerdict(own.status())};
  }
  // The first one stays.
  store_->compareSet(absl::StrCat(number_, "/outcome"), {}, Bytes(outcome));
}

absl::StatusOr<std::vector<std::string>> RankStore::Gather(absl::string_view what,
                                                           const absl::StatusOr<std::string>& own) {
  ++number_;
  try {
    Tell(own);
    const std::string key = absl::StrCat(number_, "/outcome");
    try {
      store_->wait({key}, Milliseconds(options_.limit));
    } catch (const c10::DistStoreError&) {
      return Missing(what);
    }
    if (absl::Status failed = ErrorOf(store_->get(key), own.status()); !failed.ok()) return failed;
    std::vector<std::string> keys, texts;
    for (int64_t rank = 0; rank < options_.num_ranks; ++rank) keys.push_back(KeyOf(rank));
    for (const std::vector<uint8_t>& bytes : store_->multiGet(keys)) {
      texts.emplace_back(bytes.begin(), bytes.end());
    }
    return texts;
  } catch (const std::exception& error) {
    // What this rank itself cannot do says more than that it could not tell.
    GEMINI_RETURN_IF_ERROR(own.status());
    return absl::UnavailableError(
        absl::StrCat("the ranks' store at ", PlaceOf(options_), " is gone: ", FirstLine(error)));
  }
}

absl::Status RankStore::ErrorOf(const std::vector<uint8_t>& told, const absl::Status& own) const {
  Outcome outcome;
  if (told.size() != sizeof(outcome)) {
    return absl::InternalError(
        absl::StrCat("the ranks' store at ", PlaceOf(options_), " has what no rank has written"));
  }
  std::memcpy(&outcome, told.data(), sizeof(outcome));
  const absl::Status status = outcome.verdict.ToStatus();
  if (status.ok()) return status;
  // What this rank says alike needs no number.
  return MarkAsAgreed(own.message() == status.message()
                          ? status
                          : absl::Status(status.code(), absl::StrCat("rank ", outcome.rank, ": ",
                                                                     status.message())));
}

absl::Status RankStore::Missing(absl::string_view what) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (!store_->check({KeyOf(rank)})) missing.push_back(rank);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("for ", absl::FormatDuration(options_.limit), " ",
                   missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
                   missing.size() == 1 ? " has" : " have", " not told ", what, kLimit));
}

}  // namespace gemini::trainer
