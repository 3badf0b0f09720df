// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"
#include "sparse_pool.cuh"

// The two RoI poolings with bins that are moved by offsets.
namespace detops::cuda {
namespace {

// Displacement of a bin, or the derivative of its value with respect to it.
template <typename A>
struct Shift {
  A x, y;
};

// Offsets [rows, 2, cells], x before y: one shift per cell of each row. Null for no offsets.
template <typename A>
struct Offsets {
  const A* data;
  int64_t cells;

  __device__ const A* row(int64_t i) const {
    return data == nullptr ? nullptr : data + 2 * cells * i;
  }
  __device__ Shift<A> largest(int64_t i) const {
    const A* own = row(i);
    Shift<A> most{};
    for (int64_t cell = 0; own != nullptr && cell < cells; ++cell) {
      most.x = math::max(most.x, math::abs(own[cell]));
      most.y = math::max(most.y, math::abs(own[cells + cell]));
    }
    return most;
  }
};

// Adds the derivative of a sample's value with respect to its position: along an axis, the slope
// times the difference between the upper and the lower tap. read(row, column) returns a pixel.
template <typename A, typename Read>
__device__ void add_slopes(const math::Taps<A>& y, A slope_y, const math::Taps<A>& x, A slope_x,
                           const Read& read, Shift<A>& sum) {
  const math::Taps<A> by_y{y.low, y.high, -slope_y, slope_y};
  const math::Taps<A> by_x{x.low, x.high, -slope_x, slope_x};
  math::visit_corners(
      y, by_x, [&](int64_t row, int64_t col, A weight) { sum.x += weight * read(row, col); });
  math::visit_corners(
      by_y, x, [&](int64_t row, int64_t col, A weight) { sum.y += weight * read(row, col); });
}

template <typename A_>
struct MovedSampling {
  using A = A_;
  RoIPooling<A> p;
  Offsets<A> offsets;  // a row per RoI, a cell per bin
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
    const double more_y = math::abs(double(r.rows.offset_scale)) * double(most.y);
    const double more_x = math::abs(double(r.cols.offset_scale)) * double(most.x);
    return window_of(span_of(r.rows.axis, p.pooled.h, more_y),
                     span_of(r.cols.axis, p.pooled.w, more_x), p.maps.h, p.maps.w);
  }

  __device__ int64_t most_taps(int64_t k) const {
    const auto r = roi(k);
    return 4 * static_cast<int64_t>(r.rows.axis.count) * static_cast<int64_t>(r.cols.axis.count);
  }

  // Calls visit(row taps, their slope, column taps, their slope) for the samples that count.
  // Returns the weight of each sample in the bin.
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

// One block per bin. Its threads split the channels and sum in a fixed order.
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
    out[0] = sums[0] * r.cols.offset_scale;
    out[bins] = sums[1] * r.rows.offset_scale;
  }
}

template <typename A_>
struct DeformSampling {
  using A = A_;
  RoIPooling<A> p;
  math::DeformPSRoIPooling pooling;
  Offsets<A> offsets;  // a row per RoI and class, a cell per part
  const A* count;      // [K, classes, ph, pw]

  DeformSampling(const RoIPooling<A>& all, int64_t group_size, int64_t part_size, int64_t samples,
                 double trans_std, const Tensor& offset, const Tensor& count)
      : p(all),
        pooling{p.pooled.h, p.pooled.w, part_size, samples, double(p.scale), trans_std},
        offsets{parameter<const A*>(offset), part_size * part_size},
        count(count.const_data_ptr<A>()) {
    p.groups_high = p.groups_wide = group_size;
    p.classes = count.size(1);
  }

  __device__ int64_t row(int64_t k, int64_t of_class) const { return k * p.classes + of_class; }

  __device__ math::DeformedBin<A> bin(int64_t k, int64_t of_class, int64_t ph, int64_t pw) const {
    return {pooling, p.roi(k), offsets.row(row(k, of_class)), ph, pw};
  }

