// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/functions.inl"
//
#include "../../math/focal_loss.inl"

template <math::Focus focus, typename T>
void focal_forward(const math::Focal<accumulate_t<T>>& f, const T* inputs, const T* targets,
                   int64_t count, T* losses) {
  for (int64_t i = 0; i < count; i += kLanes<accumulate_t<T>>) {
    const int64_t n = count - i;
    const auto x = load_first(inputs + i, n), t = load_first(targets + i, n);
    store_first(losses + i, focal::loss<focus>(f, x, t), n);
  }
}

template <math::Focus focus, typename T>
accumulate_t<T> focal_sum(const math::Focal<accumulate_t<T>>& f, const T* inputs, const T* targets,
                          int64_t count) {
  using A = accumulate_t<T>;
  Vector<A> sum{};
  int64_t i = 0;
  for (; i + kLanes<A> <= count; i += kLanes<A>) {
    sum += focal::loss<focus>(f, load(inputs + i), load(targets + i));
  }
  const int64_t n = count - i;
  if (n > 0) {  // an input of 0 has a loss: it must not count beyond the end
    A rest[kLanes<A>] = {};
    store_part(rest, focal::loss<focus>(f, load_part(inputs + i, n), load_part(targets + i, n)), n);
    sum += load(rest);
  }
  return sum_lanes<A>(sum);
}

// A grad of nullptr: it is `same` for all.
template <math::Focus focus, typename T>
void focal_backward(const math::Focal<accumulate_t<T>>& f, const T* grad, accumulate_t<T> same,
                    const T* inputs, const T* targets, int64_t count, T* to_inputs) {
  using A = accumulate_t<T>;
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t n = count - i;
    const Vector<A> g = grad == nullptr ? splat(same) : load_first(grad + i, n);
    const auto x = load_first(inputs + i, n), t = load_first(targets + i, n);
    store_first(to_inputs + i, g * focal::slope<focus>(f, x, t), n);
  }
}
