// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"
#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "bin_taps.h"

#define DETOPS_KERNELS "../roi/bin_pool.inl"
#include "linear_pool.h"

namespace detops::cpu {
namespace {

// What is pooled: the map, or the derivatives by a bin's shift along one axis.
enum class Wanted { kValue, kByX, kByY };

template <typename A>
struct DeformSampling {
  math::DeformPSRoIPooling pooling;
  const A* rois;    // [K, 5]
  const A* offset;  // [K, 2 * classes, part, part], or null
  const A* count;   // [K, classes, ph, pw]
  int64_t classes, height, width;
  int64_t of_class = 0;
  Wanted wanted = Wanted::kValue;

  math::DeformedBin<A> bin(int64_t k, int64_t ph, int64_t pw) const {
    const int64_t part = pooling.part_size * pooling.part_size;
    return {pooling, rois + 5 * k,
            offset == nullptr ? nullptr : offset + (k * classes + of_class) * 2 * part, ph, pw};
  }

  int64_t count_at(int64_t k, int64_t ph, int64_t pw) const {
    const int64_t row = (k * classes + of_class) * pooling.pooled_height + ph;
    return row * pooling.pooled_width + pw;
  }

  // The samples of a bin read as many positions of an axis as it is long, and two.
  double taps(int64_t k) const {
    const math::DeformedBin<A> b = bin(k, 0, 0);
    const auto read = [&](A size) { return std::min(2.0 * double(b.samples), double(size) + 2); };
    return read(b.rows.bin) * read(b.cols.bin) * double(pooling.pooled_height) *
           double(pooling.pooled_width);
  }

