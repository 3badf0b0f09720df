// SPDX-License-Identifier: MIT
#include "deform_conv2d.h"

namespace detops::cpu {
namespace {

template <typename T>
void forward(const DeformGeometry& g, const Tensor& input, const Tensor& offset, const Tensor& mask,
             const Tensor& weight, const Tensor& bias, Tensor& output) {
  using A = accumulate_t<T>;
  const std::vector<DeformSlice> slices = deform_slices(g, std::max(g.channels, kRoIChannels));
  const DeformWeights<A> weights(g, slices, weight.const_data_ptr<A>());
  const int64_t points = g.points(), positions = g.positions();
  const int64_t max_depth = slices[0].channels * points;  // no other slice is larger
  const int64_t tile = deform_tile<A>(g, max_depth), tiles = divide_up(positions, tile);
  const DeformMap map(g);
  const int64_t blocks = divide_up(g.channels, kRoIChannels);
  constexpr int64_t kBytes = 64 << 20;  // of feature maps in lanes at a time
  const int64_t batch =
      std::clamp<int64_t>(kBytes / int64_t(sizeof(A)) / (blocks * map.size()), 1, g.images);
  Buffer<A> maps(batch * blocks * map.size());
  for (int64_t first = 0; first < g.images; first += batch) {
    const int64_t images = std::min(batch, g.images - first);
    const int64_t rows = map.rows();
    parallel_each(images * blocks * rows, 32, [&](int64_t i) {
      const int64_t row = i % rows, image = i / rows / blocks, c = i / rows % blocks * kRoIChannels;
      map.load_row(planes_of<const T>(input, first + image, is_channels_last(input)), c,
                   std::min(kRoIChannels, g.channels - c), row,
                   maps.data() + i / rows * map.size());
    });
    each_task(images * tiles, [&](int64_t task, int64_t last) {
      DeformTile<A> taps(g, offset, mask, std::min(tile, positions));
      Buffer<A> columns(taps.stride() * max_depth + taps.kPadding);
      for (; task < last; ++task) {
        const int64_t image = task / tiles, begin = task % tiles * tile;
        taps.select(first + image, begin, std::min(tile, positions - begin));
        for (int64_t group = 0; group < g.offset_groups; ++group) taps.locate(group);
        for (size_t slice = 0; slice < slices.size(); ++slice) {
          const DeformSlice& s = slices[slice];
          for (int64_t c = s.channel, end; c < s.channel + s.channels; c = end) {
            const int64_t block = c / kRoIChannels;
            const A* from = maps.data() + (image * blocks + block) * map.size();
            end = std::min((block + 1) * kRoIChannels, s.channel + s.channels);
            each_run(g, s, c, end, [&](const DeformRun& run, int64_t group) {
              DETOPS_IN_USE(deform_gather<A>)
              (taps.block(s, run, group, from, run.channel % kRoIChannels, columns.data()));
            });
          }
          for (int64_t group = 0; group < s.groups; ++group) {
            const DeformProduct t =
                taps.product(s, group, output, columns.data(), weights.data(slice));
            if (bias.defined()) {
              const int64_t n = s.group_outputs();
              t.outputs.copy_(bias.narrow(0, s.output + group * n, n));
              addmm_out(t.outputs, t.outputs, t.columns, t.weight.t());
            } else {
              mm_out(t.outputs, t.columns, t.weight.t());
            }
          }
        }
      }
    });
  }
}

// Contiguous arguments. Feature maps keep their memory format. All but `input` are in the compute
// type. A missing mask is undefined.
struct Inputs {
  Tensor grad, input, offset, mask, weight;
};

struct Gradients {
  Tensor input, offset, mask, weight;  // undefined if not wanted; input is in its own dtype
};

// Backward pass of a slice of one block of channels over some images. No other task adds to this
// slice's part of the input gradient. Gradients that several tasks add to are summed afterwards, in
// the order of the tasks.
template <typename T>
struct SliceBackward {
  using A = accumulate_t<T>;

  const DeformGeometry& g;
  const Inputs& in;
  const Gradients& out;
  int64_t tile;  // positions
  DeformMap shape{g};
  DeformTile<A> taps{g, in.offset, in.mask, tile};
  Buffer<A> maps = Buffer<A>(2 * shape.size());
  Buffer<A> columns = Buffer<A>(taps.stride() * g.points() * kRoIChannels + taps.kPadding);
  Buffer<A> dots = Buffer<A>(taps.stride() * g.points() * 4);

