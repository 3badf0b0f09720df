// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "../../math/masks.h"
#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/memory.h"

#define DETOPS_KERNELS "../masks/paste_masks_in_image.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPixelsPerThread = 1 << 16;

// Pixels [begin, end) of one axis.
struct Reach {
  int64_t begin, end;
};

// Those of [begin, end) that a mask reaches: it ends half a cell outside its box. Twice as much is
// searched, since rounding may shift the last pixel: the taps have the last word.
template <typename T>
Reach reach(T first, T last, int64_t cells, int64_t begin, int64_t end) {
  const T margin = (last - first) / T(cells) + 1;
  const auto pixel = [=](T x) {
    constexpr T kFar = T(int64_t(1) << 62);
    return std::clamp(static_cast<int64_t>(math::max(T(-1), math::min(x, kFar))), begin, end);
  };
  Reach r{pixel(first - margin), pixel(last + margin)};
  math::Taps<T> taps;
  while (r.begin < r.end && !math::mask_taps(first, last, cells, r.begin, taps)) ++r.begin;
  while (r.begin < r.end && !math::mask_taps(first, last, cells, r.end - 1, taps)) --r.end;
  return r;
}

// A row of pixels between two stretched rows of cells.
template <typename T>
using PasteRow = void(const T* low, const T* high, T weight_low, T weight_high, T threshold,
                      int64_t count, uint8_t* pixels);

template <typename T>
struct PasteParams {
  const T* masks;                   // [N, mask_height, mask_width]
  const T* boxes;                   // [N, 4]
  int64_t mask_height, mask_width;  // cells
  int64_t height, width;            // pixels
  T threshold;
  PasteRow<T>* row;
};

// What one thread needs; memory is kept from one mask to the next.
template <typename T>
class Paster {
 public:
  explicit Paster(const PasteParams<T>& params) : p_(params), cells_(params.mask_width + 2) {
    cells_[0] = cells_[p_.mask_width + 1] = 0;
  }

  // Rows [begin, end) of the image of mask n. Every byte is written once.
  void paste(int64_t n, int64_t begin, int64_t end, uint8_t* pixels) {
    const T* box = p_.boxes + 4 * n;
    const Reach rows = reach(box[1], box[3], p_.mask_height, begin, end);
    const Reach columns = reach(box[0], box[2], p_.mask_width, 0, p_.width);
    const int64_t count = columns.end - columns.begin;
    uint8_t* const stop = pixels + (end - begin) * p_.width;
    if (count > 0 && rows.begin < rows.end) {
      mask_ = p_.masks + n * p_.mask_height * p_.mask_width;
      set_columns(box[0], box[2], columns);
      uint8_t* to = pixels + (rows.begin - begin) * p_.width + columns.begin;
      for (int64_t y = rows.begin; y < rows.end; ++y, to += p_.width) {
        math::Taps<T> taps{};
        math::mask_taps(box[1], box[3], p_.mask_height, y, taps);
        std::memset(pixels, 0, to - pixels);
        p_.row(stretched(taps.low), stretched(taps.high), taps.weight_low, taps.weight_high,
               p_.threshold, count, to);
        pixels = to + count;
      }
    }
    std::memset(pixels, 0, stop - pixels);
  }

 private:
  void set_columns(T first, T last, Reach r) {
    columns_ = r.end - r.begin;
    math::Taps<T>* taps = taps_.reserve(columns_);
    for (int64_t i = 0; i < columns_; ++i) {
      math::mask_taps(first, last, p_.mask_width, r.begin + i, taps[i]);
    }
    for (Stretched& s : stretched_) {
      s.values.reserve(columns_);
      s.row = -1;
    }
  }

  // A row of cells, numbered from the border of zeros above the mask, at the columns in reach. The
  // two rows in use are neighbours: one is even, one odd.
  const T* stretched(int64_t row) {
    Stretched& s = stretched_[row & 1];
    if (s.row == row) return s.values.data();
    s.row = row;
    T* values = s.values.data();
    if (row == 0 || row > p_.mask_height) {
      std::fill(values, values + columns_, T(0));
      return values;
    }
    const T* cells = mask_ + (row - 1) * p_.mask_width;
    std::copy(cells, cells + p_.mask_width, cells_.data() + 1);
    for (int64_t i = 0; i < columns_; ++i) {
      const math::Taps<T>& t = taps_[i];
      values[i] = cells_[t.low] * t.weight_low + cells_[t.high] * t.weight_high;
    }
    return values;
  }

  struct Stretched {
    int64_t row;
    Buffer<T> values;
  };

  const PasteParams<T>& p_;
  const T* mask_ = nullptr;
  int64_t columns_ = 0;
  Buffer<T> cells_;  // a row of the mask between two zeros
  Buffer<math::Taps<T>> taps_;
  Stretched stretched_[2];
};

}  // namespace

void paste_masks_in_image(const Tensor& masks, const Tensor& boxes, int64_t height, int64_t width,
                          double threshold, Tensor& pasted) {
  expect_writes(pasted);
  const ScalarType type = compute_type(promoted_type(masks.scalar_type(), boxes.scalar_type()));
  const Tensor cells = masks.to(type).contiguous(), box = boxes.to(type).contiguous();
  auto* pixels = static_cast<uint8_t*>(pasted.mutable_data_ptr());
  DETOPS_WIDE_SWITCH(type, [&] {
    const PasteParams<scalar_t> params{cells.const_data_ptr<scalar_t>(),
                                       box.const_data_ptr<scalar_t>(),
                                       cells.size(-2),
                                       cells.size(-1),
                                       height,
                                       width,
                                       static_cast<scalar_t>(threshold),
                                       threshold >= 0 ? DETOPS_IN_USE(paste_binary_row<scalar_t>)
                                                      : DETOPS_IN_USE(paste_soft_row<scalar_t>)};
    // By rows of all masks, so that a few large ones are shared by the threads as well.
    const int64_t grain = std::max<int64_t>(1, kPixelsPerThread / width);
    parallel_for(0, pasted.size(0) * height, grain, [&](int64_t begin, int64_t end) {
      Paster<scalar_t> paster(params);
      for (int64_t i = begin; i < end;) {
        const int64_t n = i / height, y = i % height, rows = std::min(height - y, end - i);
        paster.paste(n, y, y + rows, pixels + i * width);
        i += rows;
      }
    });
  });
}

}  // namespace detops::cpu
