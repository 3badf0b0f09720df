// SPDX-License-Identifier: MIT
#include "roi.cuh"

// RoIAlign on one feature map is RoIAlign on a pyramid of one level, so both ops are here.
namespace detops::cuda {
namespace {

template <typename T>
struct LevelParams {
  T* map;  // [N, C, H, W], contiguous or channels_last
  int64_t height, width;
  accumulate_t<T> scale;
  TileGrid tiles;
};

// Image and level that a RoI reads. The image is -1 for a batch index out of range. Such a RoI
// pools to zeros.
struct Place {
  int64_t image, level;
};

struct RoIAlignRule {
  SampleRule samples;
  double canonical_scale = 0;
  int64_t canonical_level = 0;
};

// `maps` and `scale` of the base class belong to the first level.
template <typename T>
struct RoIAlignParams : RoIPooling<accumulate_t<T>> {
  using A = accumulate_t<T>;
  RoIAlignRule rule;
  int64_t first_level, n_levels;
  LevelParams<T> levels[Outputs::kMost];

  __device__ Place place(int64_t k) const {
    const A* roi = this->roi(k);
    const int64_t image = this->image(k);
    if (image < 0 || n_levels == 1) return {image, 0};
    return {image, math::roi_level(roi[1], roi[2], roi[3], roi[4], rule.canonical_scale,
                                   rule.canonical_level, first_level, n_levels)};
  }

  __device__ math::RoIAxis<A> axis_on(const LevelParams<T>& level, int64_t k, bool of_cols) const {
    return this->axis(rule.samples, k, level.scale, of_cols);
  }

  // In the lists, a map is an (image, level), flattened.
  __device__ PlacedRoI placed(int64_t k) const {
    const Place at = place(k);
    if (at.image < 0) return {-1, {}};
    const LevelParams<T>& level = levels[at.level];
    return {at.image * n_levels + at.level,
            window_of(span_of(axis_on(level, k, false), this->pooled.h),
                      span_of(axis_on(level, k, true), this->pooled.w), level.height, level.width)};
  }
};

constexpr int kTaps = 512;  // taps of one axis in shared memory
constexpr int kGroup = 4;   // taps loaded at a time: the most that two samples have

// The taps of an axis in shared memory, bin by bin, as math::visit_pixels yields them.
template <typename A>
struct AxisTaps {
  int32_t index[kTaps];
  A weight[kTaps];
  int32_t count[kTaps / 2];  // per bin; its taps begin at bin * (kTaps / pooled)

  // Stores the taps of a bin. Returns false if there are too many.
  __device__ bool hold(const math::RoIAxis<A>& axis, int64_t bin, int64_t pooled, int64_t size) {
    const int share = kTaps / static_cast<int>(pooled), first = static_cast<int>(bin) * share;
    int n = 0;
    math::visit_pixels(axis, bin, size, [&](int64_t i, A w) {
      if (n < share) index[first + n] = static_cast<int32_t>(i), weight[first + n] = w;
      ++n;
    });
    count[bin] = n;
    return n <= share;
  }

  // Calls visit(index, weight) for the taps of a bin.
  template <typename Visit>
  __device__ void visit(int bin, int pooled, const Visit& visit) const {
    const int first = bin * (kTaps / pooled);
    for (int i = first; i < first + count[bin]; ++i) visit(index[i], weight[i]);
  }

