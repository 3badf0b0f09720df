// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/roi_pool.h"
#include "../common/block.cuh"
#include "../common/vector.cuh"

// Code shared by the RoI ops.
namespace detops::cuda {

// RoIs, the feature maps that they are pooled from, and the pooled output. If the feature maps have
// several channel groups, a bin reads one of them: by default each bin a different one. Channels
// may be split into classes, each with its own bins.
template <typename A>
struct RoIPooling {
  const A* rois;  // [K, columns], column 0 is the batch index
  int64_t columns;
  A scale;
  FeatureMaps maps, pooled;  // [N, D * groups, H, W], [K, D, pooled_height, pooled_width]
  int64_t groups_high, groups_wide, classes = 1;

  RoIPooling(const Tensor& rois, double scale, const Tensor& pooled, const Tensor& maps)
      : rois(rois.const_data_ptr<A>()),
        columns(rois.size(1)),
        scale(static_cast<A>(scale)),
        maps(maps_of(maps)),
        pooled(maps_of(pooled)),
        groups_high(maps.size(1) == pooled.size(1) ? 1 : pooled.size(2)),
        groups_wide(maps.size(1) == pooled.size(1) ? 1 : pooled.size(3)) {}

  __host__ __device__ int64_t groups() const { return groups_high * groups_wide; }
  __host__ __device__ int64_t class_channels() const { return pooled.c / classes; }
  // Number of parts that the channels are split into, each at most `size` channels of one class.
  __host__ __device__ int64_t parts(int64_t size) const {
    return classes * ceil_div(class_channels(), size);
  }

  __device__ const A* roi(int64_t k) const { return rois + columns * k; }

  // Applies rule.axis(low, high, scale, pooled) to the columns or rows of a box.
  template <typename Rule>
  __device__ auto axis(const Rule& rule, int64_t k, A scale, bool of_cols) const {
    const A* low = roi(k) + (of_cols ? 1 : 2);
    return rule.axis(low[0], low[2], scale, of_cols ? pooled.w : pooled.h);
  }

  // Returns the batch index of a RoI, or -1 if it is out of range. Such a RoI pools to zeros.
  __device__ int64_t image(int64_t k) const {
    const A index = *roi(k);
    const bool valid = index >= 0 && index < A(maps.n);
#ifdef DETOPS_DEBUG
    CUDA_KERNEL_ASSERT(valid && "detops: a batch index of boxes is out of range");
#endif
    return valid ? static_cast<int64_t>(index) : -1;
  }

  // Returns the channel of the feature map that bin (ph, pw) of channel c reads.
  __device__ int64_t source(int64_t c, int64_t ph, int64_t pw) const {
    return (c * groups_high + math::cell_index(ph, pooled.h, groups_high)) * groups_wide +
           math::cell_index(pw, pooled.w, groups_wide);
  }
};

// The backward passes of RoI ops are owner-computes: a block owns some channels of a tile of a
// feature map, and adds the gradients of the RoIs that reach the tile, in order. Every element is
// written once and without atomics, so every run gives the same bits.
constexpr int kTile = 8;  // pixels per side; each warp owns a row
constexpr int kPixels = kTile * kTile;
constexpr int kLaneChannels = 2;  // channels per thread, kWarp apart
constexpr int kTileChannels = kLaneChannels * kWarp;
constexpr int kBinsHeld = 32;
static_assert(kThreads == kTile * kWarp, "a warp has a row of the tile");

// Number of blocks that own all tiles and channels.
DETOPS_HD int64_t tile_blocks(const FeatureMaps& maps) {
  return tile_grid(maps.n, maps.h, maps.w, kTile).count() * ceil_div(maps.c, kTileChannels);
}

// A conservative bound on the pixels of a feature map that a RoI may reach.
struct Window {
  int64_t top = 0, bottom = 0, left = 0, right = 0;  // [top, bottom) x [left, right)

  __device__ bool meets(const TileOrigin& tile) const {
    return top < tile.y + kTile && bottom > tile.y && left < tile.x + kTile && right > tile.x;
  }
};

// Extent of the samples of a RoI along an axis.
struct Span {
  double low, high;
};

// The span from `a` to `b`, widened on both sides by `more` and a margin for rounding.
__device__ inline Span span_between(double a, double b, double more = 0) {
  more += 1e-5 * (math::abs(a) + math::abs(b));
  return {math::min(a, b) - more, math::max(a, b) + more};
}

template <typename Axis>
__device__ Span span_of(const Axis& axis, int64_t pooled, double more = 0) {
  const double start = axis.start;
  return span_between(start, start + double(pooled) * double(axis.bin), more);
}

// From the first sample to the last one.
template <typename A>
__device__ Span span_of(const math::RoIAxis<A>& axis, int64_t pooled, double more = 0) {
  if (!(axis.count > 0)) return {1, 0};
  const double bin = axis.bin, first = double(axis.start) + bin / double(axis.count) / 2;
  return span_between(first, first + bin * (double(pooled) - 1 / double(axis.count)), more);
}

// The pixels of a feature map that samples in the spans may read.
__device__ inline Window window_of(const Span& y, const Span& x, int64_t height, int64_t width) {
  if (!(y.low <= y.high && x.low <= x.high)) return {};
  const auto within = [](double at, int64_t size) {
    return static_cast<int64_t>(math::min(math::max(at, 0.0), double(size)));
  };
  return {within(y.low - 2, height), within(y.high + 3, height), within(x.low - 2, width),
          within(x.high + 3, width)};
}

// Axis rule of RoIAlign.
struct SampleRule {
  int64_t sampling_ratio;
  bool aligned;

