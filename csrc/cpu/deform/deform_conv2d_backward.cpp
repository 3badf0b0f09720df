// SPDX-License-Identifier: MIT
#include "../common/element_type.h"
#include "../common/memory.h"
#include "deform_conv2d.h"

namespace detops::cpu {
namespace {

// Tensors in the arithmetic's type, contiguous, but for the maps' memory formats; those that are
// not there, or not wanted, are undefined.
struct Inputs {
  Tensor grad, input, offset, mask, weight;
};

struct Gradients {
  Tensor input, offset, mask, weight;  // the input's in its own dtype
};

// The sums of an offset group over the channels of one slice.
struct Part {
  int64_t slice, group;
};

// A slice of one block of channels, for a number of images: no other task adds to its part of the
// input's gradient. What several tasks add to is summed afterwards, in the order of the tasks.
template <typename T>
class SliceBackward {
 public:
  using A = accumulate_t<T>;

  SliceBackward(const DeformGeometry& g, const Inputs& in, const Gradients& out, int64_t tile)
      : g_(g),
        in_(in),
        out_(out),
        tile_(std::min(tile, g.positions())),
        map_(deform_map(g)),
        taps_(g, in.offset.const_data_ptr<A>(),
              in.mask.defined() ? in.mask.const_data_ptr<A>() : nullptr, tile_),
        maps_(2 * map_.size()),
        columns_(taps_.stride() * g.points() * kRoIChannels + taps_.kRoom),
        dots_(taps_.stride() * g.points() * 4) {}

  // `packed` [outputs, points, channels]; to `grad_packed`, alike, the weights' gradient is added,
  // and the gradients of samples go to sums(image, group) [3, points, positions]: y, x, mask.
  template <typename Sums>
  void run(const DeformSlice& slice, const A* packed, A* grad_packed, int64_t first, int64_t last,
           const Sums& sums) {
    const bool to_samples = out_.input.defined() || out_.offset.defined() || out_.mask.defined();
    A *map = maps_.data(), *grad_map = map + map_.size();
    for (int64_t image = first; image < last; ++image) {
      for (int64_t row = 0; row < map_.rows(); ++row) {
        map_.load_row(deform_planes<const T>(g_, in_.input, image), slice.channel, slice.channels,
                      row, map);
      }
      if (to_samples) std::fill_n(grad_map, map_.size(), A(0));
      for (int64_t begin = 0; begin < g_.positions(); begin += tile_) {
        const int64_t count = std::min(tile_, g_.positions() - begin);
        taps_.move(image, begin, count);
        const auto product = [&](int64_t group, const A* weight) {
          return deform_product(g_, slice, group, in_.grad, image, begin, count,
                                columns_.data() + group * taps_.column_size(slice), weight);
        };
        for (int64_t group = 0; group < slice.groups && to_samples; ++group) {
          DeformProduct t = product(group, packed);
          mm_out(t.columns, t.outputs, t.weight);
        }
        take_samples(slice, image, begin, to_samples, sums);
        for (int64_t group = 0; group < slice.groups && grad_packed != nullptr; ++group) {
          DeformProduct t = product(group, grad_packed);
          addmm_out(t.weight, t.weight, t.outputs.t(), t.columns);
        }
      }
      if (out_.input.defined()) {
        for (int64_t y = 0; y < g_.height; ++y) {
          map_.store_row(grad_map, deform_planes<T>(g_, out_.input, image), slice.channel,
                         slice.channels, y);
        }
      }
    }
  }

 private:
  template <typename Sums>
  void take_samples(const DeformSlice& slice, int64_t image, int64_t begin, bool to_samples,
                    const Sums& sums) {
    A *map = maps_.data(), *grad_map = map + map_.size();
    const int64_t end = slice.channel + slice.channels;
    int64_t located = -1;
    each_run(g_, slice, slice.channel, end, [&](const DeformRun& run, int64_t group) {
      if (run.offset_group != located) {
        located = run.offset_group;
        taps_.locate(located);
        std::fill_n(dots_.data(), taps_.stride() * g_.points() * 4, A(0));
      }
      const auto block =
          taps_.block(slice, run, group, map, run.channel - slice.channel, columns_.data());
      if (!to_samples) {
        DETOPS_IN_USE(deform_gather<A>)(block);
        return;
      }
      DETOPS_IN_USE(deform_scatter<A>)(block, grad_map, dots_.data());
      const int64_t next = run.channel + run.channels;
      if (next == end || next % (g_.channels / g_.offset_groups) == 0) {
        differentiate(located, sums(image, located) + begin);
      }
    });
  }