  // Calls load(j, index) for up to kGroup taps of a bin, then add(j, weight) for the same taps, so
  // that several loads are in flight at a time.
  template <typename Load, typename Add>
  __device__ void visit_groups(int bin, int pooled, const Load& load, const Add& add) const {
    const int first = bin * (kTaps / pooled), end = first + count[bin];
    for (int i = first; i < end; i += kGroup) {
      for (int j = 0; j < kGroup; ++j) {
        if (i + j < end) load(j, index[i + j]);
      }
      for (int j = 0; j < kGroup; ++j) {
        if (i + j < end) add(j, weight[i + j]);
      }
    }
  }
};

// Sums a bin that has more taps than fit in shared memory. It is rare and not inlined, because it
// would increase the kernel's register use.
template <int n, bool channels_last, typename T, typename A>
__device__ __noinline__ Vector<A, n> sum_of_bin(math::RoIAxis<A> rows, math::RoIAxis<A> cols,
                                                int ph, int pw, int64_t height, int64_t width,
                                                Strides s,
                                                Channels<n, channels_last, const T> map) {
  Vector<A, n> sum{};
  math::visit_taps(rows, ph, height, [&](int64_t y, A wy) {
    const auto row = map + y * s.h;
    math::visit_taps(cols, pw, width,
                     [&](int64_t x, A wx) { add_weighted(wy * wx, row[x * s.w], sum); });
  });
  return sum;
}

// One block per RoI and part of the channels. It stores the taps of both axes once in shared
// memory. One thread per bin of n channels. Adjacent threads handle adjacent channels in
// channels_last, else adjacent bins.
template <int n, bool channels_last, typename T>
__global__ void __launch_bounds__(kThreads, sizeof(accumulate_t<T>) == 4 ? 3 : 2)
    roi_align_forward_kernel(RoIAlignParams<T> p, T* output) {
  using A = accumulate_t<T>;
  __shared__ AxisTaps<A> rows, cols;
  __shared__ Place place;
  __shared__ bool overflow;
  const int self = static_cast<int>(threadIdx.x);
  const int high = static_cast<int>(p.pooled.h), wide = static_cast<int>(p.pooled.w);
  const bool holds = high <= kTaps / 2 && wide <= kTaps / 2;
  constexpr int kChannels = channels_of_block(n);
  const int64_t blocks = p.pooled.n * p.parts(kChannels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, p.pooled.c, kChannels);
    const int64_t k = part.row, first = part.first;
    __syncthreads();
    if (self == 0) {
      place = p.place(k);
      overflow = !holds;
    }
    __syncthreads();
    const LevelParams<T>& level = p.levels[place.level];
    for (int bin = self; holds && place.image >= 0 && bin < high + wide; bin += kThreads) {
      const bool of_cols = bin >= high;
      AxisTaps<A>& taps = of_cols ? cols : rows;
      if (!taps.hold(p.axis_on(level, k, of_cols), of_cols ? bin - high : bin,
                     of_cols ? wide : high, of_cols ? level.width : level.height)) {
        overflow = true;
      }
    }
    __syncthreads();
    const Strides s = strides_of(channels_last, p.pooled.c, level.height, level.width);
    const Strides os = strides_of(channels_last, p.pooled.c, high, wide);
    share_bins(channels_last, high * wide, (part.count + n - 1) / n, [&](int bin, int vector) {
      const int64_t c = first + vector * n;
      const int left = part.count - vector * n, ph = bin / wide, pw = bin % wide;
      Vector<A, n> sum{};
      if (place.image >= 0) {
        const Channels<n, channels_last, const T> map(level.map + s.at(place.image, c, 0, 0), s.c,
                                                      left);
        if (!overflow) {
          Vector<T, n> found[kGroup]{};
          rows.visit(ph, high, [&](int y, A wy) {
            const auto row = map + y * s.h;
            cols.visit_groups(
                pw, wide, [&](int j, int x) { found[j] = row[x * s.w]; },
                [&](int j, A wx) { add_weighted(wy * wx, found[j], sum); });
          });
        } else {
          sum = sum_of_bin(p.axis_on(level, k, false), p.axis_on(level, k, true), ph, pw,
                           level.height, level.width, s, map);
        }
      }
      store_channels<n, channels_last>(output + os.at(k, c, ph, pw), os.c, left, sum);
    });
  }
}

// The range from the first to the last bit that is set.
struct Run {
  int first, count;
};

__device__ Run run_of(unsigned bits) {
  if (bits == 0) return {0, 0};
  const int first = __ffs(static_cast<int>(bits)) - 1;
  return {first, kWarp - __clz(static_cast<int>(bits)) - first};
}

// Computes the weights of a bin, one per lane, at each pixel of a tile along an axis. Returns mask
// bits of the bins that reach the tile.
template <typename A>
__device__ unsigned hold_weights(const math::RoIAxis<A>& axis, int64_t bin, int64_t pooled,
                                 int64_t size, int64_t tile, A (&weight)[kTile]) {
  for (int i = 0; i < kTile; ++i) weight[i] = 0;
  bool any = false;
  if (bin < pooled) {
    math::visit_taps(axis, bin, size, double(tile - 1), double(tile + kTile),
                     [&](int64_t index, A w) {
                       if (index < tile || index >= tile + kTile) return;
                       weight[index - tile] += w;
                       any = true;
                     });
  }
  return __ballot_sync(0xffffffffu, any);
}

// The weights of a few RoIs in a tile, for up to kWarp bins per axis: rows first, then columns. One
// warp computes those of one RoI and axis.
template <typename A>
struct TileRules {
  static constexpr int kRoIs = sizeof(A) == sizeof(float) ? 4 : 2;  // what fits in shared memory
  A weight[2][kRoIs][kWarp][kTile];
  unsigned bins[2][kRoIs];  // mask bits of the bins that reach the tile
};

// Source of a held bin.
struct BinOrigin {
  int64_t grad;  // offset of the first channel's gradient
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
  const Strides& gs = p.pooled.strides;
  const int64_t blocks = tiles * p.parts(kTileChannels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, p.pooled.c, kTileChannels);
    int64_t tile = part.row, index = 0;
    while (tile >= p.levels[index].tiles.count()) tile -= p.levels[index++].tiles.count();
    const LevelParams<T>& level = p.levels[index];
    const TileOrigin at = tile_origin(level.tiles, tile, kTile);
    TileSum<A> sum;
    const auto add = [&](const int64_t* rois, int n, int64_t ph, int64_t pw) {
      __syncthreads();
      const bool of_cols = warp >= kRoIs;
      const int own = warp % kRoIs;
      if (warp < 2 * kRoIs && own < n) {
        const unsigned bins =
            hold_weights(p.axis_on(level, rois[own], of_cols), (of_cols ? pw : ph) + lane,
                         of_cols ? p.pooled.w : p.pooled.h, of_cols ? level.width : level.height,
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
          Run rows, cols;
          for (;; ++i) {
            rows = run_of(rules.bins[0][i]), cols = run_of(rules.bins[1][i]);
            if (bin < rows.count * cols.count) break;
            bin -= rows.count * cols.count;
          }
          const int row = rows.first + bin / cols.count, col = cols.first + bin % cols.count;
          origin[self] = {gs.at(rois[i], part.first, ph + row, pw + col), i, row, col};
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
        share_bins(p.pooled.channels_last, bins, kTileChannels, [&](int b, int c) {
          held.grad[b][c] = c < part.count ? A(grad[origin[b].grad + c * gs.c]) : A(0);
        });
        __syncthreads();
        sum.add(held, bins);
      }
    };
    visit_rois<kRoIs>(lists, at.image * p.n_levels + index, at, [&](const int64_t* rois, int n) {
      for (int64_t ph = 0; ph < p.pooled.h; ph += kWarp) {
        for (int64_t pw = 0; pw < p.pooled.w; pw += kWarp) add(rois, n, ph, pw);
      }
    });
    const Strides s = strides_of(p.maps.channels_last, p.pooled.c, level.height, level.width);
    sum.write(held, level.map + s.at(at.image, part.first, 0, 0), s, part.count, at, level.height,
              level.width);
  }
}

// The tensors must be contiguous in their layout.
template <typename T>
RoIAlignParams<T> make_params(const RoIAlignRule& rule, ArrayRef<double> scales, TensorList maps,
                              const Tensor& rois, const Tensor& pooled) {
  RoIAlignParams<T> p{{rois, scales[0], pooled, maps[0]},
                      rule,
                      std::llround(-std::log2(scales[0])),
                      static_cast<int64_t>(maps.size()),
                      {}};
  for (size_t i = 0; i < maps.size(); ++i) {
    const FeatureMaps map = maps_of(maps[i]);
    p.levels[i] = {static_cast<T*>(const_cast<void*>(maps[i].const_data_ptr())), map.h, map.w,
                   static_cast<accumulate_t<T>>(scales[i]), tile_grid(map.n, map.h, map.w, kTile)};
  }
  return p;
}

void run_forward(const RoIAlignRule& rule, ArrayRef<double> scales, TensorList inputs,
                 const Tensor& boxes, const Tensor& output) {
  // A block counts bins and channels in 32 bits.
  check(output.size(2) * output.size(3) <= 1 << 24,
        "detops.roi_align: output_size must be at most 2^24 bins on a GPU, got ", output.size(2),
        " x ", output.size(3));
  std::vector<Tensor> maps;
  std::vector<const void*> pointers{output.const_data_ptr()};
  for (const Tensor& input : inputs) {
    maps.push_back(input.contiguous(inputs[0].suggest_memory_format()));
    pointers.push_back(maps.back().const_data_ptr());
  }
  const Tensor rois = wide(boxes, output.scalar_type());
  DETOPS_FLOAT_SWITCH(output.scalar_type(), [&] {
    const auto p = make_params<scalar_t>(rule, scales, maps, rois, output);
    const auto run = [&](auto n, auto channels_last) {
      launch(roi_align_forward_kernel<n, channels_last, scalar_t>,
             blocks_for(p.pooled.n * p.parts(channels_of_block(n)), 1), p, output);
    };
    with_layout<scalar_t>(p.maps.channels_last, p.pooled.c, pointers, run);
  });
}

void run_backward(const RoIAlignRule& rule, ArrayRef<double> scales, const Tensor& grad,
                  const Tensor& boxes, TensorList maps) {
  const Tensor pooled = grad.contiguous(maps[0].suggest_memory_format());
  const Tensor rois = wide(boxes, grad.scalar_type());
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    const auto p = make_params<scalar_t>(rule, scales, maps, rois, pooled);
    const auto [lists, memory] = list_rois(p, p.pooled.n, p.maps.n * p.n_levels, grad.options());
    int64_t tiles = 0;
    for (int64_t i = 0; i < p.n_levels; ++i) tiles += p.levels[i].tiles.count();
    launch(roi_align_backward_kernel<scalar_t>, blocks_for(tiles * p.parts(kTileChannels), 1), p,
           lists, pooled, tiles);
  });
}

}  // namespace