  template <typename A>
  __device__ math::RoIAxis<A> axis(A low, A high, A scale, int64_t pooled) const {
    return math::roi_axis(low, high, scale, aligned, pooled, sampling_ratio);
  }
};

// Axis rule of RoIPool, see math::pool_axis.
template <int last>
struct PixelRule {
  template <typename A>
  __device__ math::PoolAxis<A> axis(A low, A high, A scale, int64_t pooled) const {
    return math::pool_axis(low, high, scale, last, pooled);
  }
};

// Pools boxes with bins that are products of a row rule and a column rule.
template <typename Rule, typename A_>
struct BoxPooling {
  using A = A_;
  RoIPooling<A> p;
  Rule rule;

  __device__ auto rows(int64_t k) const { return p.axis(rule, k, p.scale, false); }
  __device__ auto cols(int64_t k) const { return p.axis(rule, k, p.scale, true); }

  // The interface that sparse_pool.cuh requires.
  __device__ Window window(int64_t k, int64_t) const {
    return window_of(span_of(rows(k), p.pooled.h), span_of(cols(k), p.pooled.w), p.maps.h,
                     p.maps.w);
  }
  __device__ int64_t most_taps(int64_t k) const {
    return max_pixels(rows(k)) * max_pixels(cols(k));
  }
  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t, int64_t ph, int64_t pw, const math::Rectangle& reach,
                         const Visit& visit) const {
    visit_pixels(rows(k), ph, p.maps.h, reach.top, reach.bottom, [&](int64_t y, A wy) {
      visit_pixels(cols(k), pw, p.maps.w, reach.left, reach.right,
                   [&](int64_t x, A wx) { visit(y, x, wy * wx); });
    });
    return 1;
  }
};

template <typename A>
using SampledBoxes = BoxPooling<SampleRule, A>;

// Channels per block of a forward pass in which a thread handles n channels at a time.
constexpr int channels_of_block(int n) { return (n == 1 ? 2 : n) * kWarp; }

// Calls visit(bin, column) for all columns of all bins, split over the block's threads. A column is
// a channel or a vector of channels. Adjacent threads handle adjacent columns in channels_last,
// else adjacent bins.
template <typename Visit>
__device__ void share_bins(bool channels_last, unsigned bins, unsigned columns,
                           const Visit& visit) {
  for (unsigned i = threadIdx.x; i < bins * columns; i += kThreads) {
    const unsigned bin = channels_last ? i / columns : i % bins;
    const unsigned column = channels_last ? i % columns : i / bins;
    visit(static_cast<int>(bin), static_cast<int>(column));
  }
}

// Sums each of n numbers over all threads of the block, in a fixed order. All threads get the sums.
template <int n, typename A>
__device__ void sum_over_block(A (&numbers)[n]) {
  __shared__ A sums[n][kThreads];
  const int self = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int i = 0; i < n; ++i) sums[i][self] = numbers[i];
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    for (int i = 0; i < n && self < half; ++i) sums[i][self] += sums[i][self + half];
  }
  __syncthreads();
  for (int i = 0; i < n; ++i) numbers[i] = sums[i][0];
}

// Index of the map that a RoI reads, -1 for none, and the window that it reaches.
struct PlacedRoI {
  int64_t map;
  Window window;
};

// In the lists, a map is an (image, class) and a RoI is a (RoI, class), both flattened.
template <typename Sampling>
struct PlaceByWindow {
  Sampling s;

  __device__ PlacedRoI placed(int64_t i) const {
    const int64_t k = i / s.p.classes, of_class = i % s.p.classes, image = s.p.image(k);
    if (image < 0) return {-1, {}};
    return {image * s.p.classes + of_class, s.window(k, of_class)};
  }
};

// The RoIs of each map, in input order.
struct RoILists {
  Window* windows;  // [K]
  int64_t* map;     // [K], PlacedRoI::map
  int64_t* order;   // [K], RoI indices, grouped by map
  int64_t* begin;   // [maps + 1], start of each map in `order`
};

// One block per map: counts the RoIs of the previous maps, then lists its own.
static __global__ void list_rois_kernel(RoILists lists, int64_t count, int64_t maps) {
  __shared__ Votes<> votes;
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t own = blockIdx.x; own < maps; own += gridDim.x) {
    int64_t before[1] = {};
    for (int64_t k = self; k < count; k += kThreads) {
      before[0] += lists.map[k] >= 0 && lists.map[k] < own;
    }
    sum_over_block(before);
    int64_t at = before[0];
    if (self == 0) lists.begin[own] = at;
    for (int64_t first = 0; first < count; first += kThreads) {
      const int64_t k = first + self;
      const bool mine = k < count && lists.map[k] == own;
      __syncthreads();
      votes.put(mine);
      __syncthreads();
      if (mine) lists.order[at + votes.count_before(self)] = k;
      at += votes.total();
    }
    if (self == 0 && own + 1 == maps) lists.begin[maps] = at;
  }
}

