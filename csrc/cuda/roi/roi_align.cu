// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "roi.cuh"
#include "roi_rules.cuh"

// RoIAlign on one map is RoIAlign on a pyramid of one level; both ops are here.
namespace detops::cuda {
namespace {

template <typename T>
struct LevelParams {
  T* map;  // [N, C, H, W] in either layout
  int64_t height, width;
  double scale;
  TileGrid tiles;
};

template <typename T>
struct RoIAlignParams {
  LevelParams<T> levels[kMaxLevels];
  int64_t n_levels, first_level;
  const accumulate_t<T>* rois;  // [K, 5]
  int64_t count, images, channels;
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool aligned, channels_last;
  double canonical_scale;
  int64_t canonical_level;
};

// Which image and level a RoI reads; image -1 for a batch index out of range, which pools to zeros.
struct Place {
  int64_t image, level;
};

template <typename T>
__device__ Place place_roi(const RoIAlignParams<T>& p, const accumulate_t<T>* roi) {
  const int64_t image = image_of(roi, p.images);
  if (image < 0) return {-1, 0};
  return {image, p.n_levels == 1
                     ? 0
                     : math::roi_level(roi[1], roi[2], roi[3], roi[4], p.canonical_scale,
                                       p.canonical_level, p.first_level, p.n_levels)};
}

template <typename T, typename A = accumulate_t<T>>
__device__ math::RoIAxis<A> row_axis(const RoIAlignParams<T>& p, const A* roi, double scale) {
  return math::roi_axis(roi[2], roi[4], A(scale), p.aligned, p.pooled_height, p.sampling_ratio);
}

template <typename T, typename A = accumulate_t<T>>
__device__ math::RoIAxis<A> col_axis(const RoIAlignParams<T>& p, const A* roi, double scale) {
  return math::roi_axis(roi[1], roi[3], A(scale), p.aligned, p.pooled_width, p.sampling_ratio);
}

constexpr int channels_of_block(int n) { return (n == 1 ? 2 : n) * kWarp; }

// A block has a RoI and some channels; the rules of its axes are made once, in shared memory. A
// thread has a bin of n channels; neighbouring threads have the channels beside in channels_last,
// else the bins beside.
template <int n, bool channels_last, typename T>
__global__ void __launch_bounds__(kThreads, sizeof(accumulate_t<T>) == 4 ? 3 : 2)
    roi_align_forward_kernel(RoIAlignParams<T> p, T* output) {
  using A = accumulate_t<T>;
  __shared__ AxisTaps<A> rows, cols;
  __shared__ Place place;
  __shared__ bool overflow;
  const int self = static_cast<int>(threadIdx.x);
  const int high = static_cast<int>(p.pooled_height), wide = static_cast<int>(p.pooled_width);
  const bool holds = high <= kTaps / 2 && wide <= kTaps / 2;
  constexpr int kChannels = channels_of_block(n);
  const int64_t blocks = p.count * ceil_div(p.channels, kChannels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, p.channels, kChannels);
    const int64_t k = part.row, first = part.first;
    const A* roi = p.rois + 5 * k;
    __syncthreads();
    if (self == 0) {
      place = place_roi(p, roi);
      overflow = !holds;
    }
    __syncthreads();
    const LevelParams<T>& level = p.levels[place.level];
    for (int bin = self; holds && place.image >= 0 && bin < high + wide; bin += kThreads) {
      const bool of_rows = bin < high;
      const auto axis = of_rows ? row_axis(p, roi, level.scale) : col_axis(p, roi, level.scale);
      AxisTaps<A>& taps = of_rows ? rows : cols;
      if (!taps.hold(axis, of_rows ? bin : bin - high, of_rows ? high : wide,
                     of_rows ? level.height : level.width)) {
        overflow = true;
      }
    }
    __syncthreads();
    const Strides s = strides_of(channels_last, p.channels, level.height, level.width);
    const Strides os = strides_of(channels_last, p.channels, high, wide);
    const unsigned bins = unsigned(high) * unsigned(wide), vectors = (part.count + n - 1) / n;
    for (unsigned i = self; i < bins * vectors; i += kThreads) {
      const int bin = static_cast<int>(channels_last ? i / vectors : i % bins);
      const int begin = static_cast<int>(channels_last ? i % vectors : i / bins) * n;
      const int64_t c = first + begin;
      const int left = part.count - begin;
      const int ph = bin / wide, pw = bin % wide;
      A sum[n] = {};
      if (place.image >= 0) {
        const Channels<n, channels_last, const T> map(level.map + place.image * s.n + c * s.c, s.c,
                                                      left);
        const auto add = [&](const Vector<T, n>& values, A weight) {
          for (int j = 0; j < n; ++j) {
            sum[j] = multiply_add(weight, static_cast<A>(values.at[j]), sum[j]);
          }
        };
        if (!overflow) {
          rows.visit(ph, high, [&](int y, A wy) {
            const auto row = map + y * s.h;
            cols.visit(pw, wide, [&](int x, A wx) { add(row[x * s.w], wy * wx); });
          });
        } else {
          const auto rows_of_bin = row_axis(p, roi, level.scale);
          const auto cols_of_bin = col_axis(p, roi, level.scale);
          math::visit_taps(rows_of_bin, ph, level.height, [&](int64_t y, A wy) {
            const auto row = map + y * s.h;
            math::visit_taps(cols_of_bin, pw, level.width,
                             [&](int64_t x, A wx) { add(row[x * s.w], wy * wx); });
          });
        }
      }
      Vector<T, n> pooled;
      for (int j = 0; j < n; ++j) pooled.at[j] = static_cast<T>(sum[j]);
      store_channels<n, channels_last>(output + k * os.n + c * os.c + ph * os.h + pw * os.w, os.c,
                                       left, pooled);
    }
  }
}

// The map of a RoI: that of its image and level.
template <typename T>
struct PlaceRoI {
  RoIAlignParams<T> p;

