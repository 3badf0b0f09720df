// SPDX-License-Identifier: MIT
#pragma once

#include "../../host/conv_geometry.h"
#include "../../math/deform.h"
#include "../../products.h"
#include "../common/host.h"
#include "../roi/roi_plan.h"

// Shared by both passes of a deformable convolution. The samples of a tile of output positions are
// gathered into columns, [position, kernel point, channel]. A matrix product then reads the columns
// from L2. Include this file after all other headers.
namespace detops::cpu {

// The samples of one kernel point at neighbouring output positions.
template <typename A>
struct DeformPoint {
  int64_t positions;
  const A *offset_y, *offset_x, *mask;  // mask may be null
  const A *window_y, *window_x;         // origin of each position's window
  A y, x;                               // of the point within the window
  A min_coordinate, height, width;      // range of valid samples; see math::deform::sample
};

// Location of each sample: the pixel of its first corner, and the weights of all four corners times
// the mask. The arrays have room for a whole vector at the end.
template <typename A>
struct DeformTaps {
  lane_index_t<A>* pixel;
  A* weight[4];
};

// Samples of a tile of positions, for some or all channels of a DeformMap. Map and columns have
// room for a whole vector at the end.
template <typename A>
struct DeformBlock {
  DeformTaps<A> taps;  // [points, stride]
  int64_t points, positions, stride;
  const A* map;
  int64_t row;  // row stride of the map, in pixels
  int64_t channel, channels;
  A* columns;  // [position, point, column_stride], starting at the first of the channels
  int64_t column_stride;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../deform/deform_conv2d.inl"
#include "../simd/variants.h"

namespace detops::cpu {

// Channels [channel, channel + channels) and the outputs that depend on them: a part of a group, or
// `groups` small groups of the same size. Each group has its own columns and weights, [group,
// position, point, channel] and [group, output, point, channel].
struct DeformSlice {
  int64_t channel, channels, output, outputs, groups;

  int64_t group_channels() const { return channels / groups; }
  int64_t group_outputs() const { return outputs / groups; }
  // The channels belong to the offset groups [first_offset_group, end_offset_group).
  int64_t first_offset_group(const DeformGeometry& g) const {
    return channel / (g.channels / g.offset_groups);
  }
  int64_t end_offset_group(const DeformGeometry& g) const {
    return divide_up(channel + channels, g.channels / g.offset_groups);
  }
};

// Returns slices of at most `max_channels` channels. Small groups are merged up to kRoIChannels
// channels.
inline std::vector<DeformSlice> deform_slices(const DeformGeometry& g, int64_t max_channels) {
  std::vector<DeformSlice> slices;
  const int64_t channels = g.group_channels(), outputs = g.group_outputs();
  const int64_t groups_per_slice = std::max<int64_t>(1, kRoIChannels / channels);
  for (int64_t group = 0; group < g.groups; group += groups_per_slice) {
    const int64_t count = std::min(groups_per_slice, g.groups - group);
    for (int64_t c = 0; c < count * channels; c += max_channels) {
      slices.push_back({group * channels + c, std::min(max_channels, count * channels - c),
                        group * outputs, count * outputs, count});
    }
  }
  return slices;
}

// Channels of one offset group that are adjacent in the map and in the columns.
struct DeformRun {
  int64_t offset_group, channel, channels, column;  // column: first channel within a position
};

// Calls visit(run, group within the slice) for the runs in channels [begin, end) of a slice.
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

// Calls visit(i, j) for each weight of a slice: i is its index in the packed weights of the slice,
// j that in [O, C / groups, kh, kw].
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

// Packed weights of all slices. Slice s begins at first[s]. The last entry is the total size.
template <typename A>
class DeformWeights {
 public:
  std::vector<int64_t> offsets{0};

  DeformWeights(const DeformGeometry& g, const std::vector<DeformSlice>& slices, const A* weight) {
    for (const DeformSlice& s : slices) {
      offsets.push_back(offsets.back() + s.outputs * s.group_channels() * g.points());
    }
    packed_.reserve(offsets.back());
    parallel_each(slices.size(), 1, [&](int64_t s) {
      A* to = packed_.data() + offsets[s];
      each_weight(g, slices[s], [&](int64_t i, int64_t from) { to[i] = weight[from]; });
    });
  }

  const A* data(int64_t slice) const { return packed_.data() + offsets[slice]; }

 private:
  Buffer<A> packed_;
};

// A block of kRoIChannels channels of one image, [pixel, kRoIChannels], padded with zeros: two rows
// above, one row below, and one column on either side.
struct DeformMap {
  int64_t height, width;

  explicit DeformMap(const DeformGeometry& g) : height(g.height), width(g.width) {}

