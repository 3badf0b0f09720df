// SPDX-License-Identifier: MIT
#include "../../host/box_lists.h"
#include "../common/box_columns.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../boxes/box_iou.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Minimum number of pairs per thread: for a matrix, and for lists.
constexpr int64_t kPairsPerThread = 1 << 15, kMatchedPairsPerThread = 1 << 13;

// Calls visit(i, box, columns) for each box of the first list, with the second list as columns.
template <math::Overlap kind, typename T, typename Visit>
void for_each_row(const BoxLists& lists, const Visit& visit) {
  const int64_t m = lists.second.size(0);
  const auto *boxes = rows<math::Box, T>(lists.first), *others = rows<math::Box, T>(lists.second);
  const BoxColumns<T> columns(m);
  for (int64_t j = 0; j < m; ++j) {
    columns.set(j, others[j]);
    columns.extra[j] = math::overlap_box<kind>(others[j]).angle;
  }
  parallel_each(lists.first.size(0), grain_for(kPairsPerThread, m),
                [&](int64_t i) { visit(i, math::overlap_box<kind>(boxes[i]), columns); });
}

template <math::Overlap kind, typename T>
Buffer<math::OverlapBox<T>> overlap_boxes(const Tensor& boxes) {
  const auto* box = rows<math::Box, T>(boxes);
  Buffer<math::OverlapBox<T>> result(boxes.size(0));
  for (int64_t i = 0; i < boxes.size(0); ++i) result[i] = math::overlap_box<kind>(box[i]);
  return result;
}

// Sets grad_a[i] to the sum over j of grad(i, j) * d overlap(a[i], b[j]) / d a[i], or with
// `swapped` of overlap(b[j], a[i]). One thread owns each row. Sums are doubles, because the
// contributions of thousands of pairs in a row can cancel.
template <math::Overlap kind, bool swapped, typename T>
void row_gradients(const T* grad, int64_t stride_row, int64_t stride_col,
                   const Buffer<math::OverlapBox<T>>& a, int64_t n,
                   const Buffer<math::OverlapBox<T>>& b, int64_t m, T eps, math::Box<T>* grad_a) {
  parallel_each(n, grain_for(kPairsPerThread, m), [&](int64_t i) {
    math::Box<double> sum{};
    for (int64_t j = 0; j < m; ++j) {
      const T outer = grad[i * stride_row + j * stride_col];
      math::overlap_gradient<kind, swapped>(a[i], b[j], eps, outer, sum);
    }
    grad_a[i] = {T(sum.x1), T(sum.y1), T(sum.x2), T(sum.y2)};
  });
}

// Computes the overlaps of matched boxes, or their losses.
template <bool loss>
void forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
             Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const auto *a = elements<scalar_t>(lists.first), *b = elements<scalar_t>(lists.second);
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      const auto kernel =
          DETOPS_IN_USE(box_pairs_forward<decltype(constant)::value, loss, scalar_t>);
      parallel_for(output.numel(), kMatchedPairsPerThread, [&](int64_t begin, int64_t end) {
        kernel(a + 4 * begin, b + 4 * begin, end - begin, scalar_t(eps), out + begin);
      });
    });
  });
}

template <bool loss>
void backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
              double eps, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    const scalar_t* g = lists.grad.const_data_ptr<scalar_t>();
    const auto *a = elements<scalar_t>(lists.first), *b = elements<scalar_t>(lists.second);
    scalar_t* to_a = grad1.mutable_data_ptr<scalar_t>();
    scalar_t* to_b = grad2.mutable_data_ptr<scalar_t>();
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      const auto kernel =
          DETOPS_IN_USE(box_pairs_backward<decltype(constant)::value, loss, scalar_t>);
      parallel_for(lists.grad.numel(), kMatchedPairsPerThread, [&](int64_t begin, int64_t end) {
        kernel(g + begin, a + 4 * begin, b + 4 * begin, end - begin, scalar_t(eps),
               to_a + 4 * begin, to_b + 4 * begin);
      });
    });
  });
}

}  // namespace

void box_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
                     Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const int64_t m = lists.second.size(0);
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      constexpr math::Overlap kKind = decltype(constant)::value;
      const auto row = DETOPS_IN_USE(overlap_row<kKind, scalar_t>);
      for_each_row<kKind, scalar_t>(lists, [&](int64_t i, const auto& box, const auto& columns) {
        row(box, columns, m, static_cast<scalar_t>(eps), out + i * m);
      });
    });
  });
}

void box_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                      std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2);
  const int64_t n = boxes1.size(0), m = boxes2.size(0);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      constexpr math::Overlap kKind = decltype(constant)::value;
      const auto a = overlap_boxes<kKind, scalar_t>(lists.first);
      const auto b = overlap_boxes<kKind, scalar_t>(lists.second);
      const scalar_t* g = lists.grad.const_data_ptr<scalar_t>();
      const auto typed_eps = static_cast<scalar_t>(eps);
      auto* grad_a = mutable_rows<math::Box, scalar_t>(grad1);
      auto* grad_b = mutable_rows<math::Box, scalar_t>(grad2);
      row_gradients<kKind, false>(g, m, 1, a, n, b, m, typed_eps, grad_a);
      row_gradients<kKind, true>(g, 1, m, b, m, a, n, typed_eps, grad_b);
    });
  });
}

void match_boxes(const Tensor& boxes1, const Tensor& boxes2, Tensor& best, Tensor& index) {
  const BoxLists lists(boxes1, boxes2, best.scalar_type());
  const int64_t m = lists.second.size(0);
  if (m == 0) {
    best.zero_();
    index.fill_(-1);
    return;
  }
  int64_t* indices = index.mutable_data_ptr<int64_t>();
  DETOPS_WIDE_SWITCH(best.scalar_type(), [&] {
    scalar_t* max_ious = best.mutable_data_ptr<scalar_t>();
    const auto kernel = DETOPS_IN_USE(overlap_best<scalar_t>);
    const auto match = [&](int64_t i, const auto& box, const auto& columns) {
      indices[i] = kernel(box, columns, m, max_ious[i]);
    };
    for_each_row<math::Overlap::kIoU, scalar_t>(lists, match);
  });
}

#include "../../host/matched_overlaps.inl"

}  // namespace detops::cpu
