// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/functions.inl"

// The lanes 0, 1, 2 ...
template <typename A>
DETOPS_INLINE Vector<lane_index_t<A>> lane_numbers() {
  Vector<lane_index_t<A>> numbers{};
  for (int64_t i = 0; i < kLanes<A>; ++i) numbers[i] = static_cast<lane_index_t<A>>(i);
  return numbers;
}

// What the loss needs of a row. `powers` are e^(x_j - m), up to a whole vector of them; null where
// they are not wanted.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE math::SoftmaxRow<A> softmax_row(const T* x, int64_t classes, int64_t target,
                                              A* powers) {
  using Index = lane_index_t<A>;
  const Vector<Index> lanes = lane_numbers<A>();
  const Vector<A> lowest = splat(-std::numeric_limits<A>::infinity());
  Vector<A> most = lowest;
  for (int64_t i = 0; i < classes; i += kLanes<A>) {
    const Vector<A> v = load_first(x + i, classes - i);
    // The maximum of numbers and a NaN may be any of them: the NaN comes back with its power.
    most = vector_max(most, lanes < static_cast<Index>(classes - i) ? v : lowest);
  }
  A m = most[0];
  for (int64_t i = 1; i < kLanes<A>; ++i) m = math::max(m, A(most[i]));
  const Vector<A> all = splat(m);
  Vector<A> rest{}, own{};
  for (int64_t i = 0; i < classes; i += kLanes<A>) {
    const Vector<A> power = exp(load_first(x + i, classes - i) - all);
    if (powers != nullptr) store(powers + i, power);
    const auto within = lanes < static_cast<Index>(classes - i);
    const auto at_target = lanes == static_cast<Index>(target - i);
    rest += within & ~at_target ? power : Vector<A>{};
    own += at_target ? power : Vector<A>{};
  }
  return {A(math::to_float(x[target])) - m, sum_lanes<A>(own), sum_lanes<A>(rest)};
}

template <math::Focus focus, typename T>
void softmax_focal_forward(const math::SoftmaxFocal<accumulate_t<T>>& f, const T* inputs,
                           const int64_t* targets, int64_t rows, accumulate_t<T>* losses) {
  using A = accumulate_t<T>;
  for (int64_t i = 0; i < rows; ++i) {
    losses[i] = 0;
    if (!f.counts(targets[i])) continue;
    const auto row = softmax_row(inputs + i * f.classes, f.classes, targets[i], (A*)nullptr);
    losses[i] = math::softmax_focal_loss<focus>(row, f.scale(targets[i]), f.gamma);
  }
}

// `powers` has room for the classes up to a whole vector.
template <math::Focus focus, typename T>
void softmax_focal_backward(const math::SoftmaxFocal<accumulate_t<T>>& f,
                            const accumulate_t<T>* grad, const T* inputs, const int64_t* targets,
                            int64_t rows, accumulate_t<T>* powers, T* to_inputs) {
  using A = accumulate_t<T>;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t target = targets[i];
    T* to = to_inputs + i * f.classes;
    Vector<A> factor{};
    if (f.counts(target)) {
      const auto row = softmax_row(inputs + i * f.classes, f.classes, target, powers);
      const A slope = grad[i] * math::softmax_focal_slope<focus>(row, f.scale(target), f.gamma);
      factor = splat(-slope / row.sum());
      // As -slope p_j, the target's derivative is slope (1 - p).
      powers[target] = -row.rest;
    } else {
      for (int64_t j = 0; j < f.classes; ++j) powers[j] = 0;
    }
    for (int64_t j = 0; j < f.classes; j += kLanes<A>) {
      store_first(to + j, factor * load(powers + j), f.classes - j);
    }
  }
}
