// SPDX-License-Identifier: MIT
#include "../../math/overlap.h"
#include "../../ops.h"
#include "../common/launch.cuh"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

constexpr int kPairs = 4;  // of a thread, which divides once for them

template <math::Overlap kind, typename T>
__global__ void box_iou_kernel(const math::Box<T>* a, int64_t n, const math::Box<T>* b, int64_t m,
                               T eps, T* out) {
  for_each_vector<kPairs>(n * m, [&](int64_t i, auto k) {
    int64_t row = i / m, column = i - row * m;
    Vector<T, k> overlaps;
    for (int j = 0; j < k; ++j) {
      overlaps.at[j] = math::pairwise::overlap<kind, T>(math::overlap_box<kind>(a[row]),
                                                        math::overlap_box<kind>(b[column]), eps);
      if (++column == m) column = 0, ++row;
    }
    store(out + i, overlaps);
  });
}

// One thread owns a box and adds its pairs in order: no atomics, the same bits every run.
template <math::Overlap kind, bool swapped, typename T>
__global__ void box_iou_rows_kernel(const T* grad, int64_t stride_row, int64_t stride_col,
                                    const math::Box<T>* a, int64_t n, const math::Box<T>* b,
                                    int64_t m, T eps, math::Box<T>* grad_a) {
  DETOPS_FOR_EACH(i, n) {
    const math::OverlapBox<T> own = math::overlap_box<kind>(a[i]);
    math::Box<T> sum{};
    for (int64_t j = 0; j < m; ++j) {
      math::overlap_gradient<kind, swapped>(own, math::overlap_box<kind>(b[j]), eps,
                                            grad[i * stride_row + j * stride_col], sum);
    }
    grad_a[i] = sum;
  }
}

template <typename T>
__global__ void match_boxes_kernel(const math::Box<T>* a, int64_t n, const math::Box<T>* b,
                                   int64_t m, T* best, int64_t* index) {
  constexpr auto kIoU = math::Overlap::kIoU;
  DETOPS_FOR_EACH(i, n) {
    const math::OverlapBox<T> own = math::overlap_box<kIoU>(a[i]);
    T most = -1;
    int64_t where = 0;
    for (int64_t j = 0; j < m; ++j) {
      const T iou = math::pairwise::overlap<kIoU, T>(own, math::overlap_box<kIoU>(b[j]), T(0));
      if (iou > most) most = iou, where = j;
    }
    best[i] = most;
    index[i] = where;
  }
}

template <math::Overlap kind, typename T>
void launch_forward(const Tensor& first, const Tensor& second, double eps, Tensor& output) {
  using Box = math::Box<T>;
  launch("box_iou", box_iou_kernel<kind, T>, blocks_for(output.numel(), kThreads * kPairs),
         reinterpret_cast<const Box*>(first.const_data_ptr<T>()), first.size(0),
         reinterpret_cast<const Box*>(second.const_data_ptr<T>()), second.size(0),
         static_cast<T>(eps), output.mutable_data_ptr<T>());
}

template <math::Overlap kind, bool swapped, typename T>
void launch_rows(const Tensor& grad, int64_t stride_row, int64_t stride_col, const Tensor& a,
                 const Tensor& b, double eps, const Tensor& grad_a) {
  using Box = math::Box<T>;
  launch("box_iou", box_iou_rows_kernel<kind, swapped, T>, blocks_for(a.size(0)),
         grad.const_data_ptr<T>(), stride_row, stride_col,
         reinterpret_cast<const Box*>(a.const_data_ptr<T>()), a.size(0),
         reinterpret_cast<const Box*>(b.const_data_ptr<T>()), b.size(0), static_cast<T>(eps),
         reinterpret_cast<Box*>(grad_a.mutable_data_ptr<T>()));
}

}  // namespace

void box_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
                     Tensor& output) {
  const Tensor first = boxes1.to(output.scalar_type()).contiguous();
  const Tensor second = boxes2.to(output.scalar_type()).contiguous();
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      launch_forward<constant, scalar_t>(first, second, eps, output);
    });
  });
}

void box_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                      std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  const ScalarType type = compute_type(promoted_type(boxes1.scalar_type(), boxes2.scalar_type()));
  const Tensor first = boxes1.to(type).contiguous(), second = boxes2.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_first = zeros_like(first), to_second = zeros_like(second);
  const int64_t m = second.size(0);
  if (outer.numel() > 0) {
    DETOPS_WIDE_SWITCH(type, [&] {
      math::with_kind(overlap_kind(kind), [&](auto constant) {
        constexpr math::Overlap kKind = constant;
        launch_rows<kKind, false, scalar_t>(outer, m, 1, first, second, eps, to_first);
        launch_rows<kKind, true, scalar_t>(outer, 1, m, second, first, eps, to_second);
      });
    });
  }
  grad1.copy_(to_first);
  grad2.copy_(to_second);
}

void match_boxes(const Tensor& boxes1, const Tensor& boxes2, Tensor& best, Tensor& index) {
  const int64_t n = boxes1.size(0), m = boxes2.size(0);
  if (m == 0) {
    best.zero_();
    index.fill_(-1);
    return;
  }
  const Tensor first = boxes1.to(best.scalar_type()).contiguous();
  const Tensor second = boxes2.to(best.scalar_type()).contiguous();
  DETOPS_WIDE_SWITCH(best.scalar_type(), [&] {
    using Box = math::Box<scalar_t>;
    launch("match_boxes", match_boxes_kernel<scalar_t>, blocks_for(n),
           reinterpret_cast<const Box*>(first.const_data_ptr<scalar_t>()), n,
           reinterpret_cast<const Box*>(second.const_data_ptr<scalar_t>()), m,
           best.mutable_data_ptr<scalar_t>(), index.mutable_data_ptr<int64_t>());
  });
}

}  // namespace detops::cuda
