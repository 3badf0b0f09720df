// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../../math/polygon.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

template <math::Base base, typename T>
__global__ void box_iou_quadri_kernel(const T* a, int64_t n, const T* b, int64_t m, T* out) {
  DETOPS_FOR_EACH(i, n * m) {
    const double iou = math::iou<base>(math::quad(a + 8 * (i / m)), math::quad(b + 8 * (i % m)));
    out[i] = iou == iou ? static_cast<T>(iou) : T(0);
  }
}

template <math::Base base, typename T>
__global__ void box_iou_quadri_pairs_kernel(const T* a, const T* b, int64_t count, T* out) {
  DETOPS_FOR_EACH(i, count) {
    const double iou = math::iou<base>(math::quad(a + 8 * i), math::quad(b + 8 * i));
    out[i] = iou == iou ? static_cast<T>(iou) : T(0);
  }
}

}  // namespace

void box_iou_quadri(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                    Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    math::with_base(overlap_base(mode), [&](auto base) {
      launch("box_iou_quadri", box_iou_quadri_kernel<decltype(base)::value, scalar_t>,
             blocks_for(output.numel()), lists.first.const_data_ptr<scalar_t>(),
             lists.first.size(0), lists.second.const_data_ptr<scalar_t>(), lists.second.size(0),
             output.mutable_data_ptr<scalar_t>());
    });
  });
}

void box_iou_quadri_pairs(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                          Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    math::with_base(overlap_base(mode), [&](auto base) {
      launch("box_iou_quadri", box_iou_quadri_pairs_kernel<decltype(base)::value, scalar_t>,
             blocks_for(output.numel()), lists.first.const_data_ptr<scalar_t>(),
             lists.second.const_data_ptr<scalar_t>(), output.numel(),
             output.mutable_data_ptr<scalar_t>());
    });
  });
}

}  // namespace detops::cuda
