// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"
#include "../../ops.h"
#include "sparse_pool.cuh"

namespace detops::cuda {
namespace {

template <typename A_>
struct MovedSampling {
  using A = A_;
  math::DeformRoIPooling pooling;
  const A* rois;    // [K, 5]
  const A* offset;  // [K, 2, ph, pw], or null
  int64_t classes, images, height, width;

  __device__ int64_t bins() const { return pooling.pooled_height * pooling.pooled_width; }
  __device__ int64_t image(int64_t k) const { return image_of(rois + 5 * k, images); }
  __device__ math::MovableRoI<A> roi(int64_t k) const { return {pooling, rois + 5 * k}; }
  __device__ A offset_x(int64_t k, int64_t bin) const {
    return offset == nullptr ? A(0) : offset[2 * bins() * k + bin];
  }
  __device__ A offset_y(int64_t k, int64_t bin) const {
    return offset == nullptr ? A(0) : offset[2 * bins() * k + bins() + bin];
  }

  // The RoI, widened by its largest offsets.
  __device__ math::Rectangle bounds(int64_t k, int64_t) const {
    const auto r = roi(k);
    A most_x = 0, most_y = 0;
    for (int64_t bin = 0; offset != nullptr && bin < bins(); ++bin) {
      most_x = math::max(most_x, math::abs(offset_x(k, bin)));
      most_y = math::max(most_y, math::abs(offset_y(k, bin)));
    }
    const auto side = [](const math::MovableAxis<A>& axis, A most, int64_t pooled, double& low,
                         double& high) {
      const double from = axis.axis.start, to = from + double(axis.axis.bin) * double(pooled);
      const double more =
          math::abs(double(axis.reach)) * double(most) + 1e-5 * (math::abs(from) + math::abs(to));
      low = math::min(from, to) - more;
      high = math::max(from, to) + more;
    };
    math::Rectangle reach;
    side(r.rows, most_y, pooling.pooled_height, reach.top, reach.bottom);
    side(r.cols, most_x, pooling.pooled_width, reach.left, reach.right);
    return reach;
  }

  __device__ int64_t most_taps(int64_t k) const {
    const auto r = roi(k);
    return 4 * static_cast<int64_t>(r.rows.axis.count) * static_cast<int64_t>(r.cols.axis.count);
  }

  // Calls visit(row taps, their slope, column taps, their slope) for the samples that count, and
  // gives how much of the bin each is.
  template <typename Visit>
  __device__ A visit_samples(int64_t k, int64_t ph, int64_t pw, Visit&& visit) const {
    const auto r = roi(k);
    const int64_t bin = ph * pooling.pooled_width + pw;
    const auto rows = r.rows.moved(offset_y(k, bin)), cols = r.cols.moved(offset_x(k, bin));
    const A samples = rows.count * cols.count;
    if (!(samples > 0)) return 0;
    math::visit_moved(rows, ph, height, [&](const math::Taps<A>& y, A slope_y) {
      math::visit_moved(cols, pw, width,
                        [&](const math::Taps<A>& x, A slope_x) { visit(y, slope_y, x, slope_x); });
    });
    return 1 / samples;
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t, int64_t ph, int64_t pw, const math::Rectangle&,
                         Visit&& visit) const {
    return visit_samples(k, ph, pw, [&](const math::Taps<A>& y, A, const math::Taps<A>& x, A) {
      math::visit_corners(y, x, visit);
    });
  }
};

// A block owns a bin: its threads share the channels, and add up in a fixed order.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    moved_offset_kernel(SparsePoolParams<T> p, MovedSampling<A> s, const T* grad, const T* maps,
                        A* result) {
  __shared__ A sums[2][kThreads];
  const int64_t bins = s.bins(), k = int64_t(blockIdx.x) / bins, bin = int64_t(blockIdx.x) % bins;
  const int64_t image = s.image(k), ph = bin / p.pooled_width, pw = bin % p.pooled_width;
  const Strides ms = p.map_strides(), gs = p.pooled_strides();
  const int self = static_cast<int>(threadIdx.x);
  A by_x = 0, by_y = 0;
  for (int64_t c = self; image >= 0 && c < p.channels; c += kThreads) {
    const T* map = maps + image * ms.n + c * ms.c;
    const A g = static_cast<A>(grad[k * gs.n + c * gs.c + ph * gs.h + pw * gs.w]);
    A bin_x = 0, bin_y = 0;
    const auto sum = [&](const math::Taps<A>& y, const math::Taps<A>& x, A& to) {
      math::visit_corners(y, x, [&](int64_t row, int64_t col, A weight) {
        to += weight * static_cast<A>(map[row * ms.h + col * ms.w]);
      });
    };
    const A share = s.visit_samples(
        k, ph, pw, [&](const math::Taps<A>& y, A slope_y, const math::Taps<A>& x, A slope_x) {
          sum(y, {x.low, x.high, -slope_x, slope_x}, bin_x);
          sum({y.low, y.high, -slope_y, slope_y}, x, bin_y);
        });
    by_x += g * share * bin_x;
    by_y += g * share * bin_y;
  }
  sums[0][self] = by_x;
  sums[1][self] = by_y;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (self < half) {
      sums[0][self] += sums[0][self + half];
      sums[1][self] += sums[1][self + half];
    }
  }
  if (self == 0) {
    const auto r = s.roi(k);
    A* out = result + 2 * bins * k + bin;
    out[0] = sums[0][0] * r.cols.reach;
    out[bins] = sums[1][0] * r.rows.reach;
  }
}

// The tensors are contiguous and of type A; offset may be undefined.
template <typename A>
MovedSampling<A> moved_sampling(const math::DeformRoIPooling& pooling, const Tensor& rois,
                                const Tensor& offset, const Tensor& maps) {
  return {pooling,
          rois.const_data_ptr<A>(),
          offset.defined() ? offset.const_data_ptr<A>() : nullptr,
          1,
          maps.size(0),
          maps.size(2),
          maps.size(3)};
}

}  // namespace

void deform_roi_pool_forward(const Tensor& input, const Tensor& boxes,
                             const std::optional<Tensor>& offset, double spatial_scale,
                             int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                             double gamma, Tensor& output) {
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type);
  const math::DeformRoIPooling pooling{pooled_height, pooled_width, sampling_ratio, spatial_scale,
                                       gamma};
  DETOPS_FLOAT_SWITCH(type, [&] {
    const auto sampling = moved_sampling<accumulate_t<scalar_t>>(pooling, rois, shifts, maps);
    sparse_pool_forward("deform_roi_pool", sparse_pool_params<scalar_t>(output, maps, 1, 1),
                        sampling, maps, output);
  });
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
  const math::DeformRoIPooling pooling{grad.size(2), grad.size(3), sampling_ratio, spatial_scale,
                                       gamma};
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const auto sampling = moved_sampling<A>(pooling, rois, shifts, maps);
    const auto params = sparse_pool_params<scalar_t>(pooled, maps, 1, 1);
    if (input_wanted && to_input.numel() > 0) {
      sparse_pool_backward(kOp, params, sampling, pooled, to_input);
    }
    const int64_t blocks = slopes.numel() / 2;
    if (blocks == 0) return;
    launch(kOp, moved_offset_kernel<scalar_t, A>, static_cast<unsigned>(narrow(kOp, blocks)),
           params, sampling, pooled.const_data_ptr<scalar_t>(), maps.const_data_ptr<scalar_t>(),
           slopes.mutable_data_ptr<A>());
  });
  to_offset = as_type(slopes, to_offset.scalar_type());
}

}  // namespace detops::cuda
