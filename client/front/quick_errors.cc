// SPDX-License-Identifier: Apache-2.0
#include "client/front/quick_errors.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "c10/util/Backtrace.h"
#include "c10/util/Exception.h"
#include "c10/util/Lazy.h"
#include "c10/util/Logging.h"

namespace gemini::client::front {
namespace {

std::atomic<int> num_quick = 0;

using Fetcher = std::function<c10::Backtrace()>;

}  // namespace

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw c10::Error(std::string(status.message()));
}

QuickErrors::QuickErrors() {
  if (num_quick.fetch_add(1) > 0) return;
  c10::SetStackTraceFetcher(Fetcher([]() -> c10::Backtrace {
    // LibTorch reads it without looking whether there is one.
    return std::make_shared<c10::PrecomputedLazyValue<std::string>>("");
  }));
}

QuickErrors::~QuickErrors() {
  if (num_quick.fetch_sub(1) > 1) return;
  // As in c10/util/Logging.cpp.
  c10::SetStackTraceFetcher(Fetcher([] { return c10::get_lazy_backtrace(/*frames_to_skip=*/1); }));
}

}  // namespace gemini::client::front
