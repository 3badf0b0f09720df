// SPDX-License-Identifier: MIT
#include "../../math/heatmaps_to_keypoints.h"

#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

// A block per map; of its pixels a thread takes one in kThreads.
template <typename T>
__global__ void heatmaps_to_keypoints_kernel(const T* maps, const T* boxes, int64_t count,
                                             int64_t each, int64_t height, int64_t width,
                                             T* keypoints, T* scores) {
  __shared__ math::Peak<T> peaks[kThreads];
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    const T* box = boxes + 4 * (n / each);
    const math::HeatmapAxis<T> across(box[0], box[2], width), down(box[1], box[3], height);
    math::Peak<T> peak{-std::numeric_limits<T>::infinity(), across.pixels * down.pixels};
    for (int64_t i = self; i < across.pixels * down.pixels; i += kThreads) {
      const math::CubicTaps<T> rows(down, i / across.pixels), columns(across, i % across.pixels);
      T enlarged[4];
      for (int k = 0; k < 4; ++k) {
        const T* row = maps + (n * height + rows.cell[k]) * width;
        enlarged[k] = math::weighted(row[columns.cell[0]], row[columns.cell[1]],
                                     row[columns.cell[2]], row[columns.cell[3]], columns.weight);
      }
      const math::Peak<T> here{
          math::weighted(enlarged[0], enlarged[1], enlarged[2], enlarged[3], rows.weight), i};
      if (peak.below(here)) peak = here;
    }
    peaks[self] = peak;
    __syncthreads();
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (self < step && peaks[self].below(peaks[self + step])) peaks[self] = peaks[self + step];
      __syncthreads();
    }
    if (self == 0) {
      keypoints[3 * n] = across.at(peaks[0].pixel % across.pixels);
      keypoints[3 * n + 1] = down.at(peaks[0].pixel / across.pixels);
      keypoints[3 * n + 2] = 1;
      scores[n] = peaks[0].value;
    }
    __syncthreads();
  }
}

}  // namespace

void heatmaps_to_keypoints(const Tensor& maps, const Tensor& boxes, Tensor& keypoints,
                           Tensor& scores) {
  const ScalarType type = compute_type(maps, boxes);
  const Tensor cells = as_type(maps, type).contiguous(), box = as_type(boxes, type).contiguous();
  const Tensor places = as_type(keypoints, type), values = as_type(scores, type);
  const int64_t count = maps.size(0) * maps.size(1);
  DETOPS_WIDE_SWITCH(type, [&] {
    launch("heatmaps_to_keypoints", heatmaps_to_keypoints_kernel<scalar_t>, blocks_for(count, 1),
           cells.const_data_ptr<scalar_t>(), box.const_data_ptr<scalar_t>(), count, maps.size(1),
           maps.size(2), maps.size(3), places.mutable_data_ptr<scalar_t>(),
           values.mutable_data_ptr<scalar_t>());
  });
  if (!places.is_same(keypoints)) keypoints.copy_(places);
  if (!values.is_same(scores)) scores.copy_(values);
}

}  // namespace detops::cuda
