// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"
#include "sparse_pool.cuh"

namespace detops::cuda {
namespace {

template <typename A_>
struct MovedSampling {
  using A = A_;
  RoIPooling<A> p;
  Offsets<A> offsets;  // of a RoI: of each bin
  math::DeformRoIPooling pooling;

  MovedSampling(const RoIPooling<A>& p, const Tensor& offset, int64_t sampling_ratio, double gamma)
      : p(p),
        offsets{parameter<const A*>(offset), p.pooled.pixels()},
        pooling{p.pooled.h, p.pooled.w, sampling_ratio, double(p.scale), gamma} {}

  __device__ math::MovableRoI<A> roi(int64_t k) const { return {pooling, p.roi(k)}; }

  // The RoI, widened by its largest offsets.
  __device__ Window window(int64_t k, int64_t) const {
    const auto r = roi(k);
    const Shift<A> most = offsets.largest(k);
    const double more_y = math::abs(double(r.rows.reach)) * double(most.y);
    const double more_x = math::abs(double(r.cols.reach)) * double(most.x);
    return window_of(span_of(r.rows.axis, p.pooled.h, more_y),
                     span_of(r.cols.axis, p.pooled.w, more_x), p.maps.h, p.maps.w);
  }

  __device__ int64_t most_taps(int64_t k) const {
    const auto r = roi(k);
    return 4 * static_cast<int64_t>(r.rows.axis.count) * static_cast<int64_t>(r.cols.axis.count);
  }

  // Calls visit(row taps, their slope, column taps, their slope) for the samples that count, and
  // gives how much of the bin each is.
  template <typename Visit>
  __device__ A visit_samples(int64_t k, int64_t ph, int64_t pw, const Visit& visit) const {
    const auto r = roi(k);
    const A* shift = offsets.row(k);
    const int64_t bin = ph * p.pooled.w + pw;
    const auto rows = r.rows.moved(shift == nullptr ? A(0) : shift[offsets.cells + bin]);
    const auto cols = r.cols.moved(shift == nullptr ? A(0) : shift[bin]);
    const A samples = rows.count * cols.count;
    if (!(samples > 0)) return 0;
    math::visit_moved(rows, ph, p.maps.h, [&](const math::Taps<A>& y, A slope_y) {
      math::visit_moved(cols, pw, p.maps.w,
                        [&](const math::Taps<A>& x, A slope_x) { visit(y, slope_y, x, slope_x); });
    });
    return 1 / samples;
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t, int64_t ph, int64_t pw, const math::Rectangle&,
                         const Visit& visit) const {
    return visit_samples(k, ph, pw, [&](const math::Taps<A>& y, A, const math::Taps<A>& x, A) {
      math::visit_corners(y, x, visit);
    });
  }
};

// A block owns a bin: its threads share the channels, and add up in a fixed order.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    moved_offset_kernel(MovedSampling<A> s, const T* grad, const T* maps, A* result) {
  const RoIPooling<A>& p = s.p;
  const Strides &ms = p.maps.strides, &gs = p.pooled.strides;
  const int64_t bins = s.offsets.cells;
  const int64_t k = int64_t(blockIdx.x) / bins, bin = int64_t(blockIdx.x) % bins;
  const int64_t image = p.image(k), ph = bin / p.pooled.w, pw = bin % p.pooled.w;
  A sums[2] = {};
  for (int64_t c = threadIdx.x; image >= 0 && c < p.pooled.c; c += kThreads) {
    const T* map = maps + ms.at(image, c, 0, 0);
    const A g = static_cast<A>(grad[gs.at(k, c, ph, pw)]);
    const auto read = [&](int64_t row, int64_t col) {
      return static_cast<A>(map[row * ms.h + col * ms.w]);
    };
    Shift<A> slope{};
    const A share = s.visit_samples(
        k, ph, pw, [&](const math::Taps<A>& y, A slope_y, const math::Taps<A>& x, A slope_x) {
          add_slopes(y, slope_y, x, slope_x, read, slope);
        });
    sums[0] += g * share * slope.x;
    sums[1] += g * share * slope.y;
  }
  sum_over_block(sums);
  if (threadIdx.x == 0) {
    const auto r = s.roi(k);
    A* out = result + 2 * bins * k + bin;
    out[0] = sums[0] * r.cols.reach;
    out[bins] = sums[1] * r.rows.reach;
  }
}

}  // namespace

void deform_roi_pool_forward(const Tensor& input, const Tensor& boxes,
                             const std::optional<Tensor>& offset, double spatial_scale, int64_t,
                             int64_t, int64_t sampling_ratio, double gamma, Tensor& output) {
  sparse_pool_forward<MovedSampling>("deform_roi_pool", input, boxes, spatial_scale, output,
                                     wide(offset, input.scalar_type()), sampling_ratio, gamma);
}

void deform_roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                              const std::optional<Tensor>& offset, double spatial_scale,
                              int64_t sampling_ratio, double gamma, bool input_wanted,
                              Tensor& to_input, Tensor& to_offset) {
  constexpr const char* kOp = "deform_roi_pool_backward";
  const ScalarType type = input.scalar_type();
  const MemoryFormat format = input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = as_type(grad, type).contiguous(format);
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type);
  const Tensor slopes = as_type(to_offset, compute_type(type));
  if (input_wanted && to_input.numel() > 0) {
    sparse_pool_backward<MovedSampling>(kOp, pooled, rois, spatial_scale, to_input, shifts,
                                        sampling_ratio, gamma);
  }
  if (slopes.numel() == 0) return;
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const MovedSampling<A> sampling({rois, spatial_scale, pooled, maps}, shifts, sampling_ratio,
                                    gamma);
    launch(kOp, moved_offset_kernel<scalar_t, A>,
           static_cast<unsigned>(narrow(kOp, slopes.numel() / 2)), sampling, pooled, maps, slopes);
  });
  to_offset = as_type(slopes, to_offset.scalar_type());
}

}  // namespace detops::cuda