  __device__ A count_at(int64_t k, int64_t of_class, int64_t ph, int64_t pw) const {
    return count[(row(k, of_class) * p.pooled.h + ph) * p.pooled.w + pw];
  }

  // The RoI, widened by its largest shifts.
  __device__ Window window(int64_t k, int64_t of_class) const {
    const math::DeformedBin<A> first = bin(k, of_class, 0, 0);
    const Shift<A> most = offsets.largest(row(k, of_class));
    const double trans_std = math::abs(pooling.trans_std);
    return window_of(span_of(first.rows, p.pooled.h, trans_std * most.y * first.rows.size),
                     span_of(first.cols, p.pooled.w, trans_std * most.x * first.cols.size),
                     p.maps.h, p.maps.w);
  }

  __device__ int64_t most_taps(int64_t) const { return pooling.samples * pooling.samples * 4; }

  // Calls visit(row taps, column taps) for the samples that count.
  template <typename Visit>
  __device__ void visit_samples(const math::DeformedBin<A>& b, const Visit& visit) const {
    for (int64_t iy = 0; iy < b.samples; ++iy) {
      math::Taps<A> y;
      if (!b.row_taps(iy, p.maps.h, y)) continue;
      for (int64_t ix = 0; ix < b.samples; ++ix) {
        math::Taps<A> x;
        if (b.col_taps(ix, p.maps.w, x)) visit(y, x);
      }
    }
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t of_class, int64_t ph, int64_t pw,
                         const math::Rectangle&, const Visit& visit) const {
    const A samples = count_at(k, of_class, ph, pw);
    if (!(samples > 0)) return 0;
    visit_samples(bin(k, of_class, ph, pw), [&](const math::Taps<A>& y, const math::Taps<A>& x) {
      math::visit_corners(y, x, visit);
    });
    return 1 / samples;
  }
};

// One block per offset. Its threads split the channels of the class and sum in a fixed order.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    offset_backward_kernel(DeformSampling<A> s, const T* grad, const T* maps, A* result) {
  const RoIPooling<A>& p = s.p;
  const Strides &ms = p.maps.strides, &gs = p.pooled.strides;
  const int64_t part = s.pooling.part_size, per_class = p.class_channels();
  const int64_t cell = int64_t(blockIdx.x) % s.offsets.cells;
  const int64_t row = int64_t(blockIdx.x) / s.offsets.cells;
  const int64_t k = row / p.classes, of_class = row % p.classes, first = of_class * per_class;
  const int64_t image = p.image(k);
  A sums[2] = {};
  for (int64_t bin = 0; image >= 0 && bin < p.pooled.pixels(); ++bin) {
    const int64_t ph = bin / p.pooled.w, pw = bin % p.pooled.w;
    if (math::cell_index(ph, p.pooled.h, part) * part + math::cell_index(pw, p.pooled.w, part) !=
        cell) {
      continue;
    }
    const math::DeformedBin<A> b = s.bin(k, of_class, ph, pw);
    const A samples = s.count_at(k, of_class, ph, pw);
    if (!(samples > 0)) continue;
    for (int64_t c = first + threadIdx.x; c < first + per_class; c += kThreads) {
      const T* map = maps + ms.at(image, p.source(c, ph, pw), 0, 0);
      const A g = static_cast<A>(grad[gs.at(k, c, ph, pw)]) / samples;
      const auto read = [&](int64_t y, int64_t x) {
        return static_cast<A>(map[y * ms.h + x * ms.w]);
      };
      Shift<A> slope{};
      s.visit_samples(b, [&](const math::Taps<A>& y, const math::Taps<A>& x) {
        // At a pixel's centre the slopes of the two sides differ: 0 is used there.
        add_slopes(y, A(y.weight_high != 0), x, A(x.weight_high != 0), read, slope);
      });
      sums[0] += g * slope.x * b.cols.size;
      sums[1] += g * slope.y * b.rows.size;
    }
  }
  sum_over_block(sums);
  if (threadIdx.x == 0) {
    A* out = result + row * 2 * s.offsets.cells + cell;
    out[0] = sums[0] * A(s.pooling.trans_std);
    out[s.offsets.cells] = sums[1] * A(s.pooling.trans_std);
  }
}

}  // namespace