  __device__ int64_t operator()(int64_t k, Window& window) const {
    using A = accumulate_t<T>;
    const A* roi = p.rois + 5 * k;
    const Place place = place_roi(p, roi);
    window = {};
    if (place.image < 0) return -1;
    const LevelParams<T>& level = p.levels[place.level];
    const auto reach = [](const math::RoIAxis<A>& axis, int64_t pooled, int64_t size,
                          int64_t& begin, int64_t& end) {
      const A last = axis.start + A(pooled) * axis.bin;
      reach_of_samples(math::min(axis.start, last), math::max(axis.start, last),
                       axis.count > 0 ? size : 0, begin, end);
    };
    reach(row_axis(p, roi, level.scale), p.pooled_height, level.height, window.top, window.bottom);
    reach(col_axis(p, roi, level.scale), p.pooled_width, level.width, window.left, window.right);
    return place.image * p.n_levels + place.level;
  }
};

// The weights of some RoIs in a tile, up to kWarp bins of each axis; a warp makes those of one,
// rows first.
template <typename A>
struct TileRules {
  static constexpr int kRoIs = sizeof(A) == sizeof(float) ? 4 : 2;  // what fits a block's memory
  A weight[2][kRoIs][kWarp][kTile];
  unsigned bins[2][kRoIs];  // a bit for each that reaches the tile
};

// Where a held bin comes from.
struct BinOrigin {
  int64_t grad;  // of the first channel
  int roi, row, col;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    roi_align_backward_kernel(RoIAlignParams<T> p, RoILists lists, const T* grad, int64_t tiles) {
  using A = accumulate_t<T>;
  __shared__ TileBins<A> held;
  __shared__ TileRules<A> rules;
  constexpr int kRoIs = TileRules<A>::kRoIs;
  static_assert(2 * kRoIs <= kThreads / kWarp, "a warp for each rule");
  __shared__ BinOrigin origin[kBinsHeld];
  const int self = static_cast<int>(threadIdx.x), warp = self / kWarp, lane = self % kWarp;
  const Strides gs = strides_of(p.channels_last, p.channels, p.pooled_height, p.pooled_width);
  const int64_t blocks = tiles * ceil_div(p.channels, kTileChannels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, p.channels, kTileChannels);
    int64_t tile = part.row, index = 0;
    while (tile >= p.levels[index].tiles.count()) tile -= p.levels[index++].tiles.count();
    const LevelParams<T>& level = p.levels[index];
    const TilePlace at = tile_place(level.tiles, tile, kTile);
    TileSum<A> sum;
    const auto add = [&](const int64_t* rois, int n, int64_t ph, int64_t pw) {
      __syncthreads();
      const bool of_cols = warp >= kRoIs;
      const int own = warp % kRoIs;
      if (warp < 2 * kRoIs && own < n) {
        const A* roi = p.rois + 5 * rois[own];
        const auto axis = of_cols ? col_axis(p, roi, level.scale) : row_axis(p, roi, level.scale);
        const unsigned bins = hold_weights(axis, (of_cols ? pw : ph) + lane,
                                           of_cols ? p.pooled_width : p.pooled_height,
                                           of_cols ? level.width : level.height,
                                           of_cols ? at.x : at.y, rules.weight[of_cols][own][lane]);
        if (lane == 0) rules.bins[of_cols][own] = bins;
      }
      __syncthreads();
      int all = 0;
      for (int i = 0; i < n; ++i) {
        all += run_of(rules.bins[0][i]).count * run_of(rules.bins[1][i]).count;
      }
      for (int begin = 0; begin < all; begin += kBinsHeld) {
        const int bins = min(kBinsHeld, all - begin);
        if (begin > 0) __syncthreads();
        if (self < bins) {
          int i = 0, bin = begin + self;
          Run rows = run_of(rules.bins[0][i]), cols = run_of(rules.bins[1][i]);
          while (bin >= rows.count * cols.count) {
            bin -= rows.count * cols.count;
            ++i;
            rows = run_of(rules.bins[0][i]), cols = run_of(rules.bins[1][i]);
          }
          const int row = rows.first + bin / cols.count, col = cols.first + bin % cols.count;
          origin[self] = {
              rois[i] * gs.n + part.first * gs.c + (ph + row) * gs.h + (pw + col) * gs.w, i, row,
              col};
          unsigned reached = 0;
          for (int y = 0; y < kTile; ++y) {
            reached |= unsigned(rules.weight[0][i][row][y] != 0) << y;
          }
          held.rows[self] = reached;
        }
        __syncthreads();
        for (int i = self; i < bins * kPixels; i += kThreads) {
          const int b = i / kPixels, pixel = i % kPixels;
          const BinOrigin& from = origin[b];
          held.weight[b][pixel] = rules.weight[0][from.roi][from.row][pixel / kTile] *
                                  rules.weight[1][from.roi][from.col][pixel % kTile];
        }
        hold(held.grad, p.channels_last, part.count, bins,
             [&](int b, int c) { return static_cast<A>(grad[origin[b].grad + c * gs.c]); });
        __syncthreads();
        sum.add(held, bins);
      }
    };
    visit_groups<kRoIs>(lists, at.image * p.n_levels + index, at.y, at.x, kTile,
                        [&](const int64_t* rois, int n) {
                          for (int64_t ph = 0; ph < p.pooled_height; ph += kWarp) {
                            for (int64_t pw = 0; pw < p.pooled_width; pw += kWarp) {
                              add(rois, n, ph, pw);
                            }
                          }
                        });
    const Strides s = strides_of(p.channels_last, p.channels, level.height, level.width);
    sum.write(held, level.map + at.image * s.n + part.first * s.c, s, part.count, at.y, at.x,
              level.height, level.width);
  }
}

struct Pooling {
  ArrayRef<double> scales;  // one per level
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool aligned;
  double canonical_scale;
  int64_t canonical_level;
};

// `maps` and `rois` are contiguous in their layout.
template <typename T>
RoIAlignParams<T> make_params(const Pooling& pooling, TensorList maps, const Tensor& rois) {
  RoIAlignParams<T> p{};
  for (size_t i = 0; i < maps.size(); ++i) {
    const int64_t height = maps[i].size(2), width = maps[i].size(3);
    p.levels[i] = {static_cast<T*>(const_cast<void*>(maps[i].const_data_ptr())), height, width,
                   pooling.scales[i], tile_grid(maps[i].size(0), height, width, kTile)};
  }
  p.n_levels = static_cast<int64_t>(maps.size());
  p.first_level = std::llround(-std::log2(pooling.scales[0]));
  p.rois = rois.const_data_ptr<accumulate_t<T>>();
  p.count = rois.size(0);
  p.images = maps[0].size(0);
  p.channels = maps[0].size(1);
  p.pooled_height = pooling.pooled_height;
  p.pooled_width = pooling.pooled_width;
  p.sampling_ratio = pooling.sampling_ratio;
  p.aligned = pooling.aligned;
  p.channels_last = is_channels_last(maps[0]);
  p.canonical_scale = pooling.canonical_scale;
  p.canonical_level = pooling.canonical_level;
  return p;
}

void run_forward(const Pooling& pooling, TensorList inputs, const Tensor& rois, Tensor& output) {
  if (inputs[0].numel() == 0) {  // no image that a batch index could name
    output.zero_();
    return;
  }
  const auto format = inputs[0].suggest_memory_format();
  // A block counts bins and channels in 32 bits.
  check(pooling.pooled_height * pooling.pooled_width <= 1 << 24,
        "detops.roi_align: output_size must be at most 2^24 bins on a GPU, got ",
        pooling.pooled_height, " x ", pooling.pooled_width);
  std::vector<Tensor> maps;
  std::vector<const void*> pointers{output.const_data_ptr()};
  for (const Tensor& input : inputs) {
    maps.push_back(input.contiguous(format));
    pointers.push_back(maps.back().const_data_ptr());
  }
  const Tensor wide_rois = wide(rois, output.scalar_type());
  DETOPS_FLOAT_SWITCH(output.scalar_type(), [&] {
    const auto params = make_params<scalar_t>(pooling, maps, wide_rois);
    const auto run = [&](auto n, auto channels_last) {
      const int64_t parts = ceil_div(params.channels, channels_of_block(n));
      launch("roi_align", roi_align_forward_kernel<n, channels_last, scalar_t>,
             blocks_for(params.count * parts, 1), params, output.mutable_data_ptr<scalar_t>());
    };
    with_layout<scalar_t>(params.channels_last, params.channels, pointers, run);
  });
}

void run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois, TensorList maps) {
  const Tensor pooled = grad.contiguous(maps[0].suggest_memory_format());
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    const auto params = make_params<scalar_t>(pooling, maps, wide_rois);
    const auto [lists, memory] =
        list_rois("roi_align_backward", PlaceRoI<scalar_t>{params}, params.count,
                  params.images * params.n_levels, grad.options());
    int64_t tiles = 0;
    for (int64_t i = 0; i < params.n_levels; ++i) tiles += params.levels[i].tiles.count();
    launch("roi_align_backward", roi_align_backward_kernel<scalar_t>,
           blocks_for(tiles * ceil_div(params.channels, kTileChannels), 1), params, lists,
           pooled.const_data_ptr<scalar_t>(), tiles);
  });
}

}  // namespace

void roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                       int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                       bool aligned, Tensor& output) {
  run_forward({spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned, 0, 0}, input,
              rois, output);
}

void roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                        int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                        int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                        bool aligned, Tensor& map) {
  run_backward({spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned, 0, 0}, grad,
               rois, map);
}

void multiscale_roi_align_forward(TensorList inputs, const Tensor& rois,
                                  ArrayRef<double> spatial_scales, int64_t pooled_height,
                                  int64_t pooled_width, int64_t sampling_ratio, bool aligned,
                                  double canonical_scale, int64_t canonical_level, Tensor& output) {
  run_forward({spatial_scales, pooled_height, pooled_width, sampling_ratio, aligned,
               canonical_scale, canonical_level},
              inputs, rois, output);
}

void multiscale_roi_align_backward(const Tensor& grad, const Tensor& rois,
                                   ArrayRef<double> spatial_scales, int64_t pooled_height,
                                   int64_t pooled_width, int64_t batch_size, int64_t channels,
                                   IntArrayRef heights, IntArrayRef widths, int64_t sampling_ratio,
                                   bool aligned, double canonical_scale, int64_t canonical_level,
                                   std::vector<Tensor>& maps) {
  run_backward({spatial_scales, pooled_height, pooled_width, sampling_ratio, aligned,
                canonical_scale, canonical_level},
               grad, rois, maps);
}

}  // namespace detops::cuda