  int64_t rows() const { return height + 3; }
  int64_t row() const { return (width + 2) * kRoIChannels; }
  // Vectors may extend past the last pixel.
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
};

// Positions per tile, as many as keep the columns in L2. A tile lies within one image, so products
// depend neither on the number of threads nor on that of images.
template <typename A>
int64_t deform_tile(const DeformGeometry& g, int64_t depth) {
  constexpr int64_t kBytes = 512 << 10, kMultiple = 16;
  const int64_t fitting = kBytes / int64_t(sizeof(A)) / std::max<int64_t>(1, depth);
  return std::clamp(fitting / kMultiple * kMultiple, 6 * kMultiple, 32 * kMultiple);
}

// Wraps a matrix in a tensor for ATen's matrix products.
template <typename A>
Tensor matrix(const A* data, int64_t rows, int64_t columns, int64_t row_stride,
              int64_t column_stride = 1) {
  return from_blob(const_cast<A*>(data), {rows, columns}, {row_stride, column_stride},
                   torch::headeronly::CppTypeToScalarType<A>::value);
}

// Operands of the matrix product of one group of a slice, for a tile of positions.
struct DeformProduct {
  Tensor outputs;  // [position, output] of the result or its gradient
  Tensor columns;  // [position, point and channel]
  Tensor weight;   // [output, point and channel]
};

// Sampling points of a tile of positions.
template <typename A>
class DeformTile {
 public:
  // Kernels read and write whole vectors.
  static constexpr int64_t kPadding = 16;

  // The mask may be undefined. A tile has at most `max_positions` positions.
  DeformTile(const DeformGeometry& g, const Tensor& offset, const Tensor& mask,
             int64_t max_positions)
      : g_(g),
        offset_(elements<A>(offset)),
        mask_(mask.defined() ? elements<A>(mask) : nullptr),
        stride_(round_up(max_positions, kPadding)),
        pixels_(samples()),
        weights_(4 * samples()),
        windows_(2 * stride_) {}

  int64_t stride() const { return stride_; }

  // Selects positions [begin, begin + count) of an image.
  void select(int64_t image, int64_t begin, int64_t count) {
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
    DeformPoint<A> p{};
    p.positions = count_;
    p.offset_y = offset_ + at + plane * g_.positions(), p.offset_x = p.offset_y + g_.positions();
    p.mask = mask_ == nullptr ? nullptr : mask_ + at;
    p.window_y = windows_.data(), p.window_x = p.window_y + stride_;
    p.y = A(k / g_.kernel_width * g_.dilation_y), p.x = A(k % g_.kernel_width * g_.dilation_x);
    p.min_coordinate = math::deform::min_coordinate<A>(g_.edge_gradient);
    p.height = A(g_.height), p.width = A(g_.width);
    return p;
  }

  void locate(int64_t group) {
    for (int64_t k = 0; k < g_.points(); ++k) {
      DETOPS_IN_USE(deform_locate<A>)(point(group, k), taps(group, k));
    }
  }

  // Returns the samples of a run that begins at `channel` of the map. `columns` holds all groups.
  DeformBlock<A> block(const DeformSlice& slice, const DeformRun& run, int64_t group, const A* map,
                       int64_t channel, A* columns) {
    DeformBlock<A> b{};
    b.taps = taps(run.offset_group, 0), b.points = g_.points(), b.positions = count_;
    b.stride = stride_, b.map = map, b.row = g_.width + 2;
    b.channel = channel, b.channels = run.channels;
    b.columns = columns + group * column_size(slice) + run.column;
    b.column_stride = slice.group_channels();
    return b;
  }

  DeformProduct product(const DeformSlice& slice, int64_t group, const Tensor& outputs,
                        const A* columns, const A* weight) const {
    const int64_t depth = slice.group_channels() * g_.points(), n = slice.group_outputs();
    const int64_t output = slice.output + group * n, positions = g_.positions();
    const A* data = elements<A>(outputs) + image_ * g_.outputs * positions;
    return {outputs.suggest_memory_format() == MemoryFormat::ChannelsLast
                ? matrix(data + begin_ * g_.outputs + output, count_, n, g_.outputs)
                : matrix(data + output * positions + begin_, count_, n, 1, positions),
            matrix(columns + group * column_size(slice), count_, depth, depth),
            matrix(weight + group * n * depth, n, depth, depth)};
  }

 private:
  // Number of elements in the columns of one group.
  int64_t column_size(const DeformSlice& slice) const {
    return stride_ * g_.points() * slice.group_channels();
  }

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
  Buffer<lane_index_t<A>> pixels_;
  Buffer<A> weights_, windows_;
};

// Calls run(begin, end) for parts of [0, tasks). Even a single task runs in a parallel region:
// there the matrix library uses one thread, and thus one order of summation.
template <typename Run>
void each_task(int64_t tasks, const Run& run) {
  parallel_for(std::max<int64_t>(2, tasks), 1, [&](int64_t begin, int64_t end) {
    if (begin < tasks) run(begin, std::min(end, tasks));
  });
}

}  // namespace detops::cpu
