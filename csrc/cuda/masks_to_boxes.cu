// SPDX-License-Identifier: MIT
#include <ATen/Dispatch_v2.h>

#include "../math/host_device.h"
#include "../ops.h"
#include "launch.cuh"

namespace detops::cuda {
namespace {

constexpr int kWarps = 16;

// A block per mask, a warp per row.
template <typename T>
__global__ void masks_to_boxes_kernel(const T* masks, int64_t count, int64_t height, int64_t width,
                                      float* boxes) {
  __shared__ int64_t shared[4][kWarp * kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    int64_t x1 = width, y1 = height, x2 = -1, y2 = -1;
    for (int64_t y = warp; y < height; y += kWarps) {
      const T* row = masks + (n * height + y) * width;
      for (int64_t x = lane; x < width; x += kWarp) {
        if (row[x] == T(0)) continue;
        x1 = math::min(x1, x);
        x2 = math::max(x2, x);
        y1 = math::min(y1, y);
        y2 = y;
      }
    }
    shared[0][threadIdx.x] = x1;
    shared[1][threadIdx.x] = y1;
    shared[2][threadIdx.x] = x2;
    shared[3][threadIdx.x] = y2;
    __syncthreads();
    if (threadIdx.x < 4) {
      const bool low = threadIdx.x < 2;
      int64_t side = shared[threadIdx.x][0];
      for (int i = 1; i < kWarp * kWarps; ++i) {
        const int64_t other = shared[threadIdx.x][i];
        side = low ? math::min(side, other) : math::max(side, other);
      }
      const int64_t size = threadIdx.x % 2 == 0 ? width : height;
      boxes[4 * n + threadIdx.x] = side < 0 || side == size ? 0.0f : static_cast<float>(side);
    }
    __syncthreads();
  }
}

}  // namespace

Tensor masks_to_boxes(const Tensor& masks) {
  const at::cuda::OptionalCUDAGuard guard(masks.device());
  Tensor output = meta::masks_to_boxes(masks);
  if (masks.numel() == 0) return output.zero_();
  const Tensor rows = masks.contiguous();
  AT_DISPATCH_V2(rows.scalar_type(), "detops.masks_to_boxes", AT_WRAP([&] {
                   launch("masks_to_boxes", masks_to_boxes_kernel<scalar_t>,
                          {blocks_for(rows.size(0), 1), kWarp * kWarps},
                          rows.const_data_ptr<scalar_t>(), rows.size(0), rows.size(1), rows.size(2),
                          output.mutable_data_ptr<float>());
                 }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool,
                 at::kHalf, at::kBFloat16);
  return output;
}

}  // namespace detops::cuda