  // `packed` is [outputs, points, channels]. Adds the weight gradient to `grad_packed`, in the same
  // layout, unless it is null. Writes the gradients of samples (y, x, mask) to sums(image, group),
  // which is [3, points, positions].
  template <typename Sums>
  void run(const DeformSlice& slice, const A* packed, A* grad_packed, int64_t first, int64_t last,
           const Sums& sums) {
    const bool to_samples = out.input.defined() || out.offset.defined() || out.mask.defined();
    A *map = maps.data(), *grad_map = map + shape.size();
    for (int64_t image = first; image < last; ++image) {
      for (int64_t row = 0; row < shape.rows(); ++row) {
        shape.load_row(planes_of<const T>(in.input, image, is_channels_last(in.input)),
                       slice.channel, slice.channels, row, map);
      }
      if (to_samples) std::fill_n(grad_map, shape.size(), A(0));
      for (int64_t begin = 0; begin < g.positions(); begin += tile) {
        taps.select(image, begin, std::min(tile, g.positions() - begin));
        for (int64_t group = 0; group < slice.groups && to_samples; ++group) {
          const DeformProduct t = taps.product(slice, group, in.grad, columns.data(), packed);
          mm_out(t.columns, t.outputs, t.weight);
        }
        process_samples(slice, image, begin, to_samples, sums);
        for (int64_t group = 0; group < slice.groups && grad_packed != nullptr; ++group) {
          const DeformProduct t = taps.product(slice, group, in.grad, columns.data(), grad_packed);
          addmm_out(t.weight, t.weight, t.outputs.t(), t.columns);
        }
      }
      for (int64_t y = 0; out.input.defined() && y < g.height; ++y) {
        store_lanes(grad_map + (y + 2) * shape.row() + kRoIChannels,
                    planes_of<T>(out.input, image, is_channels_last(out.input)), slice.channel,
                    slice.channels, y, 0, g.width);
      }
    }
  }

  template <typename Sums>
  void process_samples(const DeformSlice& slice, int64_t image, int64_t begin, bool to_samples,
                       const Sums& sums) {
    A *map = maps.data(), *grad_map = map + shape.size();
    const int64_t end = slice.channel + slice.channels;
    const int64_t dot_stride = taps.stride() * g.points(), axis_size = g.points() * g.positions();
    int64_t located_group = -1;
    each_run(g, slice, slice.channel, end, [&](const DeformRun& run, int64_t group) {
      if (run.offset_group != located_group) {
        located_group = run.offset_group;
        taps.locate(located_group);
        std::fill_n(dots.data(), 4 * dot_stride, A(0));
      }
      const auto block =
          taps.block(slice, run, group, map, run.channel - slice.channel, columns.data());
      if (!to_samples) {
        DETOPS_IN_USE(deform_gather<A>)(block);
        return;
      }
      DETOPS_IN_USE(deform_scatter<A>)(block, grad_map, dots.data());
      const int64_t next = run.channel + run.channels;
      if (next != end && next % (g.channels / g.offset_groups) != 0) return;
      A* to = sums(image, located_group) + begin;
      for (int64_t k = 0; k < g.points(); ++k, to += g.positions()) {
        DETOPS_IN_USE(deform_differentiate<A>)(taps.point(located_group, k),
                                               dots.data() + k * taps.stride(), dot_stride, to,
                                               to + axis_size, to + 2 * axis_size);
      }
    });
  }
};

// Sums the parts of all slices for each image and offset group, [3, points, positions] each, in
// slice order. first_part[s] is the index of the first part of slice s within an image.
template <typename A>
void sum_parts(const DeformGeometry& g, const A* sums, const std::vector<DeformSlice>& slices,
               const std::vector<int64_t>& first_part, const Gradients& out) {
  const int64_t positions = g.positions(), points = g.points();
  A* grad_offset = out.offset.defined() ? out.offset.mutable_data_ptr<A>() : nullptr;
  A* grad_mask = out.mask.defined() ? out.mask.mutable_data_ptr<A>() : nullptr;
  parallel_each(g.images * g.offset_groups, 1, [&](int64_t i) {
    const int64_t image = i / g.offset_groups, group = i % g.offset_groups;
    bool first = true;
    for (size_t s = 0; s < slices.size(); ++s) {
      if (group < slices[s].first_offset_group(g) || group >= slices[s].end_offset_group(g))
        continue;
      const int64_t part = first_part[s] + group - slices[s].first_offset_group(g);
      const A* from = sums + (image * first_part.back() + part) * 3 * points * positions;
      const auto add = [&](A* to) {
        for (int64_t j = 0; j < positions; ++j) to[j] = first ? from[j] : to[j] + from[j];
      };
      for (int64_t k = 0; k < 3 * points; ++k, from += positions) {
        const int64_t axis = k / points, at = i * points + k % points;
        if (axis < 2 && grad_offset != nullptr) add(grad_offset + (at * 2 + axis) * positions);
        if (axis == 2 && grad_mask != nullptr) add(grad_mask + at * positions);
      }
      first = false;
    }
  });
}

template <typename T>
void backward(const DeformGeometry& g, const Inputs& in, const Gradients& out) {
  using A = accumulate_t<T>;
  const std::vector<DeformSlice> slices = deform_slices(g, kRoIChannels);
  const DeformWeights<A> weights(g, slices, in.weight.const_data_ptr<A>());
  const int64_t n_slices = static_cast<int64_t>(slices.size());
  std::vector<int64_t> first_part{0};
  for (const DeformSlice& s : slices) {
    first_part.push_back(first_part.back() + s.end_offset_group(g) - s.first_offset_group(g));
  }
  // A fixed limit, so that the order of summation does not depend on the number of threads.
  const int64_t chunks = std::min<int64_t>(g.images, 8), all_weights = weights.offsets.back();
  const int64_t part_size = 3 * g.points() * g.positions();
  Buffer<A> grad_packed(out.weight.defined() ? chunks * all_weights : 0);
  Buffer<A> sums(g.images * first_part.back() * part_size);
  each_task(chunks * n_slices, [&](int64_t task, int64_t end) {
    const int64_t tile = std::min(g.positions(), deform_tile<A>(g, kRoIChannels * g.points()));
    SliceBackward<T> backward{g, in, out, tile};
    for (; task < end; ++task) {
      const int64_t chunk = task / n_slices, slice = task % n_slices;
      const DeformSlice& s = slices[slice];
      A* grad_weight = nullptr;
      if (out.weight.defined()) {
        grad_weight = grad_packed.data() + chunk * all_weights + weights.offsets[slice];
        std::fill_n(grad_weight, weights.offsets[slice + 1] - weights.offsets[slice], A(0));
      }
      backward.run(s, weights.data(slice), grad_weight, g.images * chunk / chunks,
                   g.images * (chunk + 1) / chunks, [&](int64_t image, int64_t group) {
                     const int64_t part = first_part[slice] + group - s.first_offset_group(g);
                     return sums.data() + (image * first_part.back() + part) * part_size;
                   });
    }
  });
  if (out.offset.defined() || out.mask.defined()) {
    sum_parts(g, sums.data(), slices, first_part, out);
  }
  if (!out.weight.defined()) return;
  A* grad_weight = out.weight.mutable_data_ptr<A>();
  parallel_each(n_slices, 1, [&](int64_t s) {
    const A* packed = grad_packed.data() + weights.offsets[s];
    each_weight(g, slices[s], [&](int64_t i, int64_t to) {
      A sum = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += packed[chunk * all_weights + i];
      grad_weight[to] = sum;
    });
  });
}

// Sums in an order that does not depend on the number of threads. Sums in double because a batch
// has many positions.
template <typename A>
void sum_bias(const DeformGeometry& g, const Tensor& grad, Tensor& grad_bias) {
  const A* from = grad.const_data_ptr<A>();
  A* to = grad_bias.mutable_data_ptr<A>();
  const bool last = grad.suggest_memory_format() == MemoryFormat::ChannelsLast;
  const int64_t positions = g.positions();
  parallel_for(g.outputs, 16, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(end - begin, 0.0);
    for (int64_t image = 0; image < g.images; ++image) {
      const A* map = from + image * g.outputs * positions;
      for (int64_t p = 0; last && p < positions; ++p) {
        for (int64_t o = begin; o < end; ++o) sums[o - begin] += map[p * g.outputs + o];
      }
      for (int64_t o = begin; !last && o < end; ++o) {
        constexpr int64_t kLanes = 16;  // independent sums hide the latency of additions
        double lanes[kLanes] = {};
        for (int64_t p = 0; p < positions; ++p) lanes[p % kLanes] += map[o * positions + p];
        for (const double lane : lanes) sums[o - begin] += lane;
      }
    }
    std::copy(sums.begin(), sums.end(), to + begin);
  });
}

}  // namespace

void deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                           const std::optional<Tensor>& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, Tensor& output) {
  const DeformGeometry g(input, offset, weight, stride, padding, dilation);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const ScalarType type = compute_type(input.scalar_type());
  with_element_type(input.scalar_type(), [&](auto element) {
    forward<decltype(element)>(g, maps, wide(offset, type), wide(mask, type), wide(weight, type),
                               wide(bias, type), output);
  });
}

void deform_conv2d_backward(const Tensor& grad, const Tensor& input, const Tensor& offset,
                            const std::optional<Tensor>& mask, const Tensor& weight,
                            const std::optional<Tensor>& bias, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, ArrayRef<uint8_t> wanted,
                            bool edge_gradient, Tensor& to_input, Tensor& to_offset,
                            Tensor& to_mask, Tensor& to_weight, Tensor& to_bias) {
  if (grad.numel() == 0) {
    for (const Tensor& t : {to_input, to_offset, to_mask, to_weight, to_bias}) t.zero_();
    return;
  }
  const DeformGeometry g(input, offset, weight, stride, padding, dilation, edge_gradient);
  const ScalarType type = compute_type(input.scalar_type());
  const Inputs in{grad.to(type).contiguous(grad.suggest_memory_format()),
                  input.contiguous(input.suggest_memory_format()), wide(offset, type),
                  wide(mask, type), wide(weight, type)};
  const Gradients out{wanted[0] ? to_input : Tensor(), wanted[1] ? to_offset : Tensor(),
                      wanted[2] && mask ? to_mask : Tensor(), wanted[3] ? to_weight : Tensor()};
  if (wanted[0] || wanted[1] || wanted[2] || wanted[3]) {
    with_element_type(input.scalar_type(),
                      [&](auto element) { backward<decltype(element)>(g, in, out); });
  }
  if (wanted[4] && bias) {
    DETOPS_WIDE_SWITCH(type, [&] { sum_bias<scalar_t>(g, in.grad, to_bias); });
  }
}

}  // namespace detops::cpu
