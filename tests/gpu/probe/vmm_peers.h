// SPDX-License-Identifier: Apache-2.0
// Processes that share device memory: an exporter stands for the daemon, an importer for a trainer.
// Each does as it is told and answers when it has; a failure that no question is about ends the
// program.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/probe/probe_process.h"

namespace gemini::probe {

// What a driver's call in another process returned, and what it took there.
struct RemoteCall {
  std::string result;
  double microseconds = 0;
};

// Has one allocation at a time, and no context unless a call was refused without one.
class Exporter {
 public:
  Exporter();  // Returns when it has called cuInit.

  // Whether it had a context: {"before cuInit", "after cuInit"}. True, false, or what the driver
  // says instead.
  const nlohmann::json& contexts_at_start() const { return contexts_at_start_; }
  nlohmann::json HasContext() const;  // Now.

  // Where the call is refused, it's made once more, with a context, and has succeeded then.
  RemoteCall Create(int64_t size_bytes) const;
  RemoteCall Export(UniqueFd& fd) const;  // The exporter keeps no descriptor.
  RemoteCall Release() const;
  UniqueFd CreateAndExport(int64_t size_bytes) const;

  Process& process() { return process_; }

 private:
  Process process_;
  nlohmann::json contexts_at_start_;
};

// Has a context, and one mapping at a time.
class Importer {
 public:
  Importer();  // Returns when it has the context.

  // Closes the descriptor here and there; only the mapping is left.
  void Import(UniqueFd fd, int64_t size_bytes) const;
  void Fill(uint32_t value) const;
  // Which fraction of its words is `value`, or what failed there.
  nlohmann::json Fraction(uint32_t value) const;
  void Unmap() const;

  // Registers a memory file with CUDA, piece by piece.
  void Register(const UniqueFd& file, int64_t size_bytes) const;
  // Begins a kernel of so many seconds, and doesn't wait for its end.
  void Spin(int64_t seconds) const;

  Process& process() { return process_; }

 private:
  Process process_;
};

}  // namespace gemini::probe
