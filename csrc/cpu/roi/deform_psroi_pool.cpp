// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"
#include "../common/host.h"
#include "bin_taps.h"

#define DETOPS_KERNELS "../roi/bin_pool.inl"
#include "linear_pool.h"

namespace detops::cpu {
namespace {

template <typename A>
struct DeformSampling {
  math::DeformPSRoIPooling pooling;
  const A* rois;    // [K, 5]
  const A* offset;  // [K, 2 * classes, part, part], or null
  const A* count;   // [K, classes, ph, pw]
  int64_t classes, height, width;
  int64_t of_class = 0;
  bool by_x = false, by_y = false;  // pools the derivative by a bin's shift along this axis

  math::DeformedBin<A> bin(int64_t k, int64_t ph, int64_t pw) const {
    const int64_t part = pooling.part_size * pooling.part_size;
    return {pooling, rois + 5 * k,
            offset == nullptr ? nullptr : offset + (k * classes + of_class) * 2 * part, ph, pw};
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
      const int64_t row = (k * classes + of_class) * pooling.pooled_height + ph;
      const A samples = count[row * pooling.pooled_width + pw];
      if (!(samples > 0)) return;
      const math::DeformedBin<A> b = bin(k, ph, pw);
      const auto axis = [&](AxisTable<A>& taps, int64_t size, bool derivative,
                            const auto& taps_of) {
        taps.clear();
        const auto give = [&](auto&& add) {
          for (int64_t i = 0; i < b.samples; ++i) {
            math::Taps<A> t;
            if (!taps_of(i, t)) continue;
            if (derivative) math::differentiate(t);
            if (t.weight_low != 0) add(t.low, t.weight_low);
            if (t.weight_high != 0) add(t.high, t.weight_high);
          }
        };
        taps.add(1, size, [&](int64_t, auto&& add) { math::merge_taps<A>(give, add); });
        return taps[0];
      };
      const AxisTaps<A> down =
          axis(rows, height, by_y, [&](int64_t i, auto& t) { return b.row_taps(i, height, t); });
      const AxisTaps<A> across =
          axis(cols, width, by_x, [&](int64_t i, auto& t) { return b.col_taps(i, width, t); });
      A factor = 1 / samples;
      if (by_x) factor *= static_cast<A>(pooling.trans_std) * b.cols.size;
      if (by_y) factor *= static_cast<A>(pooling.trans_std) * b.rows.size;
      table.add_product(down, across, factor);
    };
  }
};

template <typename A>
void count_samples(const DeformSampling<A>& sampling, A* count, int64_t rois) {
  const math::DeformPSRoIPooling& p = sampling.pooling;
  const int64_t bins = sampling.classes * p.pooled_height * p.pooled_width;
  const int64_t grain = tasks_per_thread(rois, rois * bins * p.samples);
  parallel_for(rois, grain, [&](int64_t k, int64_t end) {
    DeformSampling<A> s = sampling;
    for (A* next = count + k * bins; k < end; ++k) {
      for (s.of_class = 0; s.of_class < s.classes; ++s.of_class) {
        for (int64_t ph = 0; ph < p.pooled_height; ++ph) {
          for (int64_t pw = 0; pw < p.pooled_width; ++pw) {
            *next++ = static_cast<A>(s.bin(k, ph, pw).count(s.height, s.width));
          }
        }
      }
    }
  });
}

// Forward where M is const, else backward. Class of offsets by class, group of planes by group and
// run by run: within them, all channels read the same positions. More groups than one are
// interleaved planes, and are there without channels_last only.
template <typename M, typename P, typename A>
void pool_shares(DeformSampling<A> sampling, const Plan& plan, const Tensor& maps,
                 int64_t group_size, const Tensor& pooled) {
  constexpr bool kForward = std::is_const_v<M>;
  const math::DeformPSRoIPooling& p = sampling.pooling;
  const int64_t groups = group_size * group_size, channels = maps.size(1) / groups;
  const int64_t per_class = channels / sampling.classes;
  const bool channels_last = groups == 1 && is_channels_last(maps);
  const auto pooled_of = [&, last = is_channels_last(pooled)](int64_t k) {
    return planes_of<P>(pooled, k, last);
  };
  Batch<BinTable<A>> batch;
  for (int64_t c = 0; c < sampling.classes; ++c) {
    sampling.of_class = c;
    for (int64_t group = 0; group < groups; ++group) {
      const auto rows = math::bins_of_cell(group / group_size, p.pooled_height, group_size);
      const auto cols = math::bins_of_cell(group % group_size, p.pooled_width, group_size);
      const Share share{c * per_class, per_class, rows.begin, cols.begin, rows.size(), cols.size()};
      if (kForward && share.bins() == 0) continue;
      for (const Run& run : plan.runs) {
        Planes<M> planes = planes_of<M>(maps, run.image, channels_last);
        planes.data += group * planes.height * planes.width;
        planes.channels = channels;
        planes.planes_apart = groups;
        pool_run(batch, sampling, plan.order.data(), run, share, planes,
                 (kForward ? pooled : maps).nbytes(), pooled_of);
      }
    }
  }
}

Tensor in_layout_for(const Tensor& maps, int64_t group_size) {
  return maps.contiguous(group_size == 1 ? maps.suggest_memory_format() : MemoryFormat::Contiguous);
}

// Calls use(T(), sampling, plan) for maps of type T. The count is of the type that is computed in.
template <typename Use>
void with_sampling(const char* op, const math::DeformPSRoIPooling& pooling, const Tensor& maps,
                   const Tensor& rois, const std::optional<Tensor>& offset, const Tensor& count,
                   const Use& use) {
  const ScalarType type = maps.scalar_type();
  const Tensor wide_rois = wide(rois, type), wide_offset = wide(offset, type);
  with_element_type(type, [&](auto element) {
    using A = accumulate_t<decltype(element)>;
    const A* roi = wide_rois.const_data_ptr<A>();
    const A* shift = offset ? wide_offset.const_data_ptr<A>() : nullptr;
    const DeformSampling<A> sampling{
        pooling, roi, shift, count.const_data_ptr<A>(), count.size(1), maps.size(2), maps.size(3)};
    use(element, sampling, make_plan(op, roi, rois.size(0), maps.size(0)));
  });
}

// A bin's derivative by its shift is a weighted sum of the map as its value is, with other weights.
template <typename A>
Tensor offset_gradient(DeformSampling<A> sampling, const Plan& plan, const Tensor& grad,
                       const Tensor& maps, int64_t group_size) {
  const math::DeformPSRoIPooling& p = sampling.pooling;
  const int64_t part = p.part_size, bins = p.pooled_height * p.pooled_width;
  const int64_t tasks = grad.size(0) * sampling.classes;
  const int64_t numbers = grad.size(1) / sampling.classes * bins;  // of one class of a RoI
  const Tensor pooled = wide(grad), wide_maps = maps.to(compute_type(maps.scalar_type()));
  Tensor derivative = empty_like(pooled);
  Tensor result = zeros({grad.size(0), 2 * sampling.classes, part, part}, pooled.options());
  for (const bool by_x : {true, false}) {
    sampling.by_x = by_x;
    sampling.by_y = !by_x;
    pool_shares<const A, A>(sampling, plan, wide_maps, group_size, derivative);
    A* sums = result.mutable_data_ptr<A>() + (by_x ? 0 : part * part);
    const A *grads = pooled.const_data_ptr<A>(), *slopes = derivative.const_data_ptr<A>();
    const int64_t grain = tasks_per_thread(tasks, tasks * numbers);
    parallel_for(tasks, grain, [&](int64_t task, int64_t end) {
      Buffer<A> room(bins);
      A* by_bin = room.data();
      for (; task < end; ++task) {
        std::fill_n(by_bin, bins, A(0));
        for (int64_t from = task * numbers; from < (task + 1) * numbers; from += bins) {
          for (int64_t i = 0; i < bins; ++i) by_bin[i] += grads[from + i] * slopes[from + i];
        }
        A* sum = sums + task * 2 * part * part;
        for (int64_t i = 0; i < bins; ++i) {
          const int64_t row = math::cell_index(i / p.pooled_width, p.pooled_height, part);
          sum[row * part + math::cell_index(i % p.pooled_width, p.pooled_width, part)] += by_bin[i];
        }
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
  const Tensor maps = in_layout_for(input, group_size);
  const math::DeformPSRoIPooling pooling{pooled_height,   pooled_width,  part_size,
                                         sample_per_part, spatial_scale, trans_std};
  const auto use = [&](auto element, const auto& sampling, const Plan& plan) {
    using T = decltype(element);
    count_samples(sampling, count.mutable_data_ptr<accumulate_t<T>>(), rois.size(0));
    pool_shares<const T, T>(sampling, plan, maps, group_size, output);
  };
  with_sampling(op, pooling, maps, rois, offset, count, use);
}

void deform_psroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& rois,
                                const std::optional<Tensor>& offset, const Tensor& count,
                                double spatial_scale, int64_t group_size, int64_t part_size,
                                int64_t sample_per_part, double trans_std, Tensor& to_input,
                                Tensor& to_offset) {
  const char* op = "deform_psroi_pooling_backward";
  const Tensor maps = in_layout_for(input, group_size);
  Tensor grad_maps = group_size > 1 && is_channels_last(to_input)
                         ? empty(to_input.sizes(), to_input.options())
                         : to_input;
  const Tensor pooled = grad.contiguous(maps.suggest_memory_format());
  const Tensor wide_count = wide(count, input.scalar_type());
  const math::DeformPSRoIPooling pooling{grad.size(2),    grad.size(3),  part_size,
                                         sample_per_part, spatial_scale, trans_std};
  const auto use = [&](auto element, const auto& sampling, const Plan& plan) {
    using T = decltype(element);
    pool_shares<T, const T>(sampling, plan, grad_maps, group_size, pooled);
    if (offset) to_offset.copy_(offset_gradient(sampling, plan, pooled, maps, group_size));
  };
  with_sampling(op, pooling, maps, rois, offset, wide_count, use);
  if (!grad_maps.is_same(to_input)) to_input.copy_(grad_maps);
}

}  // namespace detops::cpu
