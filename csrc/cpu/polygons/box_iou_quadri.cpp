// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../common/memory.h"
#include "bounds.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 10;

// 0 where there is no value.
template <math::Base base, typename T>
T overlap(const BoundedQuad& a, const BoundedQuad& b) {
  const double iou = can_meet(a.bounds, b.bounds) ? math::iou<base>(a.quad, b.quad) : 0;
  return iou == iou ? static_cast<T>(iou) : T(0);
}

}  // namespace

void box_iou_quadri(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                    Tensor& output) {
  expect_writes(output);
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const int64_t n = lists.first.size(0), m = lists.second.size(0);
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const auto others = bounded_quads(lists.second.const_data_ptr<scalar_t>(), m);
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    const int64_t grain = std::max<int64_t>(1, kPairsPerThread / m);
    math::with_base(overlap_base(mode), [&](auto base) {
      parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const BoundedQuad box = bounded_quad(a + 8 * i);
          for (int64_t j = 0; j < m; ++j) {
            out[i * m + j] = overlap<decltype(base)::value, scalar_t>(box, others[j]);
          }
        }
      });
    });
  });
}

void box_iou_quadri_pairs(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                          Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    math::with_base(overlap_base(mode), [&](auto base) {
      parallel_for(0, output.numel(), kPairsPerThread, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          out[i] = overlap<decltype(base)::value, scalar_t>(bounded_quad(a + 8 * i),
                                                            bounded_quad(b + 8 * i));
        }
      });
    });
  });
}

}  // namespace detops::cpu
