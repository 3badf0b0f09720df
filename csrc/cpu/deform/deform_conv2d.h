// SPDX-License-Identifier: MIT
#pragma once

#include "../../deform/geometry.h"
#include "../../math/deform.h"
#include "../../ops.h"
#include "../../products.h"
#include "../common/buffer.h"
#include "../roi/planes.h"

// What the two passes of a deformable convolution share. The samples of a tile of output positions
// are brought into columns, [position, kernel point, channel], which a matrix product then takes
// from a near cache. To be included after all other headers.
namespace detops::cpu {

// Maps are in blocks of kRoIChannels channels, [pixel, kRoIChannels], with zeros around the image:
// two rows above it, one below, one column on either side.
template <typename A>
using pixel_index_t = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;

// The samples of one kernel point at neighbouring output positions.
template <typename A>
struct DeformPoint {
  int64_t positions;
  const A *offset_y, *offset_x, *mask;  // mask: or nullptr
  const A *window_y, *window_x;         // where each position's window begins
  A y, x;                               // of the point, from there on
  A least, height, width;               // where samples count; see math::deform::sample
};

// Where they lie: the pixel of the first corner, the weights of the four with the mask in them.
// Room for a whole vector at the end.
template <typename A>
struct DeformTaps {
  pixel_index_t<A>* pixel;
  A* weight[4];
};

// Samples of a tile of positions in (some channels of) one block. Map and columns have room for a
// whole vector at the end.
template <typename A>
struct DeformBlock {
  DeformTaps<A> taps;  // [points, stride]
  int64_t points, positions, stride;
  const A* map;
  int64_t row;  // pixels from one row of the map to the next
  int64_t channel, channels;
  A* columns;  // [position, point, column_stride], from the first of the channels on
  int64_t column_stride;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../deform/deform_conv2d.inl"
#include "../simd/variants.h"

namespace detops::cpu {

// Channels [channel, channel + channels) and the outputs that they lead to: a part of a group, or
// `groups` small groups. Groups are alike; each has columns and weights of its own, [group,
// position, point, channel] and [group, output, point, channel].
struct DeformSlice {
  int64_t channel, channels, output, outputs, groups;

  int64_t group_channels() const { return channels / groups; }
  int64_t group_outputs() const { return outputs / groups; }
};

// At most `most` channels each; small groups are taken together up to kRoIChannels.
inline std::vector<DeformSlice> deform_slices(const DeformGeometry& g, int64_t most) {
  std::vector<DeformSlice> slices;
  const int64_t channels = g.group_channels(), outputs = g.group_outputs();
  const int64_t together = std::max<int64_t>(1, kRoIChannels / channels);
  for (int64_t group = 0; group < g.groups; group += together) {
    const int64_t count = std::min(together, g.groups - group);
    for (int64_t c = 0; c < count * channels; c += most) {
      slices.push_back({group * channels + c, std::min(most, count * channels - c), group * outputs,
                        count * outputs, count});
    }
  }
  return slices;
}

// Channels that are neighbours in the map and in the columns, and belong to one offset group.
struct DeformRun {
  int64_t offset_group, channel, channels, column;  // column: of the first one, in one position
};

// Calls visit(run, group of the slice) for the runs of channels [begin, end) of a slice.
template <typename Visit>
void each_run(const DeformGeometry& g, const DeformSlice& slice, int64_t begin, int64_t end,
              const Visit& visit) {
  const int64_t offset_group = g.channels / g.offset_groups, group = slice.group_channels();
  for (int64_t c = begin; c < end;) {
    const int64_t in_slice = c - slice.channel;
    const int64_t next = std::min({end, (c / offset_group + 1) * offset_group,
                                   slice.channel + (in_slice / group + 1) * group});
    visit(DeformRun{c / offset_group, c, next - c, in_slice % group}, in_slice / group);
    c = next;
  }
}

// Calls visit(packed, weight) for the place of each number in a slice's weights and in the weight
// tensor, [O, C / groups, kh, kw].
template <typename Visit>
void each_weight(const DeformGeometry& g, const DeformSlice& slice, const Visit& visit) {
  const int64_t points = g.points(), channels = g.group_channels();
  const int64_t first = slice.channel % channels;
  int64_t packed = 0;
  for (int64_t o = slice.output; o < slice.output + slice.outputs; ++o) {
    for (int64_t k = 0; k < points; ++k) {
      for (int64_t c = first; c < first + slice.group_channels(); ++c, ++packed) {
        visit(packed, (o * channels + c) * points + k);
      }
    }
  }
}

template <typename A>
void pack_weight(const DeformGeometry& g, const DeformSlice& slice, const A* weight, A* packed) {
  each_weight(g, slice, [&](int64_t i, int64_t from) { packed[i] = weight[from]; });
}

// One block of channels of one image, with the zeros around it that the kernels ask for.
struct DeformMap {
  int64_t height, width;

