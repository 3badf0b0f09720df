// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "../../math/masks.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../masks/paste_masks_in_image.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Returns the range of pixels in [begin, end) that a mask reaches along one axis. A mask ends half
// a cell outside its box. The search starts twice as far outside, because rounding may shift the
// last pixel: mask_taps decides.
template <typename T>
std::pair<int64_t, int64_t> reached_pixels(T first, T last, int64_t cells, int64_t begin,
                                           int64_t end) {
  const T margin = (last - first) / T(cells) + 1;
  const auto pixel = [=](T x) {
    constexpr T kFar = T(int64_t(1) << 62);
    return std::clamp(static_cast<int64_t>(math::max(T(-1), math::min(x, kFar))), begin, end);
  };
  int64_t low = pixel(first - margin), high = pixel(last + margin);
  math::Taps<T> taps;
  while (low < high && !math::mask_taps(first, last, cells, low, taps)) ++low;
  while (low < high && !math::mask_taps(first, last, cells, high - 1, taps)) --high;
  return {low, high};
}

// Workspace of one thread. Memory is reused for the next mask.
template <typename T>
class Paster {
 public:
  Paster(const Tensor& masks, const Tensor& boxes, int64_t width, double threshold)
      : masks_(masks), boxes_(boxes), width_(width), threshold_(threshold) {
    cells_[0] = cells_[mask_width_ + 1] = 0;
  }

  // Writes rows [begin, end) of the image of mask n, every byte once.
  void paste(int64_t n, int64_t begin, int64_t end, uint8_t* pixels) {
    const T* box = boxes_.const_data_ptr<T>() + 4 * n;
    const auto [top, bottom] = reached_pixels(box[1], box[3], mask_height_, begin, end);
    const auto [left, right] = reached_pixels(box[0], box[2], mask_width_, 0, width_);
    uint8_t* const stop = pixels + (end - begin) * width_;
    if (left < right && top < bottom) {
      mask_ = masks_.const_data_ptr<T>() + n * mask_height_ * mask_width_;
      columns_ = right - left;
      math::Taps<T>* taps = taps_.reserve(columns_);
      for (int64_t i = 0; i < columns_; ++i) {
        math::mask_taps(box[0], box[2], mask_width_, left + i, taps[i]);
      }
      for (ResampledRow& s : resampled_rows_) {
        s.values.reserve(columns_);
        s.row = -1;
      }
      const auto paste_row =
          threshold_ >= 0 ? DETOPS_IN_USE(paste_row<false, T>) : DETOPS_IN_USE(paste_row<true, T>);
      uint8_t* to = pixels + (top - begin) * width_ + left;
      for (int64_t y = top; y < bottom; ++y, to += width_) {
        math::Taps<T> row_taps{};
        math::mask_taps(box[1], box[3], mask_height_, y, row_taps);
        std::memset(pixels, 0, to - pixels);
        paste_row(resampled_row(row_taps.low), resampled_row(row_taps.high), row_taps.weight_low,
                  row_taps.weight_high, static_cast<T>(threshold_), columns_, to);
        pixels = to + columns_;
      }
    }
    std::memset(pixels, 0, stop - pixels);
  }

 private:
  // Returns a row of cells, interpolated at the columns in reach. Row 0 is the border of zeros
  // above the mask. The two rows in use are adjacent: one is even, one odd.
  const T* resampled_row(int64_t row) {
    ResampledRow& s = resampled_rows_[row & 1];
    T* values = s.values.data();
    if (s.row == row) return values;
    s.row = row;
    if (row == 0 || row > mask_height_) {
      std::fill_n(values, columns_, T(0));
      return values;
    }
    std::copy_n(mask_ + (row - 1) * mask_width_, mask_width_, cells_.data() + 1);
    for (int64_t i = 0; i < columns_; ++i) {
      const math::Taps<T>& t = taps_[i];
      values[i] = cells_[t.low] * t.weight_low + cells_[t.high] * t.weight_high;
    }
    return values;
  }

  struct ResampledRow {
    int64_t row;
    Buffer<T> values;
  };

  const Tensor &masks_, &boxes_;  // [N, mask_height, mask_width], [N, 4]
  const int64_t width_, mask_height_ = masks_.size(-2), mask_width_ = masks_.size(-1);
  const double threshold_;
  const T* mask_ = nullptr;
  int64_t columns_ = 0;
  Buffer<T> cells_{size_t(mask_width_ + 2)};  // a row of the mask between two zeros
  Buffer<math::Taps<T>> taps_;
  ResampledRow resampled_rows_[2];
};

}  // namespace

void paste_masks_in_image(const Tensor& masks, const Tensor& boxes, int64_t height, int64_t width,
                          double threshold, Tensor& pasted) {
  const ScalarType type = compute_type(promote_types(masks.scalar_type(), boxes.scalar_type()));
  const Tensor cells = masks.to(type).contiguous(), wide_boxes = boxes.to(type).contiguous();
  auto* pixels = static_cast<uint8_t*>(pasted.mutable_data_ptr());
  DETOPS_WIDE_SWITCH(type, [&] {
    constexpr int64_t kPixelsPerThread = 1 << 16;
    // Splits the rows of all masks, so that threads can also share a few large masks.
    parallel_for(pasted.size(0) * height, grain_for(kPixelsPerThread, width),
                 [&](int64_t begin, int64_t end) {
                   Paster<scalar_t> paster(cells, wide_boxes, width, threshold);
                   for (int64_t i = begin; i < end;) {
                     const int64_t n = i / height, y = i % height,
                                   rows = std::min(height - y, end - i);
                     paster.paste(n, y, y + rows, pixels + i * width);
                     i += rows;
                   }
                 });
  });
}

}  // namespace detops::cpu
