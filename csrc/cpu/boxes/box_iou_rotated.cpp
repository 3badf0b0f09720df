// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../common/memory.h"
#include "rotated_boxes.h"

namespace detops::cpu {

struct RotatedList {
  const RotatedBox* boxes;
  NmsBoxes<float> bounds;
  int64_t count;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../boxes/box_iou_rotated.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 14;

template <typename T>
Buffer<RotatedBox> rotated_boxes(const T* boxes, int64_t count) {
  Buffer<RotatedBox> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = math::rotated_box(boxes + 5 * i);
  return result;
}

}  // namespace

void box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                     Tensor& output) {
  expect_writes(output);
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const int64_t n = lists.first.size(0), m = lists.second.size(0);
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const auto rows = rotated_boxes(lists.first.const_data_ptr<scalar_t>(), n);
    const auto columns = rotated_boxes(lists.second.const_data_ptr<scalar_t>(), m);
    BoundsList storage;
    const NmsBoxes<float> bounds = storage.reserve(m);
    for (int64_t j = 0; j < m; ++j) put(bounds, j, rotated_bounds(columns[j], 0));
    const RotatedList others{columns.data(), bounds, m};
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    const int64_t grain = std::max<int64_t>(1, kPairsPerThread / m);
    math::with_base(overlap_base(mode), [&](auto base) {
      const auto row = DETOPS_IN_USE(rotated_iou_row<decltype(base)::value, scalar_t>);
      parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          row(rows[i], rotated_bounds(rows[i], 0), others, out + i * m);
        }
      });
    });
  });
}

}  // namespace detops::cpu