  int64_t rows() const { return height + 3; }
  int64_t row() const { return (width + 2) * kRoIChannels; }
  // Vectors may reach beyond the last pixel.
  int64_t size() const { return rows() * row() + kRoIChannels; }

  template <typename T>
  void load_row(const Planes<const T>& image, int64_t channel, int64_t channels, int64_t row_index,
                accumulate_t<T>* map) const {
    using A = accumulate_t<T>;
    A* to = map + row_index * row();
    const int64_t y = row_index - 2;
    if (y < 0 || y >= height) {
      std::fill(to, to + row(), A(0));
    } else {
      std::fill(to, to + kRoIChannels, A(0));
      load_lanes(image, channel, channels, y, 0, width, to + kRoIChannels);
      std::fill(to + row() - kRoIChannels, to + row(), A(0));
    }
    if (row_index + 1 == rows()) std::fill(to + row(), map + size(), A(0));
  }

  template <typename T>
  void store_row(const accumulate_t<T>* map, const Planes<T>& image, int64_t channel,
                 int64_t channels, int64_t y) const {
    store_lanes(map + (y + 2) * row() + kRoIChannels, image, channel, channels, y, 0, width);
  }
};

inline DeformMap deform_map(const DeformGeometry& g) {
  const DeformMap map{g.height, g.width};
  check(map.size() / kRoIChannels <= INT32_MAX,
        "detops.deform_conv2d: an image must have fewer than 2^31 pixels with its border, got ",
        g.height, " x ", g.width);
  return map;
}

template <typename T>
Planes<T> deform_planes(const DeformGeometry& g, const Tensor& maps, int64_t image) {
  auto* data = static_cast<std::remove_const_t<T>*>(const_cast<void*>(maps.const_data_ptr()));
  return {data + image * g.channels * g.height * g.width, g.channels, g.height, g.width,
          maps.suggest_memory_format() == MemoryFormat::ChannelsLast};
}

// As many positions as keep the columns in a near cache: of an image, so that neither the number of
// threads nor that of images changes a product.
template <typename A>
int64_t deform_tile(const DeformGeometry& g, int64_t depth) {
  constexpr int64_t kBytes = 512 << 10, kMultiple = 16;
  const int64_t fitting = kBytes / int64_t(sizeof(A)) / std::max<int64_t>(1, depth);
  return std::clamp(fitting / kMultiple * kMultiple, 6 * kMultiple, 32 * kMultiple);
}

// Where the samples of a tile lie.
template <typename A>
class DeformTile {
 public:
  // Kernels read and write whole vectors.
  static constexpr int64_t kRoom = 16;

  DeformTile(const DeformGeometry& g, const A* offset, const A* mask, int64_t most)
      : g_(g),
        offset_(offset),
        mask_(mask),
        stride_((most + kRoom - 1) / kRoom * kRoom),
        pixels_(samples()),
        weights_(4 * samples()),
        windows_(2 * stride_) {}

  int64_t stride() const { return stride_; }

  // Positions [begin, begin + count) of an image.
  void move(int64_t image, int64_t begin, int64_t count) {
    image_ = image, begin_ = begin, count_ = count;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = begin + i;
      windows_[i] = A(position / g_.output_width * g_.stride_y - g_.padding_y);
      windows_[stride_ + i] = A(position % g_.output_width * g_.stride_x - g_.padding_x);
    }
  }

