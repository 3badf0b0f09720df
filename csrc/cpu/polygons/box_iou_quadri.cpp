// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../common/memory.h"
#include "bounds.h"

namespace detops::cpu {
namespace {

// Calls use(overlap) with the function of two quadrilaterals that the mode names.
template <typename Use>
void with_overlap(std::string_view mode, const Use& use) {
  math::with_base(overlap_base(mode), [&](auto base) {
    use([](const math::Quad& a, const math::Quad& b) {
      return math::iou<decltype(base)::value>(a, b);
    });
  });
}

}  // namespace

void box_iou_quadri(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                    Tensor& output) {
  expect_writes(output);
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    with_overlap(mode, [&](const auto& overlap) {
      overlap_with_quads(b, output, [&](int64_t i) { return bounded_quad(a + 8 * i); }, overlap);
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
    with_overlap(mode, [&](const auto& overlap) {
      parallel_for(0, output.numel(), kPairsPerThread, [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          out[i] =
              bounded_overlap<scalar_t>(bounded_quad(a + 8 * i), bounded_quad(b + 8 * i), overlap);
        }
      });
    });
  });
}

}  // namespace detops::cpu
