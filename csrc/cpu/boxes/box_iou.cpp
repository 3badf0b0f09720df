// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/memory.h"

namespace detops::cpu {

// Boxes as a structure of arrays, with empty boxes after the last up to a whole vector.
template <typename T>
struct OverlapBoxes {
  const T *x1, *y1, *x2, *y2, *area, *angle;
  int64_t count;
};
constexpr int64_t kOverlapPadding = 16;

}  // namespace detops::cpu

#define DETOPS_KERNELS "../boxes/box_iou.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 15;

int64_t row_grain(int64_t columns) {
  return std::max<int64_t>(1, kPairsPerThread / std::max<int64_t>(1, columns));
}

template <math::Overlap kind, typename T>
math::OverlapBox<T> overlap_box(const T* b) {
  return math::overlap_box<kind>(math::Box<T>{b[0], b[1], b[2], b[3]});
}

template <math::Overlap kind, typename T>
Buffer<math::OverlapBox<T>> overlap_boxes(const T* boxes, int64_t count) {
  Buffer<math::OverlapBox<T>> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = overlap_box<kind>(boxes + 4 * i);
  return result;
}

// Owns what an OverlapBoxes points at.
template <math::Overlap kind, typename T>
class BoxColumns {
 public:
  BoxColumns(const T* boxes, int64_t count) : count_(count), stride_(count + kOverlapPadding) {
    T* x1 = data_.reserve(6 * stride_);
    std::fill(x1, x1 + 6 * stride_, T(0));
    for (int64_t i = 0; i < count; ++i) {
      const T* b = boxes + 4 * i;
      const auto box = overlap_box<kind>(b);
      for (int64_t side = 0; side < 4; ++side) x1[side * stride_ + i] = b[side];
      x1[4 * stride_ + i] = box.area;
      x1[5 * stride_ + i] = box.angle;
    }
  }

  OverlapBoxes<T> view() const {
    const T* x1 = data_.data();
    return {
        x1,    x1 + stride_, x1 + 2 * stride_, x1 + 3 * stride_, x1 + 4 * stride_, x1 + 5 * stride_,
        count_};
  }

 private:
  int64_t count_, stride_;
  Buffer<T> data_;
};

// grad_a[i] is the sum over j of grad(i, j) * d overlap(a[i], b[j]) / d a[i], or with `swapped` of
// overlap(b[j], a[i]): one owner per row.
template <math::Overlap kind, bool swapped, typename T>
void gradient_of_rows(const T* grad, int64_t stride_row, int64_t stride_col,
                      const Buffer<math::OverlapBox<T>>& a, int64_t n,
                      const Buffer<math::OverlapBox<T>>& b, int64_t m, T eps, T* grad_a) {
  parallel_for(0, n, row_grain(m), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      math::Box<T> sum{};
      for (int64_t j = 0; j < m; ++j) {
        const T outer = grad[i * stride_row + j * stride_col];
        math::overlap_gradient<kind, swapped>(a[i], b[j], eps, outer, sum);
      }
      const T sides[4] = {sum.x1, sum.y1, sum.x2, sum.y2};
      std::copy(sides, sides + 4, grad_a + 4 * i);
    }
  });
}

}  // namespace

void box_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
                     Tensor& output) {
  expect_writes(output);
  const Tensor first = as_type(boxes1, output.scalar_type()).contiguous();
  const Tensor second = as_type(boxes2, output.scalar_type()).contiguous();
  const int64_t n = first.size(0), m = second.size(0);
  const math::Overlap which = overlap_kind(kind);
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    math::with_kind(which, [&](auto constant) {
      constexpr math::Overlap kKind = decltype(constant)::value;
      const scalar_t* boxes = first.const_data_ptr<scalar_t>();
      const BoxColumns<kKind, scalar_t> columns(second.const_data_ptr<scalar_t>(), m);
      scalar_t* out = output.mutable_data_ptr<scalar_t>();
      const auto row = DETOPS_IN_USE(overlap_row<kKind, scalar_t>);
      parallel_for(0, n, row_grain(m), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          row(overlap_box<kKind>(boxes + 4 * i), columns.view(), static_cast<scalar_t>(eps),
              out + i * m);
        }
      });
    });
  });
}

void box_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                      std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  const ScalarType type = compute_type(promoted_type(boxes1.scalar_type(), boxes2.scalar_type()));
  const Tensor first = as_type(boxes1, type).contiguous();
  const Tensor second = as_type(boxes2, type).contiguous();
  const Tensor outer = as_type(grad, type).contiguous();
  const Tensor to_first = empty_like(first), to_second = empty_like(second);
  const int64_t n = first.size(0), m = second.size(0);
  const math::Overlap which = overlap_kind(kind);
  DETOPS_WIDE_SWITCH(type, [&] {
    math::with_kind(which, [&](auto constant) {
      constexpr math::Overlap kKind = decltype(constant)::value;
      const auto a = overlap_boxes<kKind>(first.const_data_ptr<scalar_t>(), n);
      const auto b = overlap_boxes<kKind>(second.const_data_ptr<scalar_t>(), m);
      const scalar_t* g = outer.const_data_ptr<scalar_t>();
      const auto small = static_cast<scalar_t>(eps);
      scalar_t* grad_a = to_first.mutable_data_ptr<scalar_t>();
      scalar_t* grad_b = to_second.mutable_data_ptr<scalar_t>();
      gradient_of_rows<kKind, false>(g, m, 1, a, n, b, m, small, grad_a);
      gradient_of_rows<kKind, true>(g, 1, m, b, m, a, n, small, grad_b);
    });
  });
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
  const Tensor first = as_type(boxes1, best.scalar_type()).contiguous();
  const Tensor second = as_type(boxes2, best.scalar_type()).contiguous();
  int64_t* at = index.mutable_data_ptr<int64_t>();
  DETOPS_WIDE_SWITCH(best.scalar_type(), [&] {
    constexpr auto kIoU = math::Overlap::kIoU;
    const scalar_t* boxes = first.const_data_ptr<scalar_t>();
    const BoxColumns<kIoU, scalar_t> columns(second.const_data_ptr<scalar_t>(), m);
    scalar_t* most = best.mutable_data_ptr<scalar_t>();
    const auto kernel = DETOPS_IN_USE(overlap_best<scalar_t>);
    parallel_for(0, n, row_grain(m), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        kernel(overlap_box<kIoU>(boxes + 4 * i), columns.view(), most[i], at[i]);
      }
    });
  });
}

}  // namespace detops::cpu
