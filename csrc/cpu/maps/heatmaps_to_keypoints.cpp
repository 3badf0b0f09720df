// SPDX-License-Identifier: MIT
#include "../../math/heatmaps_to_keypoints.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../maps/heatmaps_to_keypoints.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Searches heatmaps of one size. Scratch memory is reused from one to the next.
template <typename T>
class PeakSearch {
 public:
  PeakSearch(int64_t height, int64_t width) : height_(height), width_(width) {}

  // Returns the largest pixel of a heatmap resized to a box, and writes its (x, y) to `keypoint`.
  T operator()(const T* map, const T* box, T* keypoint) {
    const math::HeatmapAxis<T> across(box[0], box[2], width_), down(box[1], box[3], height_);
    const int64_t count = across.pixels;
    int32_t* cells = cells_.reserve(4 * count);
    T* weights = weights_.reserve(4 * count);
    for (int64_t x = 0; x < count; ++x) {
      const math::CubicTaps<T> taps(across, x);
      for (int i = 0; i < 4; ++i) {
        cells[i * count + x] = static_cast<int32_t>(taps.cell[i]);
        weights[i * count + x] = taps.weight[i];
      }
    }
    T* rows = rows_.reserve(height_ * count);
    for (int64_t y = 0; y < height_; ++y) {
      DETOPS_IN_USE(resize_columns<T>)
      (map + y * width_, cells, weights, count, rows + y * count);
    }
    T* pixels = pixels_.reserve(count);
    math::Peak<T> peak{-std::numeric_limits<T>::infinity(), 0};
    for (int64_t y = 0; y < down.pixels && peak.value == peak.value; ++y) {
      const math::CubicTaps<T> taps(down, y);
      const T* tap_rows[4];
      for (int i = 0; i < 4; ++i) tap_rows[i] = rows + taps.cell[i] * count;
      const T largest = DETOPS_IN_USE(resize_rows<T>)(tap_rows, taps.weight, count, pixels);
      if (!peak.below({largest, 0})) continue;
      const T* at = std::find_if(pixels, pixels + count, [&](T v) {
        return v == largest || (v != v && largest != largest);
      });
      peak = {largest, y * count + (at - pixels)};
    }
    keypoint[0] = across.at(peak.pixel % count);
    keypoint[1] = down.at(peak.pixel / count);
    return peak.value;
  }

 private:
  int64_t height_, width_;
  Buffer<int32_t> cells_;
  Buffer<T> weights_, rows_, pixels_;
};

}  // namespace

void heatmaps_to_keypoints(const Tensor& maps, const Tensor& boxes, Tensor& keypoints,
                           Tensor& scores) {
  const ScalarType type = compute_type(maps, boxes);
  const Tensor cells = maps.to(type).contiguous(), box = boxes.to(type).contiguous();
  const int64_t keypoints_per_box = maps.size(1), height = maps.size(2), width = maps.size(3);
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto *map = elements<scalar_t>(cells), *corners = elements<scalar_t>(box);
    auto *keypoint = mutable_elements<scalar_t>(keypoints),
         *value = mutable_elements<scalar_t>(scores);
    parallel_for(maps.size(0) * keypoints_per_box, 1, [&](int64_t i, int64_t end) {
      PeakSearch<scalar_t> search(height, width);
      for (; i < end; ++i) {
        value[i] = search(map + i * height * width, corners + 4 * (i / keypoints_per_box),
                          keypoint + 3 * i);
        keypoint[3 * i + 2] = 1;
      }
    });
  });
}

}  // namespace detops::cpu
