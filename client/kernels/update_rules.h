// SPDX-License-Identifier: Apache-2.0
// Defines the formulas of the optimizers on fp32 lanes: sixteen lanes
// (client/kernels/lanes_portable.h), or one in CUDA kernels (client/kernels/lane_cuda.h). Each step
// is one correctly rounded operation or an explicit fma, in the order written.
// client/kernels/update_scalars.h has the scalars.
// A rule has
//   Update(p, g, m, v)      makes m and v the new moments and returns the new parameter
//   Direction(p, g, m, v)   layer-wise kinds: the vector whose norm the trust ratio takes
//   kHasSecondMoment        whether it looks at v
// In all rules a new moment that is a NaN makes the new parameter a NaN, so only the parameter is
// checked for NaNs.
// Letters: p parameter, g gradient as stored, m and v moments; x' is the new x.
#pragma once
#include "client/kernels/update_scalars.h"
#include "gemini/host_device.h"

namespace gemini::client {

// What the Adam family shares. Kingma and Ba, "Adam" (arXiv:1412.6980), algorithm 1:
//   m' = fma(beta1, m, (1 - beta1) * g)    v' = fma(beta2, v, (1 - beta2) * (g * g))
//   Ratio: m' / (sqrt(v') + epsilon * sqrt(c2)), to be multiplied by sqrt(c2) / c1
template <typename L>
class AdamMoments {
  using Floats = typename L::Floats;

 public:
  GEMINI_HOST_DEVICE explicit AdamMoments(const UpdateScalars& s)
      : beta1_(L::Set(s.beta1)),
        one_minus_beta1_(L::Set(s.one_minus_beta1)),
        beta2_(L::Set(s.beta2)),
        one_minus_beta2_(L::Set(s.one_minus_beta2)),
        corrected_epsilon_(L::Set(s.corrected_epsilon)) {}

  GEMINI_HOST_DEVICE Floats Ratio(const Floats& g, Floats& m, Floats& v) const {
    m = L::Fma(beta1_, m, L::Mul(one_minus_beta1_, g));
    v = L::Fma(beta2_, v, L::Mul(one_minus_beta2_, L::Mul(g, g)));
    return L::Div(m, L::Add(L::Sqrt(v), corrected_epsilon_));
  }

 private:
  Floats beta1_, one_minus_beta1_, beta2_, one_minus_beta2_, corrected_epsilon_;
};

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101), algorithm 2:
//   g' = g * scale    p' = fma(-(lr * sqrt(c2) / c1), Ratio(g'), p * (1 - lr * wd))
template <typename L>
class AdamWRule {
  using Floats = typename L::Floats;

 public:
  static constexpr bool kHasSecondMoment = true;
  GEMINI_HOST_DEVICE explicit AdamWRule(const UpdateScalars& s)
      : moments_(s),
        scale_(L::Set(s.gradient_scale)),
        minus_step_size_(L::Set(s.minus_step_size)),
        decay_(L::Set(s.decay)) {}

  GEMINI_HOST_DEVICE Floats Update(const Floats& p, const Floats& g, Floats& m, Floats& v) const {
    const Floats ratio = moments_.Ratio(L::Mul(g, scale_), m, v);
    return L::Fma(minus_step_size_, ratio, L::Mul(p, decay_));
  }

 private:
  AdamMoments<L> moments_;
  Floats scale_, minus_step_size_, decay_;
};

// Adam with L2 regularisation, as torch.optim.Adam: g' = fma(wd, p, g * scale)
//   p' = fma(-(lr * sqrt(c2) / c1), Ratio(g'), p)
template <typename L>
class AdamRule {
  using Floats = typename L::Floats;

 public:
  static constexpr bool kHasSecondMoment = true;
  GEMINI_HOST_DEVICE explicit AdamRule(const UpdateScalars& s)
      : moments_(s),
        scale_(L::Set(s.gradient_scale)),
        minus_step_size_(L::Set(s.minus_step_size)),
        weight_decay_(L::Set(s.weight_decay)) {}

  GEMINI_HOST_DEVICE Floats Update(const Floats& p, const Floats& g, Floats& m, Floats& v) const {
    const Floats decayed = L::Fma(weight_decay_, p, L::Mul(g, scale_));
    return L::Fma(minus_step_size_, moments_.Ratio(decayed, m, v), p);
  }

 private:
  AdamMoments<L> moments_;
  Floats scale_, minus_step_size_, weight_decay_;
};

