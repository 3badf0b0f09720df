// SPDX-License-Identifier: MIT
#include "../../math/max_samples.h"
#include "roi.cuh"

// Ops that pool the largest of several bilinear samples: RoIAlign with a maximum, and BorderAlign
// of BorderDet. The backward pass adds a bin's gradient to the pixels of that sample.
namespace detops::cuda {
namespace {

// Position of a bin's sample and its gradient. A sample off the map gets none.
template <typename A>
struct GivenSample {
  A y, x, grad;
};

// Owner-computes; see roi.cuh. A Source provides
//   A: the type of coordinates and sums,
//   FeatureMaps maps: the maps of the lists; each RoI of the lists is an item,
//   int64_t bins: bins per item,
//   PlacedRoI placed(item),
//   GivenSample<A> given(item, bin, channel): reads memory in the layout of the maps.
template <typename T, typename Source>
__global__ void __launch_bounds__(kThreads)
    max_samples_backward_kernel(Source source, RoILists lists, T* maps) {
  using A = typename Source::A;
  constexpr int kBins = kBinsHeld / 2;  // held.grad stores a gradient and an x per bin
  __shared__ TileBins<A> held;
  static_assert(kTileChannels <= kPixels, "a weight's place is a y's");
  const int self = static_cast<int>(threadIdx.x), row = self / kWarp, lane = self % kWarp;
  const FeatureMaps& m = source.maps;
  const TileGrid tiles = tile_grid(m.n, m.h, m.w, kTile);
  const int64_t blocks = tile_blocks(m);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, m.c, kTileChannels);
    const TileOrigin tile = tile_origin(tiles, part.row, kTile);
    TileSum<A> sum;
    visit_rois<kBins>(lists, tile.image, tile, [&](const int64_t* items, int count) {
      const int64_t all = count * source.bins;
      for (int64_t begin = 0; begin < all; begin += kBins) {
        const int bins = static_cast<int>(math::min(int64_t(kBins), all - begin));
        __syncthreads();
        share_bins(m.channels_last, bins, kTileChannels, [&](int b, int c) {
          const int64_t item = items[(begin + b) / source.bins], bin = (begin + b) % source.bins;
          GivenSample<A> sample{A(math::kOffMap), 0, 0};
          if (c < part.count) sample = source.given(item, bin, part.first + c);
          held.weight[b][c] = sample.y;
          held.grad[b][c] = sample.grad;
          held.grad[kBins + b][c] = sample.x;
        });
        __syncthreads();
        for (int b = 0; b < bins; ++b) {
          for (int j = 0; j < kLaneChannels; ++j) {
            const int c = lane + j * kWarp;
            math::Taps<A> y, x;
            if (!math::bilinear_taps(held.weight[b][c], m.h, y)) continue;
            A share = y.low == tile.y + row ? y.weight_low : A(0);
            if (y.high == tile.y + row) share += y.weight_high;
            if (share == 0) continue;
            if (!math::bilinear_taps(held.grad[kBins + b][c], m.w, x)) continue;
            const A grad = held.grad[b][c];
            for (int i = 0; i < kTile; ++i) {
              A weight = x.low == tile.x + i ? x.weight_low : A(0);
              if (x.high == tile.x + i) weight += x.weight_high;
              // 0 * NaN is NaN: it must stay in its sample's pixels.
              if (weight != 0) sum.at[i][j] = multiply_add(share * weight, grad, sum.at[i][j]);
            }
          }
        }
      }
    });
    sum.write(held, maps + m.strides.at(tile.image, part.first, 0, 0), m.strides, part.count, tile,
              m.h, m.w);
  }
}

template <typename T, typename Source>
void max_samples_backward(const Source& source, int64_t items, const Tensor& maps) {
  const auto [lists, memory] = list_rois(source, items, source.maps.n, maps.options());
  launch(max_samples_backward_kernel<T, Source>, blocks_for(tile_blocks(source.maps), 1), source,
         lists, maps);
}

// Items are RoIs.
template <typename T, typename A_>
struct PooledMaxima : PlaceByWindow<SampledBoxes<A_>> {
  using A = A_;
  FeatureMaps maps, pooled;
  int64_t bins;
  const T* grads;
  const A *argmax_y, *argmax_x;

  __device__ GivenSample<A> given(int64_t k, int64_t bin, int64_t c) const {
    const int64_t i = pooled.strides.at(k, c, bin / pooled.w, bin % pooled.w);
    return {argmax_y[i], argmax_x[i], static_cast<A>(grads[i])};
  }
};

constexpr int64_t kBorders = 4;

// Items are borders of boxes, in memory order.
template <typename T, typename A_>
struct BorderMaxima {
  using A = A_;
  FeatureMaps maps;
  const T* grads;
  const A* boxes;
  const int32_t* argmax;
  int64_t count, pool_size;
  int64_t bins = 1;

