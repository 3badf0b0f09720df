// SPDX-License-Identifier: MIT
#include "../../math/heatmaps_to_keypoints.h"

#include "../common/block.cuh"

namespace detops::cuda {
namespace {

// One block per heatmap. A thread handles every kThreads-th pixel.
template <typename T>
__global__ void heatmaps_to_keypoints_kernel(FeatureMaps maps, const T* cells, const T* boxes,
                                             T* keypoints, T* scores) {
  __shared__ math::Peak<T> warp_peaks[kThreads / kWarp];
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t n = blockIdx.x; n < maps.n * maps.c; n += gridDim.x) {
    const T* box = boxes + 4 * (n / maps.c);
    const math::HeatmapAxis<T> across(box[0], box[2], maps.w), down(box[1], box[3], maps.h);
    math::Peak<T> peak{-std::numeric_limits<T>::infinity(), across.pixels * down.pixels};
    for (int64_t i = self; i < across.pixels * down.pixels; i += kThreads) {
      const math::CubicTaps<T> rows(down, i / across.pixels), columns(across, i % across.pixels);
      T resized[4];
      for (int k = 0; k < 4; ++k) {
        const T* row = cells + (n * maps.h + rows.cell[k]) * maps.w;
        resized[k] = math::weighted(row[columns.cell[0]], row[columns.cell[1]],
                                    row[columns.cell[2]], row[columns.cell[3]], columns.weight);
      }
      peak.add({math::weighted(resized[0], resized[1], resized[2], resized[3], rows.weight), i});
    }
    peak = reduce_block(peak, warp_peaks);
    if (self == 0) {
      keypoints[3 * n] = across.at(peak.pixel % across.pixels);
      keypoints[3 * n + 1] = down.at(peak.pixel / across.pixels);
      keypoints[3 * n + 2] = 1;
      scores[n] = peak.value;
    }
    __syncthreads();
  }
}

}  // namespace

void heatmaps_to_keypoints(const Tensor& maps, const Tensor& boxes, Tensor& keypoints,
                           Tensor& scores) {
  const ScalarType type = compute_type(maps, boxes);
  const Tensor cells = wide(maps, type), box = wide(boxes, type);
  DETOPS_WIDE_SWITCH(type, [&] {
    launch(heatmaps_to_keypoints_kernel<scalar_t>, blocks_for(scores.numel(), 1), maps_of(cells),
           cells, box, keypoints, scores);
  });
}

}  // namespace detops::cuda
