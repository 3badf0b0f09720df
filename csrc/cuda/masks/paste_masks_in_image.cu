// SPDX-License-Identifier: MIT
#include "../../math/masks.h"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

template <typename T>
struct PasteParams {
  const T* masks;                   // [N, mask_height, mask_width]
  const T* boxes;                   // [N, 4]
  int64_t mask_height, mask_width;  // cells
  int64_t count, height, width;     // pixels
  T threshold;
  bool soft;
};

// Interpolates a row of mask cells between two columns. Indices start at 1: a border of zeros
// surrounds the mask.
template <typename T>
__device__ T interpolate_row(const PasteParams<T>& p, const T* mask, int64_t row,
                             const math::Taps<T>& taps) {
  if (row == 0 || row > p.mask_height) return T(0);
  const T* cells = mask + (row - 1) * p.mask_width;
  const T low = taps.low == 0 ? T(0) : cells[taps.low - 1];
  const T high = taps.high > p.mask_width ? T(0) : cells[taps.high - 1];
  return low * taps.weight_low + high * taps.weight_high;
}

// A row of an output image: its mask and box, and the mask rows that it interpolates.
template <typename T>
struct PastedRow {
  const T *mask, *box;
  math::Taps<T> rows;
  bool inside;

  __device__ PastedRow(const PasteParams<T>& p, int64_t row) {
    const int64_t n = row / p.height;
    mask = p.masks + n * p.mask_height * p.mask_width;
    box = p.boxes + 4 * n;
    inside = math::mask_taps(box[1], box[3], p.mask_height, row - n * p.height, rows);
  }

  __device__ uint8_t pixel(const PasteParams<T>& p, int64_t x) const {
    math::Taps<T> columns;
    if (!inside || !math::mask_taps(box[0], box[2], p.mask_width, x, columns)) return 0;
    const T value = interpolate_row(p, mask, rows.low, columns) * rows.weight_low +
                    interpolate_row(p, mask, rows.high, columns) * rows.weight_high;
    return p.soft ? math::soft_mask_value(value) : value >= p.threshold;
  }
};

constexpr int kPixels = 16;  // adjacent pixels that a thread stores at once

template <typename T>
__global__ void paste_masks_in_image_kernel(PasteParams<T> p, uint8_t* pixels) {
  for_each_vector<kPixels>(p.count * p.height * p.width, [&](int64_t i, auto k) {
    int64_t row = i / p.width, x = i - row * p.width;
    PastedRow<T> pasted(p, row);
    Vector<uint8_t, k> values;
    for (int j = 0; j < k; ++j) {
      if (x == p.width) x = 0, pasted = PastedRow<T>(p, ++row);
      values.at[j] = pasted.pixel(p, x++);
    }
    store(pixels + i, values);
  });
}

}  // namespace

void paste_masks_in_image(const Tensor& masks, const Tensor& boxes, int64_t height, int64_t width,
                          double threshold, Tensor& pasted) {
  const ScalarType type = compute_type(masks, boxes);
  const Tensor cells = masks.to(type).contiguous(), box = boxes.to(type).contiguous();
  DETOPS_WIDE_SWITCH(type, [&] {
    const PasteParams<scalar_t> params{elements(cells), elements(box),       cells.size(-2),
                                       cells.size(-1),  pasted.size(0),      height,
                                       width,           scalar_t(threshold), !(threshold >= 0)};
    launch(paste_masks_in_image_kernel<scalar_t>, blocks_for(pasted.numel(), kThreads * kPixels),
           params, static_cast<uint8_t*>(pasted.mutable_data_ptr()));
  });
}

}  // namespace detops::cuda
