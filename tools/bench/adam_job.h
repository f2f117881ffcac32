// SPDX-License-Identifier: Apache-2.0
// Runs the optimizer step that `gemini-bench adam` times: AdamW of bf16 parameters with their low
// halves, bf16 gradients and fp32 moments, out of place between two sets of slots, by a team of
// threads in the parts that the client's updates have (client/update/bundle_update.h). It also has
// the loop that it is compared to: the same streams read and written with nothing to compute.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

#include "client/kernels/update_kernel.h"
#include "gemini/system/worker_team.h"

namespace gemini::bench {

// Memory at a multiple of a page, as slots of chunks are.
inline constexpr size_t kPageAlignment = 4096;
template <typename T>
struct PageDelete {
  void operator()(T* memory) const {
    ::operator delete[](memory, std::align_val_t(kPageAlignment));
  }
};
template <typename T>
using PageArray = std::unique_ptr<T[], PageDelete<T>>;

class AdamJob {
 public:
  // `elements` is a multiple of kUpdatePartElements. All pages are touched.
  AdamJob(int64_t elements, int num_threads);
  AdamJob(const AdamJob&) = delete;
  AdamJob& operator=(const AdamJob&) = delete;
  ~AdamJob();

  // Runs the whole step: norm, clip factor, update into the other slots, which then hold the state.
  // Returns the norm.
  double Step();

  // Run the update alone, and the bare loop, both from the state into the other slots, which remain
  // the others.
  void Update();
  void BareLoop();

  // After Update: returns whether the other slots equal what the formula in double makes of the
  // state, in sampled elements.
  bool IsUpdated() const;
  // Returns the same for the last step.
  bool IsStepped() const;

  // Bytes read and written by update and bare loop alike.
  static constexpr int64_t kBytesPerElement = 26;

 private:
  struct Slots;

  client::UpdateStreams Streams(int64_t from) const;
  bool Follows(const Slots& old, const Slots& fresh) const;

  const int64_t elements_;
  const std::unique_ptr<WorkerTeam> team_;
  client::UpdateSettings settings_;
  PageArray<uint16_t> grad_;
  std::unique_ptr<Slots> state_, other_;
};

}  // namespace gemini::bench
