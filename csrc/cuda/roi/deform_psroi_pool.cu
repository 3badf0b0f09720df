// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"
#include "../../ops.h"
#include "sparse_pool.cuh"

namespace detops::cuda {
namespace {

template <typename A_>
struct DeformSampling {
  using A = A_;
  math::DeformPSRoIPooling pooling;
  const A* rois;    // [K, 5]
  const A* offset;  // [K, 2 * classes, part, part], or null
  const A* count;   // [K, classes, ph, pw]
  int64_t classes, images, height, width;

  __device__ int64_t image(int64_t k) const { return image_of(rois + 5 * k, images); }

  __device__ const A* offset_of(int64_t k, int64_t of_class) const {
    const int64_t part = pooling.part_size * pooling.part_size;
    return offset == nullptr ? nullptr : offset + (k * classes + of_class) * 2 * part;
  }

  __device__ math::DeformedBin<A> bin(int64_t k, int64_t of_class, int64_t ph, int64_t pw) const {
    return {pooling, rois + 5 * k, offset_of(k, of_class), ph, pw};
  }

  __device__ A count_at(int64_t k, int64_t of_class, int64_t ph, int64_t pw) const {
    const int64_t row = (k * classes + of_class) * pooling.pooled_height + ph;
    return count[row * pooling.pooled_width + pw];
  }

  // The RoI, widened by its largest shifts.
  __device__ math::Rectangle bounds(int64_t k, int64_t of_class) const {
    const math::DeformedBin<A> first = bin(k, of_class, 0, 0);
    const int64_t cells = pooling.part_size * pooling.part_size;
    const A* shifts = offset_of(k, of_class);
    A most_x = 0, most_y = 0;
    for (int64_t i = 0; shifts != nullptr && i < cells; ++i) {
      most_x = math::max(most_x, math::abs(shifts[i]));
      most_y = math::max(most_y, math::abs(shifts[cells + i]));
    }
    const double x = first.cols.start, w = first.cols.size, y = first.rows.start;
    const double h = first.rows.size, trans_std = math::abs(pooling.trans_std);
    const double more_x = trans_std * most_x * w + 1e-5 * (math::abs(x) + w);
    const double more_y = trans_std * most_y * h + 1e-5 * (math::abs(y) + h);
    return {y - more_y, y + h + more_y, x - more_x, x + w + more_x};
  }

  __device__ int64_t most_taps(int64_t) const { return pooling.samples * pooling.samples * 4; }