  void differentiate(int64_t group, A* sums) {
    const int64_t all = g_.points() * g_.positions();
    for (int64_t k = 0; k < g_.points(); ++k, sums += g_.positions()) {
      DETOPS_IN_USE(deform_differentiate<A>)(
          taps_.point(group, k), dots_.data() + k * taps_.stride(), g_.points() * taps_.stride(),
          sums, sums + all, sums + 2 * all);
    }
  }

  const DeformGeometry& g_;
  const Inputs& in_;
  const Gradients& out_;
  int64_t tile_;
  DeformMap map_;
  DeformTile<A> taps_;
  Buffer<A> maps_, columns_, dots_;
};

// [3, points, positions] of each image, offset group and part of its channels, summed over the
// parts.
template <typename A>
void sum_parts(const DeformGeometry& g, const A* sums, const std::vector<Part>& parts,
               const Gradients& out) {
  const int64_t positions = g.positions(), all = g.points() * positions;
  const int64_t n_parts = static_cast<int64_t>(parts.size());
  A* grad_offset = out.offset.defined() ? out.offset.mutable_data_ptr<A>() : nullptr;
  A* grad_mask = out.mask.defined() ? out.mask.mutable_data_ptr<A>() : nullptr;
  parallel_for(0, g.images * g.offset_groups, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t image = i / g.offset_groups, group = i % g.offset_groups;
      bool first = true;
      for (int64_t part = 0; part < n_parts; ++part) {
        if (parts[part].group != group) continue;
        const A* from = sums + (image * n_parts + part) * 3 * all;
        const auto add = [&](A* to) {
          for (int64_t j = 0; j < positions; ++j) to[j] = first ? from[j] : to[j] + from[j];
          from += positions;
        };
        for (int64_t axis = 0; axis < 2; ++axis) {
          for (int64_t k = 0; k < g.points(); ++k) {
            if (grad_offset == nullptr) {
              from += positions;
            } else {
              add(grad_offset + ((i * g.points() + k) * 2 + axis) * positions);
            }
          }
        }
        for (int64_t k = 0; k < g.points() && grad_mask != nullptr; ++k) {
          add(grad_mask + (i * g.points() + k) * positions);
        }
        first = false;
      }
    }
  });
}

template <typename T>
void backward(const DeformGeometry& g, const Inputs& in, const Gradients& out) {
  using A = accumulate_t<T>;
  const std::vector<DeformSlice> slices = deform_slices(g, kRoIChannels);
  const int64_t n_slices = static_cast<int64_t>(slices.size());
  std::vector<Part> parts;
  std::vector<int64_t> first_part, first_weight{0};
  for (int64_t i = 0; i < n_slices; ++i) {
    const DeformSlice& s = slices[i];
    first_weight.push_back(first_weight.back() + s.outputs * s.group_channels() * g.points());
    first_part.push_back(static_cast<int64_t>(parts.size()));
    each_run(g, s, s.channel, s.channel + s.channels, [&](const DeformRun& run, int64_t) {
      if (parts.empty() || parts.back().slice != i || parts.back().group != run.offset_group) {
        parts.push_back({i, run.offset_group});
      }
    });
  }
  // A number that is the same for any number of threads.
  const int64_t chunks = std::min<int64_t>(g.images, 8), weights = first_weight.back();
  const int64_t all = g.points() * g.positions(), n_parts = static_cast<int64_t>(parts.size());
  Buffer<A> packed(weights), grad_packed(out.weight.defined() ? chunks * weights : 0);
  Buffer<A> sums(g.images * n_parts * 3 * all);
  each_task(n_slices, [&](int64_t s, int64_t end) {
    for (; s < end; ++s) {
      pack_weight(g, slices[s], in.weight.const_data_ptr<A>(), packed.data() + first_weight[s]);
    }
  });
  each_task(chunks * n_slices, [&](int64_t task, int64_t end) {
    SliceBackward<T> backward(g, in, out, deform_tile<A>(g, kRoIChannels * g.points()));
    for (; task < end; ++task) {
      const int64_t chunk = task / n_slices, slice = task % n_slices;
      const DeformSlice& s = slices[slice];
      A* grad_weight = nullptr;
      if (out.weight.defined()) {
        grad_weight = grad_packed.data() + chunk * weights + first_weight[slice];
        std::fill_n(grad_weight, first_weight[slice + 1] - first_weight[slice], A(0));
      }
      backward.run(s, packed.data() + first_weight[slice], grad_weight, g.images * chunk / chunks,
                   g.images * (chunk + 1) / chunks, [&](int64_t image, int64_t group) {
                     int64_t part = first_part[slice];
                     while (parts[part].group != group) ++part;
                     return sums.data() + (image * n_parts + part) * 3 * all;
                   });
    }
  });
  if (out.offset.defined() || out.mask.defined()) sum_parts(g, sums.data(), parts, out);
  if (!out.weight.defined()) return;
  A* grad_weight = out.weight.mutable_data_ptr<A>();
  each_task(n_slices, [&](int64_t s, int64_t end) {
    for (; s < end; ++s) {
      each_weight(g, slices[s], [&](int64_t i, int64_t to) {
        A sum = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          sum += grad_packed[chunk * weights + first_weight[s] + i];
        }
        grad_weight[to] = sum;
      });
    }
  });
}

