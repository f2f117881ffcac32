// SPDX-License-Identifier: Apache-2.0
// What else may happen in a training process, at operators drawn at random: somebody looks at a
// parameter (another operator, which no plan has), holds one for a while, empties DEVICE, or
// another job comes and goes. None of it changes a bit of what is trained; each look checks the
// bits that it finds.
// Thread: that of the operators; one at a time.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/equal.h"
#include "ATen/record_function.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/training_session.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gtest/gtest.h"
#include "tests/client/torch/second_tenant.h"
#include "tests/status_matchers.h"

namespace gemini::client::hooks {

class RandomDisturbances {
 public:
  struct Look {
    std::string name;
    at::Tensor parameter;  // Managed.
    at::Tensor expected;   // In plain memory, from before the session.
  };
  enum class Kind { kLook, kEvictAll, kEvictSome, kHold, kRelease, kTenant };
  static constexpr int kNumKinds = 6;

  // Before the session opens: its own callback then comes behind this one, so that what happens
  // here happens between two operators.
  explicit RandomDisturbances(uint64_t seed) : random_(seed) {
    g_current = this;
    callback_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&AtOperator).scopes({at::RecordScope::FUNCTION}));
  }
  ~RandomDisturbances() {
    at::removeCallback(callback_);
    g_current = nullptr;
  }
  RandomDisturbances(const RandomDisturbances&) = delete;
  RandomDisturbances& operator=(const RandomDisturbances&) = delete;

  // `largest_tenant` bytes at most are taken from the session; 0: none.
  void Attach(TrainingSession& session, ManagedModel& model, SecondTenant* tenant,
              int64_t largest_tenant) {
    session_ = &session;
    model_ = &model;
    tenant_ = tenant;
    largest_tenant_ = largest_tenant;
  }
  // From now on something, or that, happens at one operator in `one_in`, until Stop.
  void Start(int64_t one_in, const std::vector<Look>* looks, std::optional<Kind> kind = {}) {
    one_in_ = std::max<int64_t>(1, one_in);
    looks_ = looks;
    kind_ = kind;
  }
  // A fetch that is held ends.
  void Stop() {
    one_in_ = 0;
    fetch_.Release();
  }
  // How often each happened, by Kind.
  const std::array<int64_t, kNumKinds>& counts() const { return counts_; }

 private:
  static std::unique_ptr<at::ObserverContext> AtOperator(const at::RecordFunction& function) {
    RandomDisturbances* const self = g_current;
    if (self == nullptr || self->one_in_ == 0 || self->inside_) return nullptr;
    self->inside_ = true;
    try {
      if (self->random_() % self->one_in_ == 0) self->Disturb(function.name());
    } catch (const std::exception& error) {  // Torch would swallow it.
      ADD_FAILURE() << "at " << function.name() << ": " << error.what();
    }
    self->inside_ = false;
    return nullptr;
  }

  void Disturb(const std::string& where) {
    const at::NoGradGuard no_grad;
    const Look& look = (*looks_)[random_() % looks_->size()];
    DeviceBudget& budget = session_->session().device_budget();
    const Kind kind = kind_.value_or(static_cast<Kind>(random_() % kNumKinds));
    ++counts_[static_cast<size_t>(kind)];
    switch (kind) {
      case Kind::kLook:
        EXPECT_TRUE(at::equal(look.parameter, look.expected)) << look.name << " at " << where;
        break;
      case Kind::kEvictAll:
        session_->session().residency().MakeRoom(budget.budget_bytes());
        break;
      case Kind::kEvictSome:
        session_->session().residency().MakeRoom(
            static_cast<int64_t>(random_() % static_cast<uint64_t>(budget.budget_bytes())));
        break;
      case Kind::kHold: {
        fetch_.Release();
        absl::StatusOr<ScopedFetch> fetch = model_->Fetch(look.parameter, FetchAccess::kRead);
        ASSERT_OK(fetch) << look.name << " at " << where;
        fetch_ = *std::move(fetch);
        EXPECT_EQ(
            std::memcmp(fetch_.data(), look.expected.const_data_ptr(), look.expected.nbytes()), 0)
            << look.name << " at " << where;
        break;
      }
      case Kind::kRelease:
        fetch_.Release();
        break;
      case Kind::kTenant:
        if (largest_tenant_ <= 0) break;
        if (tenant_->here()) {
          tenant_->Leave();
        } else {
          tenant_->Arrive(
              RoundUp(1 + static_cast<int64_t>(random_() % largest_tenant_), kPageBytes));
        }
    }
  }

  static inline RandomDisturbances* g_current = nullptr;
  std::mt19937_64 random_;
  at::CallbackHandle callback_;
  TrainingSession* session_ = nullptr;
  ManagedModel* model_ = nullptr;
  SecondTenant* tenant_ = nullptr;
  int64_t largest_tenant_ = 0;
  int64_t one_in_ = 0;
  std::optional<Kind> kind_;
  bool inside_ = false;
  const std::vector<Look>* looks_ = nullptr;
  ScopedFetch fetch_;
  std::array<int64_t, kNumKinds> counts_ = {};
};

}  // namespace gemini::client::hooks
