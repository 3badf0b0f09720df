// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "rotated_boxes.cuh"

namespace detops::cuda {
namespace {

template <math::Base base, typename T>
__global__ void box_iou_rotated_kernel(const RotatedBox* a, int64_t n, const RotatedBox* b,
                                       int64_t m, T* out) {
  DETOPS_FOR_EACH(i, n * m) {
    const double iou = math::rotated::iou<base>(a[i / m], b[i % m]);
    out[i] = iou == iou ? static_cast<T>(iou) : T(0);
  }
}

}  // namespace

void box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                     Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const Tensor a = rotated_boxes<scalar_t>(lists.first),
                 b = rotated_boxes<scalar_t>(lists.second);
    math::with_base(overlap_base(mode), [&](auto base) {
      launch("box_iou_rotated", box_iou_rotated_kernel<decltype(base)::value, scalar_t>,
             blocks_for(output.numel()),
             reinterpret_cast<const RotatedBox*>(a.const_data_ptr<double>()), a.size(0),
             reinterpret_cast<const RotatedBox*>(b.const_data_ptr<double>()), b.size(0),
             output.mutable_data_ptr<scalar_t>());
    });
  });
}

}  // namespace detops::cuda