// Stochastic gradient descent with momentum, dampening and L2 regularisation, as torch.optim.SGD:
//   g' = fma(wd, p, g * scale)    m' = t == 1 ? g' : fma(mu, m, (1 - tau) * g')
//   p' = fma(-lr, m', p), and with Nesterov's momentum p' = fma(-lr, fma(mu, m', g'), p)
// Without dampening its factor is 1, which changes no bit of g'.
template <typename L>
class SgdRule {
  using Floats = typename L::Floats;

 public:
  static constexpr bool kHasSecondMoment = false;
  GEMINI_HOST_DEVICE explicit SgdRule(const UpdateScalars& s)
      : scale_(L::Set(s.gradient_scale)),
        weight_decay_(L::Set(s.weight_decay)),
        momentum_(L::Set(s.momentum)),
        one_minus_dampening_(L::Set(s.one_minus_dampening)),
        minus_learning_rate_(L::Set(s.minus_learning_rate)),
        is_first_(s.is_first),
        nesterov_(s.nesterov) {}

  GEMINI_HOST_DEVICE Floats Update(const Floats& p, const Floats& g, Floats& m, Floats&) const {
    const Floats decayed = L::Fma(weight_decay_, p, L::Mul(g, scale_));
    m = is_first_ ? decayed : L::Fma(momentum_, m, L::Mul(one_minus_dampening_, decayed));
    return L::Fma(minus_learning_rate_, nesterov_ ? L::Fma(momentum_, m, decayed) : m, p);
  }

 private:
  Floats scale_, weight_decay_, momentum_, one_minus_dampening_, minus_learning_rate_;
  bool is_first_, nesterov_;
};

// LAMB (You et al., arXiv:1904.00962), algorithm 2, phi the identity:
//   u = fma(sqrt(c2) / c1, Ratio(g * scale), wd * p)    p' = fma(-(lr * ratio), u, p)
template <typename L>
class LambRule {
  using Floats = typename L::Floats;

 public:
  static constexpr bool kHasSecondMoment = true;
  GEMINI_HOST_DEVICE explicit LambRule(const UpdateScalars& s)
      : moments_(s),
        scale_(L::Set(s.gradient_scale)),
        correction_(L::Set(s.correction)),
        weight_decay_(L::Set(s.weight_decay)),
        minus_layer_rate_(L::Set(-s.layer_rate)) {}

  GEMINI_HOST_DEVICE Floats Direction(const Floats& p, const Floats& g, Floats& m,
                                      Floats& v) const {
    const Floats ratio = moments_.Ratio(L::Mul(g, scale_), m, v);
    return L::Fma(correction_, ratio, L::Mul(weight_decay_, p));
  }
  GEMINI_HOST_DEVICE Floats Update(const Floats& p, const Floats& g, Floats& m, Floats& v) const {
    return L::Fma(minus_layer_rate_, Direction(p, g, m, v), p);
  }

 private:
  AdamMoments<L> moments_;
  Floats scale_, correction_, weight_decay_, minus_layer_rate_;
};

// LARS (You et al., "Large Batch Training of Convolutional Networks", arXiv:1708.03888), algorithm
//   1: m' = fma(mu, m, (lr * ratio) * fma(wd, p, g * scale))    p' = p - m'
// Its ratio takes the norm of g * scale alone.
template <typename L>
class LarsRule {
  using Floats = typename L::Floats;

 public:
  static constexpr bool kHasSecondMoment = false;
  GEMINI_HOST_DEVICE explicit LarsRule(const UpdateScalars& s)
      : scale_(L::Set(s.gradient_scale)),
        weight_decay_(L::Set(s.weight_decay)),
        momentum_(L::Set(s.momentum)),
        layer_rate_(L::Set(s.layer_rate)) {}

  GEMINI_HOST_DEVICE Floats Direction(const Floats&, const Floats& g, Floats&, Floats&) const {
    return L::Mul(g, scale_);
  }
  GEMINI_HOST_DEVICE Floats Update(const Floats& p, const Floats& g, Floats& m, Floats&) const {
    const Floats decayed = L::Fma(weight_decay_, p, L::Mul(g, scale_));
    m = L::Fma(momentum_, m, L::Mul(layer_rate_, decayed));
    return L::Sub(p, m);
  }

 private:
  Floats scale_, weight_decay_, momentum_, layer_rate_;
};

}  // namespace gemini::client