  DeformPoint<A> point(int64_t group, int64_t k) const {
    const int64_t plane = (image_ * g_.offset_groups + group) * g_.points() + k;
    const int64_t at = plane * g_.positions() + begin_;
    const A* y = offset_ + at + plane * g_.positions();
    return {count_,
            y,
            y + g_.positions(),
            mask_ == nullptr ? nullptr : mask_ + at,
            windows_.data(),
            windows_.data() + stride_,
            A(k / g_.kernel_width * g_.dilation_y),
            A(k % g_.kernel_width * g_.dilation_x),
            math::deform::least_place<A>(g_.edge_gradient),
            A(g_.height),
            A(g_.width)};
  }

  void locate(int64_t group) {
    for (int64_t k = 0; k < g_.points(); ++k) {
      DETOPS_IN_USE(deform_locate<A>)(point(group, k), taps(group, k));
    }
  }

  // The samples of a run whose channels begin at `channel` of the map. `columns` are those of all
  // groups of the slice.
  DeformBlock<A> block(const DeformSlice& slice, const DeformRun& run, int64_t group, const A* map,
                       int64_t channel, A* columns) {
    return {taps(run.offset_group, 0),
            g_.points(),
            count_,
            stride_,
            map,
            g_.width + 2,
            channel,
            run.channels,
            columns + group * column_size(slice) + run.column,
            slice.group_channels()};
  }

  // Of the columns of one group.
  int64_t column_size(const DeformSlice& slice) const {
    return stride_ * g_.points() * slice.group_channels();
  }

 private:
  int64_t samples() const { return g_.offset_groups * g_.points() * stride_; }

  DeformTaps<A> taps(int64_t group, int64_t k) {
    const int64_t at = (group * g_.points() + k) * stride_;
    A* weight = weights_.data() + at;
    return {pixels_.data() + at,
            {weight, weight + samples(), weight + 2 * samples(), weight + 3 * samples()}};
  }

  const DeformGeometry& g_;
  const A *offset_, *mask_;
  int64_t stride_, image_ = 0, begin_ = 0, count_ = 0;
  Buffer<pixel_index_t<A>> pixels_;
  Buffer<A> weights_, windows_;
};

// A matrix as a tensor, for ATen's products.
template <typename A>
Tensor matrix(const A* data, int64_t rows, int64_t columns, int64_t row_stride,
              int64_t column_stride = 1) {
  return from_blob(const_cast<A*>(data), {rows, columns}, {row_stride, column_stride},
                   torch::headeronly::CppTypeToScalarType<A>::value);
}

// What the product of one group of a slice takes, for a tile of positions.
struct DeformProduct {
  Tensor outputs;  // [position, output] of the result or its gradient
  Tensor columns;  // [position, point and channel]
  Tensor weight;   // [output, point and channel]
};

template <typename A>
DeformProduct deform_product(const DeformGeometry& g, const DeformSlice& slice, int64_t group,
                             const Tensor& outputs, int64_t image, int64_t begin, int64_t count,
                             const A* columns, const A* weight) {
  const int64_t depth = slice.group_channels() * g.points(), n = slice.group_outputs();
  const int64_t output = slice.output + group * n;
  const A* data = outputs.const_data_ptr<A>() + image * g.outputs * g.positions();
  return {outputs.suggest_memory_format() == MemoryFormat::ChannelsLast
              ? matrix(data + begin * g.outputs + output, count, n, g.outputs)
              : matrix(data + output * g.positions() + begin, count, n, 1, g.positions()),
          matrix(columns, count, depth, depth),
          matrix(weight + group * n * depth, n, depth, depth)};
}

// For each of [0, tasks), in parallel. Within a parallel region the library that multiplies
// matrices keeps to one thread, and so to one order of its sums; a single task would run outside of
// one.
template <typename Run>
void each_task(int64_t tasks, const Run& run) {
  parallel_for(0, std::max<int64_t>(2, tasks), 1, [&](int64_t begin, int64_t end) {
    if (begin < tasks) run(begin, std::min(end, tasks));
  });
}

}  // namespace detops::cpu
