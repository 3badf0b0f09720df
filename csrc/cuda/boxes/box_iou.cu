// SPDX-License-Identifier: MIT
#include "../../host/box_lists.h"
#include "../../math/overlap.h"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

constexpr int kColumns = 4, kRows = 16;  // per thread, which keeps its column boxes

template <math::Overlap kind, typename T>
__global__ void box_iou_kernel(const math::Box<T>* a, int64_t n, const math::Box<T>* b, int64_t m,
                               T eps, T* out) {
  const Lanes lanes(ceil_div(m, kColumns));
  if (lanes.idle) return;
  const int64_t width = int64_t(lanes.count) * kColumns, height = int64_t(lanes.rows) * kRows;
  const int64_t parts = ceil_div(m, width);
  for (int64_t part = blockIdx.x; part < parts * ceil_div(n, height); part += gridDim.x) {
    const int64_t left = part % parts * width + lanes.lane, top = part / parts * height;
    math::OverlapBox<T> boxes[kColumns];
    for (int k = 0; k < kColumns; ++k) {
      const int64_t column = left + k * lanes.count;
      if (column < m) boxes[k] = math::overlap_box<kind>(b[column]);
    }
    for (int64_t row = top + lanes.row; row < math::min(n, top + height); row += lanes.rows) {
      const math::OverlapBox<T> row_box = math::overlap_box<kind>(a[row]);
      for (int k = 0; k < kColumns; ++k) {
        const int64_t column = left + k * lanes.count;
        if (column < m) {
          out[row * m + column] = math::pairwise::overlap<kind, T>(row_box, boxes[k], eps);
        }
      }
    }
  }
}

// One thread owns a box and adds its pairs in order: no atomics, the same bits every run.
template <math::Overlap kind, bool swapped, typename T>
__global__ void box_iou_rows_kernel(const T* grad, int64_t stride_row, int64_t stride_col,
                                    const math::Box<T>* a, int64_t n, const math::Box<T>* b,
                                    int64_t m, T eps, math::Box<T>* grad_a) {
  DETOPS_FOR_EACH(i, n) {
    const math::OverlapBox<T> box = math::overlap_box<kind>(a[i]);
    math::Box<T> sum{};
    for (int64_t j = 0; j < m; ++j) {
      math::overlap_gradient<kind, swapped>(box, math::overlap_box<kind>(b[j]), eps,
                                            grad[i * stride_row + j * stride_col], sum);
    }
    grad_a[i] = sum;
  }
}

// Overlaps of matched boxes, or their losses.
template <math::Overlap kind, bool loss, typename T>
__global__ void box_pairs_kernel(const math::Box<T>* a, const math::Box<T>* b, int64_t count, T eps,
                                 T* values) {
  DETOPS_FOR_EACH(i, count) {
    const auto first = math::overlap_box<kind>(a[i]), second = math::overlap_box<kind>(b[i]);
    values[i] = loss ? math::pairwise::overlap_loss<kind, T>(first, second, eps)
                     : math::pairwise::overlap<kind, T>(first, second, eps);
  }
}

template <math::Overlap kind, bool loss, typename T>
__global__ void box_pairs_backward_kernel(const T* grad, const math::Box<T>* a,
                                          const math::Box<T>* b, int64_t count, T eps,
                                          math::Box<T>* grad_a, math::Box<T>* grad_b) {
  DETOPS_FOR_EACH(i, count) {
    const auto first = math::overlap_box<kind>(a[i]), second = math::overlap_box<kind>(b[i]);
    math::Box<T> da{}, db{};
    if constexpr (loss) {
      math::pairwise::overlap_loss_gradient<kind, T>(first, second, eps, grad[i], da, db);
    } else {
      math::pairwise::overlap_gradient<kind, T>(first, second, eps, grad[i], da, db);
    }
    grad_a[i] = da;
    grad_b[i] = db;
  }
}

template <bool loss>
void forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
             const Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      launch(box_pairs_kernel<constant, loss, scalar_t>, blocks_for(output.numel()), lists.first,
             lists.second, output.numel(), eps, output);
    });
  });
}

template <bool loss>
void backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
              double eps, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      launch(box_pairs_backward_kernel<constant, loss, scalar_t>, blocks_for(grad.numel()),
             lists.grad, lists.first, lists.second, grad.numel(), eps, grad1, grad2);
    });
  });
}

}  // namespace

void box_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
                     Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      launch(box_iou_kernel<constant, scalar_t>,
             blocks_for(output.numel(), kThreads * kColumns * kRows), lists.first,
             lists.first.size(0), lists.second, lists.second.size(0), eps, output);
    });
  });
}

void box_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                      std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2);
  const int64_t n = boxes1.size(0), m = boxes2.size(0);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      launch(box_iou_rows_kernel<constant, false, scalar_t>, blocks_for(n), lists.grad, m, 1,
             lists.first, n, lists.second, m, eps, grad1);
      launch(box_iou_rows_kernel<constant, true, scalar_t>, blocks_for(m), lists.grad, 1, m,
             lists.second, m, lists.first, n, eps, grad2);
    });
  });
}

void match_boxes(const Tensor& boxes1, const Tensor& boxes2, Tensor& best, Tensor& index) {
  const BoxLists lists(boxes1, boxes2, best.scalar_type());
  DETOPS_WIDE_SWITCH(best.scalar_type(), [&] {
    using T = scalar_t;
    const math::Box<T>*a = elements(lists.first), *b = elements(lists.second);
    const int64_t m = boxes2.size(0);
    T* to = elements(best);
    int64_t* to_index = elements(index);
    for_each(boxes1.size(0), [=] __device__(int64_t i) {
      constexpr auto kIoU = math::Overlap::kIoU;
      const math::OverlapBox<T> box = math::overlap_box<kIoU>(a[i]);
      T max_iou = m == 0 ? 0 : -1;
      int64_t max_index = m == 0 ? -1 : 0;
      for (int64_t j = 0; j < m; ++j) {
        const T iou = math::pairwise::overlap<kIoU, T>(box, math::overlap_box<kIoU>(b[j]), T(0));
        if (iou > max_iou) max_iou = iou, max_index = j;
      }
      to[i] = max_iou;
      to_index[i] = max_index;
    });
  });
}

#include "../../host/matched_overlaps.inl"

}  // namespace detops::cuda