void deform_roi_pool_forward(const Tensor& input, const Tensor& boxes,
                             const std::optional<Tensor>& offset, double spatial_scale, int64_t,
                             int64_t, int64_t sampling_ratio, double gamma, Tensor& output) {
  sparse_pool_forward<MovedSampling>(input, boxes, spatial_scale, output,
                                     wide(offset, input.scalar_type()), sampling_ratio, gamma);
}

void deform_roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                              const std::optional<Tensor>& offset, double spatial_scale,
                              int64_t sampling_ratio, double gamma, bool input_wanted,
                              Tensor& to_input, Tensor& to_offset) {
  const ScalarType type = input.scalar_type();
  const MemoryFormat format = input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = grad.to(type).contiguous(format);
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type);
  if (input_wanted && to_input.numel() > 0) {
    sparse_pool_backward<MovedSampling>(pooled, rois, spatial_scale, to_input, shifts,
                                        sampling_ratio, gamma);
  }
  if (to_offset.numel() == 0) return;
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const MovedSampling<A> sampling({rois, spatial_scale, pooled, maps}, shifts, sampling_ratio,
                                    gamma);
    launch(moved_offset_kernel<scalar_t, A>, static_cast<unsigned>(narrow(to_offset.numel() / 2)),
           sampling, pooled, maps, to_offset);
  });
}

void deform_psroi_pool_forward(const Tensor& input, const Tensor& boxes,
                               const std::optional<Tensor>& offset, double spatial_scale, int64_t,
                               int64_t group_size, int64_t, int64_t, int64_t part_size,
                               int64_t sample_per_part, double trans_std, Tensor& output,
                               Tensor& count) {
  const ScalarType type = input.scalar_type();
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type);
  DETOPS_WIDE_SWITCH(count.scalar_type(), [&] {
    const DeformSampling<scalar_t> s({rois, spatial_scale, output, input}, group_size, part_size,
                                     sample_per_part, trans_std, shifts, count);
    scalar_t* to = elements(count);
    for_each(count.numel(), [=] __device__(int64_t i) {
      const FeatureMaps& pooled = s.p.pooled;
      const int64_t pw = i % pooled.w, ph = i / pooled.w % pooled.h, row = i / pooled.pixels();
      const auto bin = s.bin(row / s.p.classes, row % s.p.classes, ph, pw);
      to[i] = static_cast<scalar_t>(bin.count(s.p.maps.h, s.p.maps.w));
    });
  });
  sparse_pool_forward<DeformSampling>(input, rois, spatial_scale, output, group_size, part_size,
                                      sample_per_part, trans_std, shifts, count);
}

void deform_psroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                                const std::optional<Tensor>& offset, const Tensor& count,
                                double spatial_scale, int64_t group_size, int64_t part_size,
                                int64_t sample_per_part, double trans_std, Tensor& to_input,
                                Tensor& to_offset) {
  const ScalarType type = input.scalar_type();
  const MemoryFormat format = to_input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = grad.contiguous(format);
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type), counts = wide(count, type);
  if (to_input.numel() > 0) {
    sparse_pool_backward<DeformSampling>(pooled, rois, spatial_scale, to_input, group_size,
                                         part_size, sample_per_part, trans_std, shifts, counts);
  }
  const int64_t blocks = to_offset.numel() / 2;
  if (blocks == 0) return;
  check(blocks <= INT32_MAX, "detops: ", blocks, " offsets are too many");
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const DeformSampling<A> sampling({rois, spatial_scale, pooled, maps}, group_size, part_size,
                                     sample_per_part, trans_std, shifts, counts);
    launch(offset_backward_kernel<scalar_t, A>, static_cast<unsigned>(blocks), sampling, pooled,
           maps, to_offset);
  });
}

}  // namespace detops::cuda
