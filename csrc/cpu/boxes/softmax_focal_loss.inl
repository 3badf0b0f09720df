// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/functions.inl"
//
#include "../../math/focal_loss.inl"

// The lanes 0, 1, 2 ...
template <typename A>
DETOPS_INLINE Vector<lane_index_t<A>> lane_numbers() {
  Vector<lane_index_t<A>> numbers{};
  for (int64_t i = 0; i < kLanes<A>; ++i) numbers[i] = static_cast<lane_index_t<A>>(i);
  return numbers;
}

template <typename A, typename T>
DETOPS_INLINE Vector<A> lane_maxima(const T* x, int64_t classes) {
  using Index = lane_index_t<A>;
  const Vector<A> lowest = splat(-std::numeric_limits<A>::infinity());
  Vector<A> most = lowest;
  for (int64_t j = 0; j < classes; j += kLanes<A>) {
    const auto within =
        lane_numbers<A>() < static_cast<Index>(std::min<int64_t>(classes - j, kLanes<A>));
    // The maximum of numbers and a NaN may be any of them: the NaN comes back with its power.
    most = vector_max(most, within ? load_first(x + j, classes - j) : lowest);
  }
  return most;
}

// Of e^(x_j - m) over the classes other than the target.
template <typename A, typename T>
DETOPS_INLINE Vector<A> lane_sums(const T* x, int64_t classes, int64_t target, A m) {
  using Index = lane_index_t<A>;
  Vector<A> sums{};
  for (int64_t j = 0; j < classes; j += kLanes<A>) {
    const Vector<A> power = exp(load_first(x + j, classes - j) - m);
    const auto within =
        lane_numbers<A>() < static_cast<Index>(std::min<int64_t>(classes - j, kLanes<A>));
    const auto at_target =
        lane_numbers<A>() == static_cast<Index>(std::clamp<int64_t>(target - j, -1, kLanes<A>));
    sums += within & ~at_target ? power : Vector<A>{};
  }
  return sums;
}

// What the losses of some rows of logits depend on, a lane for each; `scale` is 0 where a row does
// not count.
template <typename A>
struct SoftmaxRows {
  Vector<lane_index_t<A>> counts{};
  Vector<A> scale{}, most{};
  softmax_focal::Row<Vector<A>> row{};
};

template <typename A, typename T>
DETOPS_INLINE SoftmaxRows<A> softmax_rows(const math::SoftmaxFocal<A>& f, const T* x,
                                          const int64_t* targets, int64_t rows) {
  SoftmaxRows<A> read;
  Vector<A> of_rows[kLanes<A>] = {};
  for (int64_t i = 0; i < rows; ++i) of_rows[i] = lane_maxima<A>(x + i * f.classes, f.classes);
  transpose<A>(of_rows);
  read.most = of_rows[0];
  for (int64_t i = 1; i < kLanes<A>; ++i) read.most = vector_max(read.most, of_rows[i]);
  Vector<A> sums[kLanes<A>] = {};
  for (int64_t i = 0; i < rows; ++i) {
    if (!f.counts(targets[i])) continue;
    const T* logits = x + i * f.classes;
    sums[i] = lane_sums<A>(logits, f.classes, targets[i], A(read.most[i]));
    read.counts[i] = -1;
    read.scale[i] = f.scale(targets[i]);
    read.row.shift[i] = A(math::to_float(logits[targets[i]])) - read.most[i];
  }
  read.row.rest = sum_each<A>(sums);
  read.row.own = exp(read.row.shift);
  return read;
}

template <math::Focus focus, typename T>
void softmax_focal_forward(const math::SoftmaxFocal<accumulate_t<T>>& f, const T* inputs,
                           const int64_t* targets, int64_t rows, accumulate_t<T>* losses) {
  using A = accumulate_t<T>;
  for (int64_t i = 0; i < rows; i += kLanes<A>) {
    const int64_t n = std::min<int64_t>(rows - i, kLanes<A>);
    const auto read = softmax_rows(f, inputs + i * f.classes, targets + i, n);
    const Vector<A> loss = softmax_focal::loss<focus>(read.row, read.scale, f.gamma);
    store_first(losses + i, read.counts ? loss : Vector<A>{}, n);
  }
}

template <math::Focus focus, typename T>
void softmax_focal_backward(const math::SoftmaxFocal<accumulate_t<T>>& f,
                            const accumulate_t<T>* grad, const T* inputs, const int64_t* targets,
                            int64_t rows, T* to_inputs) {
  using A = accumulate_t<T>;
  for (int64_t i = 0; i < rows; i += kLanes<A>) {
    const int64_t n = std::min<int64_t>(rows - i, kLanes<A>);
    const auto read = softmax_rows(f, inputs + i * f.classes, targets + i, n);
    const Vector<A> slope = softmax_focal::slope<focus>(read.row, read.scale, f.gamma);
    const Vector<A> factor = -load_first(grad + i, n) * slope;
    for (int64_t k = 0; k < n; ++k) {
      const T* x = inputs + (i + k) * f.classes;
      T* to = to_inputs + (i + k) * f.classes;
      for (int64_t j = 0; j < f.classes; j += kLanes<A>) {
        const Vector<A> power = exp(load_first(x + j, f.classes - j) - A(read.most[k]));
        store_first(to + j, read.counts[k] ? factor[k] * power : Vector<A>{}, f.classes - j);
      }
      if (read.counts[k]) store_part(to + targets[i + k], splat(-factor[k] * read.row.rest[k]), 1);
    }
  }
}