  __device__ int64_t image(int64_t item) const { return item / kBorders / count; }
  __device__ PlacedRoI placed(int64_t item) const {
    const int64_t border = item % kBorders;
    const auto samples = math::border_lines(boxes + item / kBorders * 4, border, pool_size);
    const auto span = [](const math::SampleLine<A>& line) {
      return span_between(line.origin, line.at(line.count - 1));
    };
    return {image(item) * kBorders + border,
            window_of(span(samples.rows), span(samples.cols), maps.h, maps.w)};
  }
  __device__ GivenSample<A> given(int64_t item, int64_t, int64_t c) const {
    const int64_t i = item + (image(item) * (maps.c - 1) + c) * count * kBorders;
    GivenSample<A> sample{0, 0, static_cast<A>(grads[i])};
    math::border_sample(boxes + item / kBorders * 4, item % kBorders, pool_size, argmax[i],
                        sample.y, sample.x);
    return sample;
  }
};

}  // namespace

void roi_align_max_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                           int64_t, int64_t sampling_ratio, bool aligned, Tensor& output,
                           Tensor& argmax_y, Tensor& argmax_x) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const SampledBoxes<A> pooling{{rois, spatial_scale, output, maps}, {sampling_ratio, aligned}};
    const scalar_t* from = elements(maps);
    scalar_t* to = elements(output);
    A *to_y = elements(argmax_y), *to_x = elements(argmax_x);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const RoIPooling<A>& p = pooling.p;
      const Strides& s = p.maps.strides;
      const Position at = p.pooled.position(i);
      const int64_t image = p.image(at.n);
      const auto rows = math::bin_line(pooling.rows(at.n), at.h);
      const auto cols = math::bin_line(pooling.cols(at.n), at.w);
      math::LargestSample<A> largest{A(0), -1, -1};
      if (image >= 0) {
        const scalar_t* map = from + s.at(image, at.c, 0, 0);
        largest = math::largest_sample(rows, cols, p.maps.h, p.maps.w, [&](int64_t y, int64_t x) {
          return static_cast<A>(map[y * s.h + x * s.w]);
        });
      }
      to[i] = static_cast<scalar_t>(largest.value);
      to_y[i] = largest.row < 0 ? A(math::kOffMap) : rows.at(largest.row);
      to_x[i] = largest.row < 0 ? A(math::kOffMap) : cols.at(largest.col);
    });
  });
}

void roi_align_max_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax_y,
                            const Tensor& argmax_x, double spatial_scale, int64_t, int64_t, int64_t,
                            int64_t, int64_t, int64_t, int64_t sampling_ratio, bool aligned,
                            Tensor& map) {
  const MemoryFormat format = map.suggest_memory_format();
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor rois = wide(boxes, type), outer = grad.contiguous(format);
  const Tensor rows = argmax_y.to(type).contiguous(format);
  const Tensor cols = argmax_x.to(type).contiguous(format);
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const SampledBoxes<A> pooling{{rois, spatial_scale, outer, map}, {sampling_ratio, aligned}};
    const auto& p = pooling.p;
    const PooledMaxima<scalar_t, A> maxima{{pooling},         p.maps,          p.pooled,
                                           p.pooled.pixels(), elements(outer), elements(rows),
                                           elements(cols)};
    max_samples_backward<scalar_t>(maxima, boxes.size(0), map);
  });
}

void border_align_forward(const Tensor& input, const Tensor& boxes, int64_t pool_size,
                          Tensor& output, Tensor& argmax) {
  const Tensor in = input.contiguous(), places = wide(boxes, input.scalar_type());
  // One map per border of each image, [N * 4, C, H, W].
  const FeatureMaps maps{output.size(0) * kBorders, output.size(1), in.size(2), in.size(3), false};
  const int64_t count = boxes.size(1);
  int32_t* which = elements(argmax);
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t* all = elements(in);
    const A* box = elements(places);
    scalar_t* to = elements(output);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t border = i % kBorders, k = i / kBorders % count;
      const int64_t c = i / kBorders / count % maps.c, image = i / kBorders / count / maps.c;
      const Strides& s = maps.strides;
      const scalar_t* map = all + s.at(image * kBorders + border, c, 0, 0);
      const auto samples = math::border_lines(box + (image * count + k) * 4, border, pool_size);
      const auto largest = math::largest_sample(
          samples.rows, samples.cols, maps.h, maps.w,
          [&](int64_t y, int64_t x) { return static_cast<A>(map[y * s.h + x * s.w]); });
      to[i] = static_cast<scalar_t>(largest.value);
      // One of the two lines has a single sample: its index is 0.
      which[i] = static_cast<int32_t>(math::max(largest.row, largest.col));
    });
  });
}

void border_align_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax,
                           int64_t pool_size, int64_t height, int64_t width, Tensor& map) {
  const Tensor outer = grad.contiguous(), index = argmax.contiguous();
  const Tensor places = wide(boxes, grad.scalar_type());
  const FeatureMaps maps{grad.size(0) * kBorders, grad.size(1), height, width, false};
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const BorderMaxima<scalar_t, A> maxima{
        maps, elements(outer), elements(places), elements(index), boxes.size(1), pool_size};
    max_samples_backward<scalar_t>(maxima, maps.n * boxes.size(1), map);
  });
}

}  // namespace detops::cuda