void roi_align_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                       int64_t, int64_t sampling_ratio, bool aligned, Tensor& output) {
  run_forward({{sampling_ratio, aligned}}, spatial_scale, input, boxes, output);
}

void roi_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale, int64_t,
                        int64_t, int64_t, int64_t, int64_t, int64_t, int64_t sampling_ratio,
                        bool aligned, Tensor& map) {
  run_backward({{sampling_ratio, aligned}}, spatial_scale, grad, boxes, map);
}

void multiscale_roi_align_forward(TensorList inputs, const Tensor& boxes,
                                  ArrayRef<double> spatial_scales, int64_t, int64_t,
                                  int64_t sampling_ratio, bool aligned, double canonical_scale,
                                  int64_t canonical_level, Tensor& output) {
  run_forward({{sampling_ratio, aligned}, canonical_scale, canonical_level}, spatial_scales, inputs,
              boxes, output);
}

void multiscale_roi_align_backward(const Tensor& grad, const Tensor& boxes,
                                   ArrayRef<double> spatial_scales, int64_t, int64_t, int64_t,
                                   int64_t, IntArrayRef, IntArrayRef, int64_t sampling_ratio,
                                   bool aligned, double canonical_scale, int64_t canonical_level,
                                   std::vector<Tensor>& maps) {
  run_backward({{sampling_ratio, aligned}, canonical_scale, canonical_level}, spatial_scales, grad,
               boxes, maps);
}

}  // namespace detops::cuda