  auto bins_of(int64_t k) const {
    return [this, k, rows = AxisTable<A>(), cols = AxisTable<A>()](int64_t ph, int64_t pw,
                                                                   BinTable<A>& table) mutable {
      const A samples = count[count_at(k, ph, pw)];
      if (!(samples > 0)) return;
      const math::DeformedBin<A> b = bin(k, ph, pw);
      const auto axis = [&](AxisTable<A>& taps, int64_t size, bool derivative,
                            const auto& taps_of) {
        taps.clear();
        taps.add(1, size, [&](int64_t, auto&& add) {
          for (int64_t i = 0; i < b.samples; ++i) {
            math::Taps<A> t;
            if (!taps_of(i, t)) continue;
            if (derivative) math::differentiate(t);
            if (t.weight_low != 0) add(t.low, t.weight_low);
            if (t.weight_high != 0) add(t.high, t.weight_high);
          }
        });
        return taps[0];
      };
      const AxisTaps<A> down = axis(rows, height, wanted == Wanted::kByY,
                                    [&](int64_t i, auto& t) { return b.row_taps(i, height, t); });
      const AxisTaps<A> across = axis(cols, width, wanted == Wanted::kByX,
                                      [&](int64_t i, auto& t) { return b.col_taps(i, width, t); });
      A factor = 1 / samples;
      if (wanted != Wanted::kValue) {
        const A size = wanted == Wanted::kByX ? b.cols.size : b.rows.size;
        factor *= static_cast<A>(pooling.trans_std) * size;
      }
      table.add_product(down, across, factor);
    };
  }
};

template <typename A>
void count_samples(const DeformSampling<A>& sampling, A* count, int64_t rois) {
  const math::DeformPSRoIPooling& p = sampling.pooling;
  const int64_t bins = sampling.classes * p.pooled_height * p.pooled_width;
  const int64_t grain = tasks_per_thread(rois, rois * bins * p.samples);
  parallel_for(0, rois, grain, [&](int64_t k, int64_t end) {
    DeformSampling<A> s = sampling;
    for (; k < end; ++k) {
      for (s.of_class = 0; s.of_class < s.classes; ++s.of_class) {
        for (int64_t ph = 0; ph < p.pooled_height; ++ph) {
          for (int64_t pw = 0; pw < p.pooled_width; ++pw) {
            count[s.count_at(k, ph, pw)] =
                static_cast<A>(s.bin(k, ph, pw).count(s.height, s.width));
          }
        }
      }
    }
  });
}

// Calls run(sampling, share, group) for each class of offsets and each group of planes: within
// them, all channels read the same positions.
template <typename A, typename Run>
void for_each_share(DeformSampling<A> sampling, int64_t channels, int64_t group_size,
                    const Run& run) {
  const math::DeformPSRoIPooling& p = sampling.pooling;
  const int64_t per_class = channels / sampling.classes;
  // The first bin of cell i; cell_of is its inverse.
  const auto first_bin = [&](int64_t i, int64_t pooled) {
    return (i * pooled + group_size - 1) / group_size;
  };
  for (int64_t c = 0; c < sampling.classes; ++c) {
    sampling.of_class = c;
    for (int64_t group = 0; group < group_size * group_size; ++group) {
      const int64_t gh = group / group_size, gw = group % group_size;
      const int64_t top = first_bin(gh, p.pooled_height), left = first_bin(gw, p.pooled_width);
      run(sampling,
          Share{c * per_class, per_class, top, left, first_bin(gh + 1, p.pooled_height) - top,
                first_bin(gw + 1, p.pooled_width) - left},
          group);
    }
  }
}

// The planes of one group of one image. More groups than one are interleaved planes, and are there
// without channels_last only.
template <typename T>
Planes<T> group_of(const Tensor& maps, int64_t image, int64_t groups, int64_t group) {
  Planes<T> planes = planes_of<T>(maps, image, groups == 1 && is_channels_last(maps));
  planes.data += group * planes.height * planes.width;
  planes.channels /= groups;
  planes.planes_apart = groups;
  return planes;
}

Tensor in_layout_for(const Tensor& maps, int64_t group_size) {
  return maps.contiguous(group_size == 1 ? maps.suggest_memory_format() : MemoryFormat::Contiguous);
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
          maps.size(2),
          maps.size(3)};
}

template <typename A>
Plan plan_of(const char* op, const DeformSampling<A>& sampling, const Tensor& rois,
             int64_t images) {
  return make_plan(
      op, sampling.rois, 5, rois.size(0), images, 1, [](const A*) { return 0; },
      [](const A* roi) { return roi[2]; });
}

template <typename T>
void forward(const DeformSampling<accumulate_t<T>>& sampling, const Plan& plan, const Tensor& maps,
             int64_t group_size, Tensor& output) {
  const bool channels_last = is_channels_last(output);
  Batch<BinTable<accumulate_t<T>>> batch;
  for_each_share(sampling, output.size(1), group_size,
                 [&](const auto& of_class, const Share& share, int64_t group) {
                   if (share.bins() == 0) return;
                   for (const Run& run : plan.runs) {
                     pool_run<T>(batch, of_class, plan.order.data(), run, share,
                                 group_of<const T>(maps, run.image, group_size * group_size, group),
                                 output.nbytes(),
                                 [&](int64_t k) { return planes_of<T>(output, k, channels_last); });
                   }
                 });
}

// Adds to sum[R, part, part] what the bins of RoI k contribute: grad * derivative, over channels.
template <typename A>
void add_to_parts(const DeformSampling<A>& s, const A* grad, const A* derivative, int64_t channels,
                  A* by_bin, A* sum) {
  const math::DeformPSRoIPooling& p = s.pooling;
  const int64_t bins = p.pooled_height * p.pooled_width, per_class = channels / s.classes;
  std::fill(by_bin, by_bin + s.classes * bins, A(0));
  for (int64_t c = 0; c < channels; ++c) {
    A* of_class = by_bin + c / per_class * bins;
    for (int64_t i = 0; i < bins; ++i) of_class[i] += grad[c * bins + i] * derivative[c * bins + i];
  }
  for (int64_t i = 0; i < s.classes * bins; ++i) {
    const int64_t ph = i % bins / p.pooled_width, pw = i % p.pooled_width;
    const int64_t part = math::cell_of(ph, p.pooled_height, p.part_size) * p.part_size +
                         math::cell_of(pw, p.pooled_width, p.part_size);
    sum[i / bins * 2 * p.part_size * p.part_size + part] += by_bin[i];
  }
}

// A bin's derivative by its shift is a weighted sum of the map as its value is, with other weights.
template <typename A>
Tensor offset_gradient(DeformSampling<A> sampling, const Plan& plan, const Tensor& grad,
                       const Tensor& maps, int64_t group_size) {
  const int64_t rois = grad.size(0), channels = grad.size(1), classes = sampling.classes;
  const int64_t bins = grad.size(2) * grad.size(3), part = sampling.pooling.part_size;
  const Tensor pooled = wide(grad), wide_maps = as_type(maps, compute_type(maps.scalar_type()));
  Tensor derivative = empty_like(pooled);
  expect_writes(derivative);
  Tensor result = zeros({rois, 2 * classes, part, part}, pooled.options());
  for (const Wanted wanted : {Wanted::kByX, Wanted::kByY}) {
    sampling.wanted = wanted;
    forward<A>(sampling, plan, wide_maps, group_size, derivative);
    A* sums = result.mutable_data_ptr<A>() + (wanted == Wanted::kByX ? 0 : part * part);
    const A *g = pooled.const_data_ptr<A>(), *d = derivative.const_data_ptr<A>();
    parallel_for(0, rois, tasks_per_thread(rois, rois * channels * bins),
                 [&](int64_t k, int64_t end) {
                   Buffer<A> by_bin(classes * bins);
                   for (; k < end; ++k) {
                     add_to_parts(sampling, g + k * channels * bins, d + k * channels * bins,
                                  channels, by_bin.data(), sums + k * 2 * classes * part * part);
                   }
                 });
  }
  return result;
}

}  // namespace

