// SPDX-License-Identifier: Apache-2.0
// A library in NCCL's place, for ranks that are threads of one process and streams of
// exchange_device_host.h. It has the part of NCCL's interface that nccl_library.h names, and is
// loaded as NCCL is.
// As NCCL: calls do not block and are gone on with when asked for; exchanges run on their streams,
//         what a group of calls begins goes on together, messages of two ranks match in order; an
//         abort ends what is under way, and waits for those of the rank's other communicators.
// Beyond: it notes what no program may do (violations). Its own sums are in descending order, and
//         those of 16 bits are rounded at every step.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/parallel/nccl_library.h"

namespace gemini::trainer {

class FakeNccl {
 public:
  virtual ~FakeNccl() = default;
  // Forgets everything. No communicator is in use.
  virtual void Reset() = 0;

  virtual void SetVersion(int version) = 0;
  // Lets the call with that number among those of a rank, from 1 on, fail: of all functions but
  // ncclCommGetAsyncError, ncclCommAbort, and those that no rank makes.
  virtual void FailCall(int rank, int64_t number, NcclResult result) = 0;
  // Lets all communicators of a rank say that they have failed.
  virtual void SetAsyncError(int rank, NcclResult error) = 0;
  virtual void SetMayExchange(std::function<bool(const void* bytes)> may_exchange) = 0;
  // `is_stream` says whether that is a stream still: it must be one until its communicator is gone.
  virtual void SetIsStream(std::function<bool(const void* stream)> is_stream) = 0;

  virtual int64_t num_calls(int rank) = 0;
  virtual int64_t num_made() = 0;     // Communicators.
  virtual int64_t num_aborted() = 0;  // Of those.
  virtual int64_t num_live() = 0;     // Neither aborted nor destroyed.
  virtual std::vector<std::string> violations() = 0;
};

// The name of the function, without arguments, that returns the library's FakeNccl*.
inline constexpr char kFakeNccl[] = "gemini_fake_nccl";

}  // namespace gemini::trainer
