// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/adam_job.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "client/update/bundle_update.h"
#include "gemini/byte_size.h"
#include "gemini/half_float.h"
#include "gemini/split_float.h"
#include "gemini/system/update_team.h"
#include "tools/bench/bare_streams.h"

namespace gemini::bench {
namespace {

template <typename T>
PageArray<T> MakeArray(int64_t count) {
  void* const memory =
      ::operator new[](static_cast<size_t>(count) * sizeof(T), std::align_val_t(kPageAlignment));
  return PageArray<T>(static_cast<T*>(memory));
}

// Uniform in [-1, 1), the same for an element however the work is split.
float RandomOf(int64_t element) {
  auto bits = static_cast<uint64_t>(element) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<float>(static_cast<int64_t>(bits >> 40)) * 0x1p-23f - 1;
}

}  // namespace

struct AdamJob::Slots {
  explicit Slots(int64_t count)
      : param(MakeArray<uint16_t>(count)),
        master(MakeArray<int16_t>(count)),
        exp_avg(MakeArray<float>(count)),
        exp_avg_sq(MakeArray<float>(count)) {}
  PageArray<uint16_t> param;
  PageArray<int16_t> master;
  PageArray<float> exp_avg;
  PageArray<float> exp_avg_sq;
};

AdamJob::AdamJob(int64_t elements, int num_threads)
    : elements_(elements),
      team_(MakeUpdateTeam(num_threads)),
      settings_({.learning_rate = 1e-4, .weight_decay = 0.01, .step = 2}),
      grad_(MakeArray<uint16_t>(elements)),
      state_(std::make_unique<Slots>(elements)),
      other_(std::make_unique<Slots>(elements)) {
  team_->Run(elements, client::kUpdatePartElements, [&](int64_t first, int64_t end) {
    const int64_t count = end - first;
    for (int64_t i = first; i < end; ++i) {
      const SplitFloat split = SplitOf(0.02f * RandomOf(i));
      state_->param[i] = split.high;
      state_->master[i] = split.low;
      const float grad = 0.01f * RandomOf(i + elements_);
      grad_[i] = Bf16Of(grad);
      state_->exp_avg[i] = 0.1f * grad;
      state_->exp_avg_sq[i] = 1e-3f * grad * grad + 1e-12f;
    }
    std::memcpy(&other_->param[first], &state_->param[first], static_cast<size_t>(count) * 2);
    std::memcpy(&other_->master[first], &state_->master[first], static_cast<size_t>(count) * 2);
    std::memcpy(&other_->exp_avg[first], &state_->exp_avg[first], static_cast<size_t>(count) * 4);
    std::memcpy(&other_->exp_avg_sq[first], &state_->exp_avg_sq[first],
                static_cast<size_t>(count) * 4);
  });
}

AdamJob::~AdamJob() = default;

client::UpdateStreams AdamJob::Streams(int64_t from) const {
  return {.param_type = ElementType::kBf16,
          .grad_type = ElementType::kBf16,
          .param = &state_->param[from],
          .master = &state_->master[from],
          .grad = &grad_[from],
          .exp_avg = &state_->exp_avg[from],
          .exp_avg_sq = &state_->exp_avg_sq[from],
          .new_param = &other_->param[from],
          .new_master = &other_->master[from],
          .new_exp_avg = &other_->exp_avg[from],
          .new_exp_avg_sq = &other_->exp_avg_sq[from]};
}

double AdamJob::Step() {
  std::vector<double> squares(static_cast<size_t>(client::NumNormBlocks(elements_)));
  team_->Run(elements_, client::kUpdatePartElements, [&](int64_t begin, int64_t end) {
    client::BlockSquares(ElementType::kBf16, &grad_[begin], end - begin,
                         &squares[client::NumNormBlocks(begin)]);
  });
  const double norm = client::NormOf(squares);
  settings_.gradient_scale = client::ClipCoefficient(norm, /*max_norm=*/1);
  ++settings_.step;
  Update();
  std::swap(state_, other_);
  return norm;
}

void AdamJob::Update() {
  team_->Run(elements_, client::kUpdatePartElements, [&](int64_t begin, int64_t end) {
    client::UpdateElements(settings_, Streams(begin), end - begin);
  });
}

void AdamJob::BareLoop() {
  // In one piece a thread, as what it bounds would like it best.
  const int64_t share = RoundUp(elements_ / team_->num_threads(), client::kUpdatePartElements);
  team_->Run(elements_, share,
             [&](int64_t begin, int64_t end) { BareStreams(Streams(begin), end - begin); });
}

bool AdamJob::IsUpdated() const { return Follows(*state_, *other_); }
bool AdamJob::IsStepped() const { return Follows(*other_, *state_); }

bool AdamJob::Follows(const Slots& old, const Slots& fresh) const {
  const client::UpdateSettings& s = settings_;
  const double t = static_cast<double>(s.step);
  const auto is_near = [](double value, double expected, double unit) {
    return std::abs(value - expected) <= 1e-5 * std::abs(expected) + 1e-3 * unit;
  };
  for (int64_t i = 0; i < elements_; i += 12'347) {
    const double g = FloatOfBf16(grad_[i]) * s.gradient_scale;
    const double p = JoinOf({old.param[i], old.master[i]});
    const double m = s.beta1 * old.exp_avg[i] + (1 - s.beta1) * g;
    const double v = s.beta2 * old.exp_avg_sq[i] + (1 - s.beta2) * g * g;
    const double update =
        m / (1 - std::pow(s.beta1, t)) / (std::sqrt(v / (1 - std::pow(s.beta2, t))) + s.epsilon);
    const double expected = p - s.learning_rate * s.weight_decay * p - s.learning_rate * update;
    if (!is_near(JoinOf({fresh.param[i], fresh.master[i]}), expected, s.learning_rate) ||
        !is_near(fresh.exp_avg[i], m, 1e-6) || !is_near(fresh.exp_avg_sq[i], v, 1e-12)) {
      return false;
    }
  }
  return true;
}

}  // namespace gemini::bench
