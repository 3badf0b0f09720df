// SPDX-License-Identifier: MIT
#include "../../host/strided_layout.h"
#include "../../math/box.h"
#include "../common/block.cuh"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

constexpr int kMaskThreads = 1024;

// Bounding box of the pixels seen so far.
struct Extent {
  int64_t x1, y1, x2, y2;

  __device__ void add(const Extent& o) {
    x1 = math::min(x1, o.x1);
    y1 = math::min(y1, o.y1);
    x2 = math::max(x2, o.x2);
    y2 = math::max(y2, o.y2);
  }
};

// One block per mask. It loads 16 bytes at a time, regardless of where rows begin.
template <typename T>
__global__ void __launch_bounds__(kMaskThreads)
    masks_to_boxes_kernel(const T* masks, T significant, int64_t count, int64_t height,
                          int64_t width, math::Box<float>* boxes) {
  __shared__ Extent warp_extents[kMaskThreads / kWarp];
  constexpr int kVectorSize = 16 / sizeof(T);
  const int self = static_cast<int>(threadIdx.x);
  const int64_t pixels = height * width;
  for (int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    const T* mask = masks + n * pixels;
    Extent extent{width, height, -1, -1};
    const auto scan = [&](int64_t i, int length) {
      int64_t y = i / width, x = i - y * width;
      for (int j = 0; j < length; ++j) {
        if ((mask[i + j] & significant) != 0) extent.add({x, y, x, y});
        if (++x == width) x = 0, ++y;
      }
    };
    const auto misalignment =
        static_cast<int>(reinterpret_cast<uintptr_t>(mask) / sizeof(T) % kVectorSize);
    const int64_t head = math::min<int64_t>((kVectorSize - misalignment) % kVectorSize, pixels);
    const int64_t vectors = (pixels - head) / kVectorSize, tail = head + vectors * kVectorSize;
    for (int64_t i = self; i < head; i += kMaskThreads) scan(i, 1);
    for (int64_t v = self; v < vectors; v += kMaskThreads) {
      const int64_t i = head + v * kVectorSize;
      const auto bits = load<2>(reinterpret_cast<const uint64_t*>(mask + i));
      if ((bits.at[0] | bits.at[1]) != 0) scan(i, kVectorSize);
    }
    for (int64_t i = tail + self; i < pixels; i += kMaskThreads) scan(i, 1);

    extent = reduce_block(extent, warp_extents);
    if (self == 0) {
      if (extent.x2 < 0) extent = {0, 0, 0, 0};  // an empty mask
      boxes[n] = {float(extent.x1), float(extent.y1), float(extent.x2), float(extent.y2)};
    }
    __syncthreads();
  }
}

}  // namespace

void masks_to_boxes(const Tensor& masks, Tensor& boxes) {
  const Tensor rows = masks.contiguous();
  with_element(rows, [&](auto element) {
    using Bits = decltype(element);
    if constexpr (std::is_integral_v<Bits>) {
      launch(masks_to_boxes_kernel<Bits>, {blocks_for(rows.size(0), 1), kMaskThreads},
             static_cast<const Bits*>(rows.const_data_ptr()), significant_bits(rows.scalar_type()),
             rows.size(0), rows.size(1), rows.size(2), boxes);
    }
  });
}

}  // namespace detops::cuda
