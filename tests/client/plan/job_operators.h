// SPDX-License-Identifier: Apache-2.0
// What the operators of a PlannedJob do, and where they run: on the thread that begins them, as
// late as they may, or on a GPU (tests/gpu). Its bytes are words that name their tensor's version
// and their place in it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/plan/lazy_operators.h"

namespace gemini::client {

// Of a tensor's version `tag`, from its byte first_byte on, which is a multiple of 8. Tag 0: zeros.
struct TaggedBytes {
  uint64_t tag = 0;
  int64_t first_byte = 0;

  uint64_t word(int64_t index) const {
    return tag == 0 ? 0 : tag * 1'000'003 + static_cast<uint64_t>(first_byte / 8 + index);
  }
  bool AreAt(const std::byte* at, int64_t size_bytes) const {
    const auto* const words = reinterpret_cast<const uint64_t*>(at);
    for (int64_t i = 0; i < size_bytes / 8; ++i) {
      if (words[i] != word(i)) return false;
    }
    return true;
  }
  void WriteTo(std::byte* at, int64_t size_bytes) const {
    auto* const words = reinterpret_cast<uint64_t*>(at);
    for (int64_t i = 0; i < size_bytes / 8; ++i) words[i] = word(i);
  }
};

class JobOperators {
 public:
  virtual ~JobOperators() = default;

  // Each begins an operator on DEVICE memory, behind those begun before. A Check that finds other
  // bytes fails the test with `what`.
  virtual void Check(const std::byte* at, int64_t size_bytes, TaggedBytes bytes,
                     std::string what) = 0;
  virtual void Fill(std::byte* at, int64_t size_bytes, TaggedBytes bytes) = 0;
  // DEVICE memory of their own, until Finish.
  virtual std::byte* MakeBuffer(int64_t size_bytes) = 0;
  // Waits for all of them.
  virtual void Finish() = 0;
  // Whether one may run after the call that begins it.
  virtual bool may_be_late() const = 0;
  // How often this thread waited for copies or operators, if that is known.
  virtual int64_t num_waits() const { return 0; }
};

class HostOperators : public JobOperators {
 public:
  void Check(const std::byte* at, int64_t size_bytes, TaggedBytes bytes,
             std::string what) override {
    EXPECT_TRUE(bytes.AreAt(at, size_bytes)) << what;
  }
  void Fill(std::byte* at, int64_t size_bytes, TaggedBytes bytes) override {
    bytes.WriteTo(at, size_bytes);
  }
  std::byte* MakeBuffer(int64_t size_bytes) override {
    return buffers_.emplace_back(static_cast<size_t>(size_bytes)).data();
  }
  void Finish() override { buffers_.clear(); }
  bool may_be_late() const override { return false; }

 private:
  std::deque<std::vector<std::byte>> buffers_;
};

// Those of a session whose copies are `operators`.
class LateHostOperators : public HostOperators {
 public:
  explicit LateHostOperators(LazyOperators& operators) : operators_(operators) {}

  void Check(const std::byte* at, int64_t size_bytes, TaggedBytes bytes,
             std::string what) override {
    operators_.Run([this, at, size_bytes, bytes, what = std::move(what)] {
      HostOperators::Check(at, size_bytes, bytes, what);
    });
  }
  void Fill(std::byte* at, int64_t size_bytes, TaggedBytes bytes) override {
    operators_.Run([at, size_bytes, bytes] { bytes.WriteTo(at, size_bytes); });
  }
  void Finish() override {
    operators_.Finish();
    HostOperators::Finish();
  }
  bool may_be_late() const override { return true; }
  int64_t num_waits() const override { return operators_.waits_of(std::this_thread::get_id()); }

 private:
  LazyOperators& operators_;
};

}  // namespace gemini::client