  // Calls visit(row taps, column taps) for the samples that count.
  template <typename Visit>
  __device__ A visit_samples(int64_t k, int64_t of_class, int64_t ph, int64_t pw,
                             Visit&& visit) const {
    const A samples = count_at(k, of_class, ph, pw);
    if (!(samples > 0)) return 0;
    const math::DeformedBin<A> b = bin(k, of_class, ph, pw);
    for (int64_t iy = 0; iy < b.samples; ++iy) {
      math::Taps<A> y;
      if (!b.row_taps(iy, height, y)) continue;
      for (int64_t ix = 0; ix < b.samples; ++ix) {
        math::Taps<A> x;
        if (b.col_taps(ix, width, x)) visit(y, x);
      }
    }
    return 1 / samples;
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t of_class, int64_t ph, int64_t pw,
                         const math::Rectangle&, Visit&& visit) const {
    return visit_samples(k, of_class, ph, pw, [&](const math::Taps<A>& y, const math::Taps<A>& x) {
      math::visit_corners(y, x, visit);
    });
  }
};

template <typename A>
__global__ void count_samples_kernel(DeformSampling<A> s, int64_t rois, A* count) {
  const int64_t high = s.pooling.pooled_height, wide = s.pooling.pooled_width;
  DETOPS_FOR_EACH(i, rois * s.classes * high * wide) {
    const int64_t ph = i / wide % high, row = i / wide / high;
    const math::DeformedBin<A> b = s.bin(row / s.classes, row % s.classes, ph, i % wide);
    count[i] = static_cast<A>(b.count(s.height, s.width));
  }
}

// A block owns one offset: its threads share the channels of the class, and add up in a fixed
// order.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    offset_backward_kernel(SparsePoolParams<T> p, DeformSampling<A> s, const T* grad, const T* maps,
                           A* result) {
  __shared__ A sums[2][kThreads];
  const int64_t part = s.pooling.part_size, per_class = p.channels / s.classes;
  const int64_t cell = int64_t(blockIdx.x) % (part * part);
  const int64_t of_class = int64_t(blockIdx.x) / (part * part) % s.classes;
  const int64_t k = int64_t(blockIdx.x) / (part * part) / s.classes;
  const int64_t image = s.image(k);
  const Strides ms = p.map_strides(), gs = p.pooled_strides();
  const int self = static_cast<int>(threadIdx.x);
  A by_x = 0, by_y = 0;
  for (int64_t bin = 0; image >= 0 && bin < p.pooled_height * p.pooled_width; ++bin) {
    const int64_t ph = bin / p.pooled_width, pw = bin % p.pooled_width;
    if (math::cell_of(ph, p.pooled_height, part) * part + math::cell_of(pw, p.pooled_width, part) !=
        cell) {
      continue;
    }
    const math::DeformedBin<A> b = s.bin(k, of_class, ph, pw);
    const A samples = s.count_at(k, of_class, ph, pw);
    if (!(samples > 0)) continue;
    for (int64_t c = of_class * per_class + self; c < (of_class + 1) * per_class; c += kThreads) {
      const T* map = maps + image * ms.n + p.source(c, ph, pw) * ms.c;
      const A g = static_cast<A>(grad[k * gs.n + c * gs.c + ph * gs.h + pw * gs.w]) / samples;
      A bin_x = 0, bin_y = 0;
      s.visit_samples(k, of_class, ph, pw, [&](math::Taps<A> y, math::Taps<A> x) {
        math::Taps<A> by = y, bx = x;
        math::differentiate(by);
        math::differentiate(bx);
        math::visit_corners(y, bx, [&](int64_t row, int64_t col, A weight) {
          bin_x += weight * static_cast<A>(map[row * ms.h + col * ms.w]);
        });
        math::visit_corners(by, x, [&](int64_t row, int64_t col, A weight) {
          bin_y += weight * static_cast<A>(map[row * ms.h + col * ms.w]);
        });
      });
      by_x += g * bin_x * b.cols.size;
      by_y += g * bin_y * b.rows.size;
    }
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
    A* out = result + (k * s.classes + of_class) * 2 * part * part + cell;
    out[0] = sums[0][0] * A(s.pooling.trans_std);
    out[part * part] = sums[1][0] * A(s.pooling.trans_std);
  }
}

// The tensors are contiguous and of type A; offset may be undefined.
template <typename A>
DeformSampling<A> make_sampling(const math::DeformPSRoIPooling& pooling, const Tensor& rois,
                                const Tensor& offset, const Tensor& count, const Tensor& maps) {
  return {pooling,
          rois.const_data_ptr<A>(),
          offset.defined() ? offset.const_data_ptr<A>() : nullptr,
          count.const_data_ptr<A>(),
          count.size(1),
          maps.size(0),
          maps.size(2),
          maps.size(3)};
}

template <typename T, typename A>
Tensor offset_gradient(const SparsePoolParams<T>& p, const DeformSampling<A>& sampling,
                       const Tensor& grad, const Tensor& maps, const Tensor& offset) {
  Tensor result = empty_like(offset);
  const int64_t blocks = offset.numel() / 2;
  if (blocks == 0) return result;
  check(blocks <= INT32_MAX, "detops: ", blocks, " offsets are too many");
  launch("deform_psroi_pool_backward", offset_backward_kernel<T, A>, static_cast<unsigned>(blocks),
         p, sampling, grad.const_data_ptr<T>(), maps.const_data_ptr<T>(),
         result.mutable_data_ptr<A>());
  return result;
}

}  // namespace

void deform_psroi_pool_forward(const Tensor& input, const Tensor& rois,
                               const std::optional<Tensor>& offset, double spatial_scale,
                               int64_t output_channels, int64_t group_size, int64_t pooled_height,
                               int64_t pooled_width, int64_t part_size, int64_t sample_per_part,
                               double trans_std, Tensor& output, Tensor& count) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  const Tensor wide_offset = wide(offset, input.scalar_type());
  const math::DeformPSRoIPooling pooling{pooled_height,   pooled_width,  part_size,
                                         sample_per_part, spatial_scale, trans_std};
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const auto sampling = make_sampling<A>(pooling, wide_rois, wide_offset, count, maps);
    launch("deform_psroi_pool", count_samples_kernel<A>, blocks_for(count.numel()), sampling,
           rois.size(0), count.mutable_data_ptr<A>());
    sparse_pool_forward("deform_psroi_pool",
                        sparse_pool_params<scalar_t>(output, maps, group_size, group_size),
                        sampling, maps, output);
  });
}

void deform_psroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& rois,
                                const std::optional<Tensor>& offset, const Tensor& count,
                                double spatial_scale, int64_t group_size, int64_t part_size,
                                int64_t sample_per_part, double trans_std, Tensor& to_input,
                                Tensor& to_offset) {
  const Tensor maps = input.contiguous(to_input.suggest_memory_format());
  const Tensor pooled = grad.contiguous(to_input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  const Tensor wide_offset = wide(offset, input.scalar_type());
  const Tensor wide_count = wide(count, input.scalar_type());
  const math::DeformPSRoIPooling pooling{grad.size(2),    grad.size(3),  part_size,
                                         sample_per_part, spatial_scale, trans_std};
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const auto sampling = make_sampling<A>(pooling, wide_rois, wide_offset, wide_count, maps);
    const auto params = sparse_pool_params<scalar_t>(pooled, to_input, group_size, group_size);
    if (to_input.numel() > 0)
      sparse_pool_backward("deform_psroi_pool_backward", params, sampling, pooled, to_input);
    if (offset) {
      to_offset.copy_(offset_gradient(params, sampling, pooled, maps, wide_offset));
    }
  });
}

}  // namespace detops::cuda
