// SPDX-License-Identifier: MIT
#pragma once

#include "box.h"

// Box regression of "Faster R-CNN" (Ren et al., 2015), section 3.1.2, equation 2: centres relative
// to the anchor's size, sizes as logarithms, each times a weight.
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

// Gradient of `centre`: from the centre form back to the corners.
template <typename T>
DETOPS_HD Box<T> centre_gradient(const CentreBox<T>& g) {
  return {T(0.5) * g.x - g.w, T(0.5) * g.y - g.h, T(0.5) * g.x + g.w, T(0.5) * g.y + g.h};
}

// The four passes, for the i-th of the rows that are written.
template <typename T>
struct EncodeBoxes {
  const Box<T>*boxes, *anchors;
  Delta<T> weight;
  Delta<T>* deltas;

  DETOPS_HD void operator()(int64_t i) const {
    const CentreBox<T> b = centre(boxes[i]), a = centre(anchors[i]);
    deltas[i] = {weight.dx * (b.x - a.x) / a.w, weight.dy * (b.y - a.y) / a.h,
                 weight.dw * log(b.w / a.w), weight.dh * log(b.h / a.h)};
  }
};

template <typename T>
struct EncodeBoxesBackward {
  const Box<T>*boxes, *anchors;
  Delta<T> weight;
  const Delta<T>* grad;
  Box<T>*to_boxes, *to_anchors;

  DETOPS_HD void operator()(int64_t i) const {
    const CentreBox<T> b = centre(boxes[i]), a = centre(anchors[i]);
    const Delta<T> g = grad[i];
    const T gx = g.dx * weight.dx / a.w, gy = g.dy * weight.dy / a.h;
    const T gw = g.dw * weight.dw, gh = g.dh * weight.dh;
    to_boxes[i] = centre_gradient<T>({gx, gy, gw / b.w, gh / b.h});
    to_anchors[i] = centre_gradient<T>(
        {-gx, -gy, -(gx * (b.x - a.x) + gw) / a.w, -(gy * (b.y - a.y) + gh) / a.h});
  }
};

// `clip` bounds dw and dh before the exponential; a NaN passes through.
template <typename T>
struct DecodeBoxes {
  const Delta<T>* deltas;
  const Box<T>* anchors;
  int64_t per_anchor;
  Delta<T> weight;
  T clip;
  Box<T>* boxes;

  DETOPS_HD void operator()(int64_t i) const {
    const Delta<T> delta = deltas[i];
    const CentreBox<T> a = centre(anchors[i / per_anchor]);
    const T x = delta.dx / weight.dx * a.w + a.x, y = delta.dy / weight.dy * a.h + a.y;
    const T half_w = T(0.5) * (exp(min(delta.dw / weight.dw, clip)) * a.w);
    const T half_h = T(0.5) * (exp(min(delta.dh / weight.dh, clip)) * a.h);
    boxes[i] = {x - half_w, y - half_h, x + half_w, y + half_h};
  }
};

// For an anchor: all of its deltas add to its gradient.
template <typename T>
struct DecodeBoxesBackward {
  const Delta<T>* deltas;
  const Box<T>* anchors;
  int64_t per_anchor;
  Delta<T> weight;
  T clip;
  const Box<T>* grads;
  Delta<T>* to_deltas;
  Box<T>* to_anchors;

  DETOPS_HD void operator()(int64_t i) const {
    const CentreBox<T> a = centre(anchors[i]);
    Box<T> sum{};
    for (int64_t j = i * per_anchor; j < (i + 1) * per_anchor; ++j) {
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
    to_anchors[i] = sum;
  }
};

}  // namespace detops::math