// rois.placed(k) returns the PlacedRoI of RoI k. The returned tensor owns the lists.
template <typename RoIs>
std::tuple<RoILists, Tensor> list_rois(const RoIs& rois, int64_t count, int64_t maps,
                                       const Options& options) {
  Tensor memory;
  const auto [windows, map, order, begin] = allocate_arrays<Window, int64_t, int64_t, int64_t>(
      memory, options, count, count, count, maps + 1);
  const RoILists lists{windows, map, order, begin};
  for_each(count, [=] __device__(int64_t k) {
    const PlacedRoI placed = rois.placed(k);
    lists.map[k] = placed.map;
    lists.windows[k] = placed.window;
  });
  launch(list_rois_kernel, blocks_for(maps, 1), lists, count, maps);
  return {lists, memory};
}

// Calls visit(rois, n) in all threads of the block for the RoIs of the map that may reach the tile,
// in order. Each call gets n of them, at most `size`.
template <int size, typename Visit>
__device__ void visit_rois(const RoILists& lists, int64_t map, const TileOrigin& tile,
                           const Visit& visit) {
  __shared__ Votes<> votes;
  __shared__ int64_t reaching[kThreads];
  const int64_t end = lists.begin[map + 1];
  for (int64_t first = lists.begin[map]; first < end; first += kThreads) {
    const int64_t at = first + threadIdx.x, k = at < end ? lists.order[at] : -1;
    const bool reaches = k >= 0 && lists.windows[k].meets(tile);
    __syncthreads();
    votes.put(reaches);
    __syncthreads();
    if (reaches) reaching[votes.count_before(static_cast<int>(threadIdx.x))] = k;
    const int n = votes.total();
    __syncthreads();
    for (int i = 0; i < n; i += size) visit(reaching + i, math::min(size, n - i));
  }
}

// A few bins in shared memory: their weights at each pixel of the tile, and their gradients.
template <typename A>
struct TileBins {
  A weight[kBinsHeld][kPixels];
  unsigned rows[kBinsHeld];              // mask bits of the tile rows with weights
  A grad[kBinsHeld][kTileChannels + 1];  // padded: no bank conflicts along bins or channels
};

template <typename A>
struct TileSum {
  A at[kTile][kLaneChannels] = {};

  // Adds the gradients of `bins` held bins. Requires a barrier before it.
  __device__ void add(const TileBins<A>& held, int bins) {
    const int self = static_cast<int>(threadIdx.x), row = self / kWarp, lane = self % kWarp;
    for (int b = 0; b < bins; ++b) {
      if ((held.rows[b] >> row & 1) == 0) continue;
      A grad[kLaneChannels];
      for (int j = 0; j < kLaneChannels; ++j) grad[j] = held.grad[b][lane + j * kWarp];
      for (int x = 0; x < kTile; ++x) {
        const A weight = held.weight[b][row * kTile + x];
        if (weight == 0) continue;  // 0 * NaN is NaN: it must stay in its bin's pixels
        for (int j = 0; j < kLaneChannels; ++j) at[x][j] = multiply_add(weight, grad[j], at[x][j]);
      }
    }
  }

  // Writes the tile. `map` is the plane of the first of its `channels` channels.
  template <typename T>
  __device__ void write(TileBins<A>& held, T* map, const Strides& s, int channels,
                        const TileOrigin& tile, int64_t height, int64_t width) const {
    const int self = static_cast<int>(threadIdx.x), row = self / kWarp, lane = self % kWarp;
    const auto put = [&](int of_row, int of_col, int c, A value) {
      const int64_t y = tile.y + of_row, x = tile.x + of_col;
      if (y < height && x < width && c < channels) map[s.at(0, c, y, x)] = static_cast<T>(value);
    };
    if (s.c == 1) {
      for (int x = 0; x < kTile; ++x) {
        for (int j = 0; j < kLaneChannels; ++j) put(row, x, lane + j * kWarp, at[x][j]);
      }
      return;
    }
    // Transposes in shared memory, a few rows at a time, so that writes coalesce.
    constexpr int kRows = kBinsHeld / kTile;
    for (int first = 0; first < kTile; first += kRows) {
      __syncthreads();
      if (row >= first && row < first + kRows) {
        for (int x = 0; x < kTile; ++x) {
          for (int j = 0; j < kLaneChannels; ++j) {
            held.grad[(row - first) * kTile + x][lane + j * kWarp] = at[x][j];
          }
        }
      }
      __syncthreads();
      for (int i = self; i < channels * kBinsHeld; i += kThreads) {
        const int pixel = i % kBinsHeld, c = i / kBinsHeld;
        put(first + pixel / kTile, pixel % kTile, c, held.grad[pixel][c]);
      }
    }
  }
};

}  // namespace detops::cuda
