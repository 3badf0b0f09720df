// SPDX-License-Identifier: MIT
#pragma once

#include "box.h"

// Box regression of "Faster R-CNN" (Ren et al., 2015), section 3.1.2, equation 2: centre offsets in
// units of the anchor's size and logarithms of size ratios, each multiplied by a weight.
namespace detops::math {

template <typename T>
struct Delta {
  T dx, dy, dw, dh;
};

template <typename T>
struct CentreBox {
  T x, y, w, h;
};

template <typename T>
DETOPS_HD CentreBox<T> centre(const Box<T>& b) {
  const T w = b.x2 - b.x1, h = b.y2 - b.y1;
  return {b.x1 + T(0.5) * w, b.y1 + T(0.5) * h, w, h};
}

// Backward pass of `centre`: maps the gradient of the centre form to that of the corners.
template <typename T>
DETOPS_HD Box<T> centre_gradient(const CentreBox<T>& g) {
  return {T(0.5) * g.x - g.w, T(0.5) * g.y - g.h, T(0.5) * g.x + g.w, T(0.5) * g.y + g.h};
}

template <typename T>
DETOPS_HD Delta<T> encode(const Box<T>& box, const Box<T>& anchor, const Delta<T>& weight) {
  const CentreBox<T> b = centre(box), a = centre(anchor);
  return {weight.dx * (b.x - a.x) / a.w, weight.dy * (b.y - a.y) / a.h, weight.dw * log(b.w / a.w),
          weight.dh * log(b.h / a.h)};
}

template <typename T>
DETOPS_HD void encode_gradient(const Box<T>& box, const Box<T>& anchor, const Delta<T>& weight,
                               const Delta<T>& g, Box<T>& to_box, Box<T>& to_anchor) {
  const CentreBox<T> b = centre(box), a = centre(anchor);
  const T gx = g.dx * weight.dx / a.w, gy = g.dy * weight.dy / a.h;
  const T gw = g.dw * weight.dw, gh = g.dh * weight.dh;
  to_box = centre_gradient<T>({gx, gy, gw / b.w, gh / b.h});
  to_anchor = centre_gradient<T>(
      {-gx, -gy, -(gx * (b.x - a.x) + gw) / a.w, -(gy * (b.y - a.y) + gh) / a.h});
}

// `clip` is the upper bound of dw and dh before the exponential. NaN passes through.
template <typename T>
DETOPS_HD Box<T> decode(const Delta<T>& delta, const Box<T>& anchor, const Delta<T>& weight,
                        T clip) {
  const CentreBox<T> a = centre(anchor);
  const T x = delta.dx / weight.dx * a.w + a.x, y = delta.dy / weight.dy * a.h + a.y;
  const T half_w = T(0.5) * (exp(min(delta.dw / weight.dw, clip)) * a.w);
  const T half_h = T(0.5) * (exp(min(delta.dh / weight.dh, clip)) * a.h);
  return {x - half_w, y - half_h, x + half_w, y + half_h};
}

// Returns the gradient of one anchor, the sum over its deltas, and writes that of each delta.
template <typename T>
DETOPS_HD Box<T> decode_gradient(const Delta<T>* deltas, const Box<T>& anchor, int64_t per_anchor,
                                 const Delta<T>& weight, T clip, const Box<T>* grads,
                                 Delta<T>* to_deltas) {
  const CentreBox<T> a = centre(anchor);
  Box<T> sum{};
  for (int64_t j = 0; j < per_anchor; ++j) {
    const Delta<T> delta = deltas[j];
    const Box<T> grad = grads[j];
    const T dw = delta.dw / weight.dw, dh = delta.dh / weight.dh;
    const T exp_w = exp(min(dw, clip)), exp_h = exp(min(dh, clip));
    const T gx = grad.x1 + grad.x2, gy = grad.y1 + grad.y2;
    const T gw = T(0.5) * (grad.x2 - grad.x1), gh = T(0.5) * (grad.y2 - grad.y1);
    to_deltas[j] = {gx * a.w / weight.dx, gy * a.h / weight.dy,
                    dw > clip ? T(0) : gw * exp_w * a.w / weight.dw,
                    dh > clip ? T(0) : gh * exp_h * a.h / weight.dh};
    const Box<T> g = centre_gradient<T>(
        {gx, gy, gx * delta.dx / weight.dx + gw * exp_w, gy * delta.dy / weight.dy + gh * exp_h});
    sum = {sum.x1 + g.x1, sum.y1 + g.y1, sum.x2 + g.x2, sum.y2 + g.y2};
  }
  return sum;
}

}  // namespace detops::math
