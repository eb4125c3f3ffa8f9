// SPDX-License-Identifier: Apache-2.0
//
// The mathematics of optimizers, which threads of the host and kernels of GPUs have in common: how
// one step changes one element of a value, and what is remembered of it. nn/optimizer.h has the
// sources of the rules.
//
// Pure functions. nvcc reads this header: it includes nothing but the language's headers.
#ifndef TESSERA_COMPUTE_OPTIMIZER_MATH_H_
#define TESSERA_COMPUTE_OPTIMIZER_MATH_H_

#include <cmath>
#include <cstdint>

#include "device/kernel_body.h"

namespace tessera::kernels {

enum class StepRule : uint8_t {
  kSgd,       // remembers nothing
  kMomentum,  // the momentum
  kNesterov,  // the same
  kAdam,      // the means of gradients and of their squares; AdamW too
  kAdagrad,   // the sum of squares
};
inline constexpr int kNumStepRules = 5;
// The most arrays that a rule remembers, and how many this one does.
inline constexpr int kMaxStepSlots = 2;
TESSERA_KERNEL_BODY constexpr int num_step_slots(StepRule rule) {
  return rule == StepRule::kSgd ? 0 : rule == StepRule::kAdam ? 2 : 1;
}

// The numbers of a step, as its elements are computed. A rule uses some of them.
template <class T>
struct StepNumbers {
  T rate = 0;            // the learning rate; of Adam divided by 1 - beta1^t
  T gradient_decay = 0;  // times the value is added to the gradient
  T kept = 1;            // what the value is multiplied by first
  T momentum = 0;
  T beta1 = 0;
  T rest1 = 0;  // 1 - beta1
  T beta2 = 0;
  T rest2 = 0;
  T scale = 0;  // of the root of the squares: 1 / sqrt(1 - beta2^t)
  T epsilon = 0;
};
struct OptimizerStep {
  StepRule rule = StepRule::kSgd;
  StepNumbers<double> numbers = {};
};

template <class T>
TESSERA_KERNEL_BODY StepNumbers<T> numbers_as(const StepNumbers<double>& n) {
  return {static_cast<T>(n.rate),     static_cast<T>(n.gradient_decay), static_cast<T>(n.kept),
          static_cast<T>(n.momentum), static_cast<T>(n.beta1),          static_cast<T>(n.rest1),
          static_cast<T>(n.beta2),    static_cast<T>(n.rest2),          static_cast<T>(n.scale),
          static_cast<T>(n.epsilon)};
}

TESSERA_KERNEL_BODY double root_of(double x) { return std::sqrt(x); }
TESSERA_KERNEL_BODY float root_of(float x) { return sqrtf(x); }

// One element: `first` and `second` are what the rule remembers, if it does.
template <StepRule kRule, class T>
TESSERA_KERNEL_BODY void step_element(const StepNumbers<T>& n, T gradient, T& value, T& first,
                                      T& second) {
  // Without decay a value that is infinite leaves the gradient as it is.
  if (n.gradient_decay != 0) gradient = gradient + value * n.gradient_decay;
  if constexpr (kRule == StepRule::kSgd) {
    value = value - gradient * n.rate;
  } else if constexpr (kRule == StepRule::kMomentum) {
    first = first * n.momentum + gradient;
    value = value - first * n.rate;
  } else if constexpr (kRule == StepRule::kNesterov) {
    first = first * n.momentum + gradient;
    value = value - (gradient + first * n.momentum) * n.rate;
  } else if constexpr (kRule == StepRule::kAdam) {
    first = first * n.beta1 + gradient * n.rest1;
    second = second * n.beta2 + gradient * gradient * n.rest2;
    value = value * n.kept - first / (root_of(second) * n.scale + n.epsilon) * n.rate;
  } else {
    first = first + gradient * gradient;
    value = value - gradient / (root_of(first) + n.epsilon) * n.rate;
  }
}

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_OPTIMIZER_MATH_H_