void deform_psroi_pool_forward(const Tensor& input, const Tensor& rois,
                               const std::optional<Tensor>& offset, double spatial_scale,
                               int64_t output_channels, int64_t group_size, int64_t pooled_height,
                               int64_t pooled_width, int64_t part_size, int64_t sample_per_part,
                               double trans_std, Tensor& output, Tensor& count) {
  const char* op = "deform_psroi_pooling";
  check_positions(op, input.size(2), input.size(3));
  expect_writes(output);
  const Tensor maps = in_layout_for(input, group_size);
  const Tensor wide_rois = wide(rois, input.scalar_type());
  const Tensor wide_offset = wide(offset, input.scalar_type());
  const math::DeformPSRoIPooling pooling{pooled_height,   pooled_width,  part_size,
                                         sample_per_part, spatial_scale, trans_std};
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto sampling = make_sampling<A>(pooling, wide_rois, wide_offset, count, maps);
    const Plan plan = plan_of(op, sampling, rois, maps.size(0));
    count_samples(sampling, count.mutable_data_ptr<A>(), rois.size(0));
    forward<T>(sampling, plan, maps, group_size, output);
  });
}

void deform_psroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& rois,
                                const std::optional<Tensor>& offset, const Tensor& count,
                                double spatial_scale, int64_t group_size, int64_t part_size,
                                int64_t sample_per_part, double trans_std, Tensor& to_input,
                                Tensor& to_offset) {
  const char* op = "deform_psroi_pooling_backward";
  check_positions(op, input.size(2), input.size(3));
  const Tensor maps = in_layout_for(input, group_size);
  Tensor grad_maps = group_size > 1 && is_channels_last(to_input)
                         ? empty(to_input.sizes(), to_input.options())
                         : to_input;
  expect_writes(grad_maps);
  const Tensor pooled = grad.contiguous(maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  const Tensor wide_offset = wide(offset, input.scalar_type());
  const Tensor wide_count = wide(count, input.scalar_type());
  const math::DeformPSRoIPooling pooling{grad.size(2),    grad.size(3),  part_size,
                                         sample_per_part, spatial_scale, trans_std};
  const int64_t groups = group_size * group_size;
  const bool channels_last = is_channels_last(pooled);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto sampling = make_sampling<A>(pooling, wide_rois, wide_offset, wide_count, maps);
    const Plan plan = plan_of(op, sampling, rois, maps.size(0));
    Batch<BinTable<A>> batch;
    for_each_share(sampling, pooled.size(1), group_size,
                   [&](const auto& of_class, const Share& share, int64_t group) {
                     for (const Run& run : plan.runs) {
                       spread_run(
                           batch, of_class, plan.order.data(), run, share,
                           group_of<T>(grad_maps, run.image, groups, group), grad_maps.nbytes(),
                           [&](int64_t k) { return planes_of<const T>(pooled, k, channels_last); });
                     }
                   });
    if (offset) to_offset.copy_(offset_gradient(sampling, plan, pooled, maps, group_size));
  });
  if (!grad_maps.is_same(to_input)) to_input.copy_(grad_maps);
}

}  // namespace detops::cpu
