// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/functions.inl"
//
#include "../../math/focal_loss.inl"
//

template <math::Focus focus, typename T>
void focal_forward(const math::FocalParams<accumulate_t<T>>& f, const T* inputs, const T* targets,
                   int64_t count, T* losses) {
  for (int64_t i = 0; i < count; i += kLanes<accumulate_t<T>>) {
    const int64_t n = count - i;
    const auto x = load_first(inputs + i, n), t = load_first(targets + i, n);
    store_first(losses + i, focal::loss<focus>(f, x, t), n);
  }
}

template <math::Focus focus, typename T, typename A = accumulate_t<T>>
A focal_sum(const math::FocalParams<A>& f, const T* inputs, const T* targets, int64_t count) {
  Vector<A> sum{};
  int64_t i = 0;
  for (; i + kLanes<A> <= count; i += kLanes<A>) {
    sum += focal::loss<focus>(f, load(inputs + i), load(targets + i));
  }
  const int64_t n = count - i;
  if (n > 0) {  // an input of 0 has a loss: exclude the padding
    A rest[kLanes<A>] = {};
    store_part(rest, focal::loss<focus>(f, load_part(inputs + i, n), load_part(targets + i, n)), n);
    sum += load(rest);
  }
  return sum_lanes<A>(sum);
}

// If `grad` is null, the gradient of every element is `constant_grad`.
template <math::Focus focus, typename T, typename A = accumulate_t<T>>
void focal_backward(const math::FocalParams<A>& f, const T* grad, A constant_grad, const T* inputs,
                    const T* targets, int64_t count, T* to_inputs) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t n = count - i;
    const Vector<A> g = grad == nullptr ? splat(constant_grad) : load_first(grad + i, n);
    const auto x = load_first(inputs + i, n), t = load_first(targets + i, n);
    store_first(to_inputs + i, g * focal::slope<focus>(f, x, t), n);
  }
}

// Returns a mask of the first n lanes.
template <typename A>
DETOPS_INLINE auto lanes_before(int64_t n) {
  return lane_indices<A>() < static_cast<lane_index_t<A>>(std::min<int64_t>(n, kLanes<A>));
}

template <typename A, typename T>
DETOPS_INLINE Vector<A> lane_maxima(const T* x, int64_t classes) {
  const Vector<A> lowest = splat(-std::numeric_limits<A>::infinity());
  Vector<A> max_logit = lowest;
  for (int64_t j = 0; j < classes; j += kLanes<A>) {
    // max may drop a NaN. It comes back with its exponential.
    max_logit =
        max(max_logit, lanes_before<A>(classes - j) ? load_first(x + j, classes - j) : lowest);
  }
  return max_logit;
}

// Sums e^(x_j - m) per lane over the classes other than the target.
template <typename A, typename T>
DETOPS_INLINE Vector<A> lane_sums(const T* x, int64_t classes, int64_t target, A m) {
  using Index = lane_index_t<A>;
  Vector<A> sums{};
  for (int64_t j = 0; j < classes; j += kLanes<A>) {
    const Vector<A> power = exp(load_first(x + j, classes - j) - m);
    const auto at_target =
        lane_indices<A>() == static_cast<Index>(std::clamp<int64_t>(target - j, -1, kLanes<A>));
    sums += lanes_before<A>(classes - j) & ~at_target ? power : Vector<A>{};
  }
  return sums;
}

// The inputs of the losses of some rows of logits, one row per lane. Rows that do not count have a
// scale of 0.
template <typename A>
struct SoftmaxRows {
  Vector<lane_index_t<A>> is_valid{};
  Vector<A> scale{}, max_logit{};
  softmax_focal::Row<Vector<A>> row{};
};

template <typename A, typename T>
DETOPS_INLINE SoftmaxRows<A> softmax_rows(const math::SoftmaxFocal<A>& f, const T* x,
                                          const int64_t* targets, int64_t rows) {
  SoftmaxRows<A> result;
  Vector<A> maxima[kLanes<A>] = {};
  for (int64_t i = 0; i < rows; ++i) maxima[i] = lane_maxima<A>(x + i * f.classes, f.classes);
  transpose<A>(maxima);
  result.max_logit = maxima[0];
  for (int64_t i = 1; i < kLanes<A>; ++i) result.max_logit = max(result.max_logit, maxima[i]);
  Vector<A> sums[kLanes<A>] = {};
  for (int64_t i = 0; i < rows; ++i) {
    if (!f.is_class(targets[i])) continue;
    const T* logits = x + i * f.classes;
    sums[i] = lane_sums<A>(logits, f.classes, targets[i], A(result.max_logit[i]));
    result.is_valid[i] = -1;
    result.scale[i] = f.scale(targets[i]);
    result.row.shift[i] = A(math::to_float(logits[targets[i]])) - result.max_logit[i];
  }
  result.row.exp_others = sum_each<A>(sums);
  result.row.exp_target = exp(result.row.shift);
  return result;
}

template <math::Focus focus, typename T, typename A = accumulate_t<T>>
void softmax_focal_forward(const math::SoftmaxFocal<A>& f, const T* inputs, const int64_t* targets,
                           int64_t rows, A* losses) {
  for (int64_t i = 0; i < rows; i += kLanes<A>) {
    const int64_t n = std::min<int64_t>(rows - i, kLanes<A>);
    const auto result = softmax_rows(f, inputs + i * f.classes, targets + i, n);
    const Vector<A> loss = softmax_focal::loss<focus>(result.row, result.scale, f.gamma);
    store_first(losses + i, result.is_valid ? loss : Vector<A>{}, n);
  }
}

template <math::Focus focus, typename T, typename A = accumulate_t<T>>
void softmax_focal_backward(const math::SoftmaxFocal<A>& f, const A* grad, const T* inputs,
                            const int64_t* targets, int64_t rows, T* to_inputs) {
  for (int64_t i = 0; i < rows; i += kLanes<A>) {
    const int64_t n = std::min<int64_t>(rows - i, kLanes<A>);
    const auto result = softmax_rows(f, inputs + i * f.classes, targets + i, n);
    const Vector<A> slope = softmax_focal::slope<focus>(result.row, result.scale, f.gamma);
    const Vector<A> factor = -load_first(grad + i, n) * slope;
    for (int64_t k = 0; k < n; ++k) {
      const T* x = inputs + (i + k) * f.classes;
      T* to = to_inputs + (i + k) * f.classes;
      for (int64_t j = 0; j < f.classes; j += kLanes<A>) {
        const Vector<A> power = exp(load_first(x + j, f.classes - j) - A(result.max_logit[k]));
        store_first(to + j, result.is_valid[k] ? factor[k] * power : Vector<A>{}, f.classes - j);
      }
      if (result.is_valid[k]) {
        store_part(to + targets[i + k], splat(-factor[k] * result.row.exp_others[k]), 1);
      }
    }
  }
}
