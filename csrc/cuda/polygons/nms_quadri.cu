// SPDX-License-Identifier: MIT
#include "../../math/polygon.h"
#include "../nms/nms.cuh"

namespace detops::cuda {
namespace {

// T is the type that an IoU is rounded to.
template <typename T>
struct QuadTest {
  using Item = math::Quad;
  const Item* boxes;  // [N], score descending
  double threshold;

  __device__ Item item(int64_t place) const { return boxes[place]; }
  __device__ bool operator()(const Item& by, const Item& box) const {
    return math::suppresses<T>(by, box, threshold);
  }
};

template <typename T>
__global__ void quads_kernel(const T* corners, int64_t count, math::Quad* quads) {
  DETOPS_FOR_EACH(i, count) { quads[i] = math::quad(corners + 8 * i); }
}

}  // namespace

Tensor nms_quadri(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const Tensor order = selection_order(scores);
  const Tensor sorted = index_select(boxes.to(compute_type(boxes.scalar_type())), order);
  const Tensor prepared = empty(sorted.sizes(), sorted.options().dtype(kDouble));
  auto* quads = reinterpret_cast<math::Quad*>(prepared.mutable_data_ptr<double>());
  return DETOPS_WIDE_SWITCH(sorted.scalar_type(), [&] {
    launch("nms_quadri", quads_kernel<scalar_t>, blocks_for(sorted.size(0)),
           sorted.const_data_ptr<scalar_t>(), sorted.size(0), quads);
    return without_padding(select_boxes("nms_quadri", order,
                                        QuadTest<scalar_t>{quads, iou_threshold},
                                        {scores, nullptr, std::nullopt, boxes.size(0)}));
  });
}

}  // namespace detops::cuda