// In an order that no number of threads changes; in double, since a batch has many positions.
template <typename A>
void sum_bias(const DeformGeometry& g, const Tensor& grad, Tensor& grad_bias) {
  const A* from = grad.const_data_ptr<A>();
  A* to = grad_bias.mutable_data_ptr<A>();
  const bool last = grad.suggest_memory_format() == MemoryFormat::ChannelsLast;
  const int64_t positions = g.positions();
  parallel_for(0, g.outputs, 16, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(end - begin, 0.0);
    for (int64_t image = 0; image < g.images; ++image) {
      const A* map = from + image * g.outputs * positions;
      for (int64_t p = 0; last && p < positions; ++p) {
        for (int64_t o = begin; o < end; ++o) sums[o - begin] += map[p * g.outputs + o];
      }
      for (int64_t o = begin; !last && o < end; ++o) {
        constexpr int64_t kLanes = 16;  // so that an addition need not wait for the one before it
        double lanes[kLanes] = {};
        for (int64_t p = 0; p < positions; ++p) lanes[p % kLanes] += map[o * positions + p];
        for (const double lane : lanes) sums[o - begin] += lane;
      }
    }
    std::copy(sums.begin(), sums.end(), to + begin);
  });
}

}  // namespace

void deform_conv2d_backward(const Tensor& grad, const Tensor& input, const Tensor& offset,
                            const std::optional<Tensor>& mask, const Tensor& weight,
                            const std::optional<Tensor>& bias, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, std::array<bool, 5> wanted,
                            bool edge_gradient, Tensor& to_input, Tensor& to_offset,
                            Tensor& to_mask, Tensor& to_weight, Tensor& to_bias) {
  if (grad.numel() == 0) {
    for (const Tensor& t : {to_input, to_offset, to_mask, to_weight, to_bias}) t.zero_();
    return;
  }
  expect_writes(to_input);
  const DeformGeometry g(input, offset, weight, stride, padding, dilation, edge_gradient);
  const ScalarType type = compute_type(input.scalar_type());
  const Inputs in{as_type(grad, type).contiguous(grad.suggest_memory_format()),
                  input.contiguous(input.suggest_memory_format()), wide(offset, type),
                  wide(mask, type), wide(weight, type)};
  // Itself, unless of another dtype; then it is copied at the end.
  const auto sums_for = [type](const Tensor& t, bool is_wanted) {
    return !is_wanted                ? Tensor()
           : t.scalar_type() == type ? t
                                     : empty(t.sizes(), t.options().dtype(type));
  };
  const Gradients out{wanted[0] ? to_input : Tensor(), sums_for(to_offset, wanted[1]),
                      sums_for(to_mask, wanted[2] && mask), sums_for(to_weight, wanted[3])};
  Tensor bias_sums = sums_for(to_bias, wanted[4] && bias);
  if (wanted[0] || wanted[1] || wanted[2] || wanted[3]) {
    with_element_type(input.scalar_type(),
                      [&](auto element) { backward<decltype(element)>(g, in, out); });
  }
  if (bias_sums.defined()) {
    if (type == kDouble) {
      sum_bias<double>(g, in.grad, bias_sums);
    } else {
      sum_bias<float>(g, in.grad, bias_sums);
    }
  }
  const std::pair<Tensor, Tensor> copies[] = {
      {out.offset, to_offset}, {out.mask, to_mask}, {out.weight, to_weight}, {bias_sums, to_bias}};
  for (const auto& [from, to] : copies) {
    if (from.defined() && !from.is_same(to)) to.copy_(from);
  }
}

}  // namespace detops::cpu
