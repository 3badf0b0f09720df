// SPDX-License-Identifier: MIT
#pragma once

#include "../../deform/geometry.h"
#include "../../math/deform.h"
#include "../../ops.h"
#include "../../products.h"
#include "../common/launch.cuh"
#include "../common/vector.cuh"

// The samples of a chunk of output positions are brought into columns, which a matrix product
// takes. Maps are in the order [N, H, W, C]: where a sample lies is computed once, by one thread,
// and shared with those over its channels.
namespace detops::cuda {

template <typename T>
struct DeformParams {
  using A = accumulate_t<T>;
  const T* input;          // [N, H, W, C]
  const A *offset, *mask;  // in the usual order; mask: or null
  int64_t first;           // position of the chunk, counted through all images
  int count;               // of positions
  int channels, height, width;
  int output_width, positions;  // of an image
  int points, kernel_width, groups, offset_groups;
  int stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  A least;  // where samples begin to count

  __host__ __device__ int sample_channels() const { return channels / offset_groups; }
  __host__ __device__ int pixels() const { return height * width; }

  // Numbered plane by plane for 32 positions at a time: neighbouring threads read neighbouring
  // offsets. Some samples of the last positions are none.
  __host__ __device__ int samples() const {
    return ceil_div(count, kWarp) * kWarp * offset_groups * points;
  }

  // Columns: [groups, positions of the chunk, points, C / groups]. row: of positions and points.
  __device__ int64_t column(int row, int channel) const {
    const int size = channels / groups;
    return (int64_t(channel / size) * count * points + row) * size + channel % size;
  }
};

template <typename A>
struct DeformSample {
  math::deform::Sample<A> at;
  A mask;
  int64_t image;
  int row;                  // of the columns, or -1
  int group;                // of offsets
  int64_t plane, in_plane;  // of the mask: where its number is
  Vector<int, 4> corners;   // pixels of the image, or -1
};

template <typename T, typename A = accumulate_t<T>>
__device__ DeformSample<A> sample_of(const DeformParams<T>& p, int index) {
  DeformSample<A> s;
  const int plane = index / kWarp % (p.offset_groups * p.points);
  const int position = index / kWarp / (p.offset_groups * p.points) * kWarp + index % kWarp;
  s.row = -1;
  s.corners = {{-1, -1, -1, -1}};
  if (position >= p.count) return s;
  const int point = plane % p.points;
  s.group = plane / p.points;
  s.row = position * p.points + point;
  s.image = (p.first + position) / p.positions;
  const int place = static_cast<int>(p.first + position - s.image * p.positions);
  s.in_plane = place;
  s.plane = s.image * p.offset_groups * p.points + plane;
  const A* offset = p.offset + 2 * s.plane * p.positions + place;
  const A window_y = A(place / p.output_width * p.stride_y - p.padding_y);
  const A window_x = A(place % p.output_width * p.stride_x - p.padding_x);
  s.at = math::deform::sample(
      window_y + A(point / p.kernel_width * p.dilation_y) + offset[0],
      window_x + A(point % p.kernel_width * p.dilation_x) + offset[p.positions], p.least,
      A(p.height), A(p.width));
  s.mask = p.mask == nullptr ? A(1) : p.mask[s.plane * p.positions + place];
  for (int i = 0; i < 4; ++i) {
    const int y = static_cast<int>(s.at.y) + i / 2, x = static_cast<int>(s.at.x) + i % 2;
    const bool inside = y >= 0 && y < p.height && x >= 0 && x < p.width;
    s.corners.at[i] = inside ? y * p.width + x : -1;
  }
  return s;
}

// The pixel 0 of the sample's image and first channel.
template <typename T, typename A>
__device__ const T* map_of(const DeformParams<T>& p, const DeformSample<A>& s) {
  return p.input + s.image * p.pixels() * p.channels + s.group * p.sample_channels();
}

constexpr int kBlockSamples = 64;  // samples that a block takes at a time

template <typename T, int n>
__global__ void __launch_bounds__(kThreads)
    deform_columns_kernel(DeformParams<T> p, accumulate_t<T>* columns) {
  using A = accumulate_t<T>;
  __shared__ Vector<int, 4> corners[kBlockSamples];
  __shared__ Vector<A, 4> weights[kBlockSamples];
  __shared__ const T* maps[kBlockSamples];
  __shared__ int rows[kBlockSamples], channel[kBlockSamples];
  const int self = static_cast<int>(threadIdx.x), vectors = p.sample_channels() / n;
  for (int first = static_cast<int>(blockIdx.x) * kBlockSamples; first < p.samples();
       first += static_cast<int>(gridDim.x) * kBlockSamples) {
    if (self < kBlockSamples) {
      const DeformSample<A> s = sample_of(p, first + self);
      rows[self] = s.row;
      if (s.row >= 0) {
        const auto weight = math::deform::weights<A>(s.at, s.mask);
        for (int i = 0; i < 4; ++i) weights[self].at[i] = weight.at[i];
        corners[self] = s.corners;
        maps[self] = map_of(p, s);
        channel[self] = s.group * p.sample_channels();
      }
    }
    __syncthreads();
    for (int i = self; i < kBlockSamples * vectors; i += kThreads) {
      const int k = i / vectors, c = i % vectors * n;
      if (rows[k] < 0) continue;
      const Vector<int, 4> corner = corners[k];
      const Vector<A, 4> weight = weights[k];
      Vector<T, n> found[4] = {};
      for (int j = 0; j < 4; ++j) {
        if (corner.at[j] >= 0) found[j] = load<n>(maps[k] + int64_t(corner.at[j]) * p.channels + c);
      }
      Vector<A, n> sums{};
      for (int j = 0; j < 4; ++j) {
        if (corner.at[j] < 0) continue;
        for (int m = 0; m < n; ++m) {
          sums.at[m] = multiply_add(weight.at[j], A(found[j].at[m]), sums.at[m]);
        }
      }
      store(columns + p.column(rows[k], channel[k] + c), sums);
    }
    __syncthreads();
  }
}

// Calls run(std::integral_constant<int, n>()): channels that may be taken at a time.
template <typename T, typename Run>
void with_channels(const DeformParams<T>& p, std::initializer_list<const void*> pointers,
                   const Run& run) {
  // A vector lies in one group of offsets, and in one of channels.
  const bool whole = p.channels / p.groups % kRun == 0 && p.sample_channels() % kRun == 0;
  with_vector<T, kRun>(whole ? 0 : 1, pointers, run);
}

template <typename T>
Tensor make_columns(const DeformParams<T>& p, const Tensor& like) {
  using A = accumulate_t<T>;
  Tensor columns =
      empty({p.groups, p.count, int64_t(p.points) * (p.channels / p.groups)}, like.options());
  with_channels(p, {p.input}, [&](auto n) {
    launch("deform_conv2d", deform_columns_kernel<T, n>, blocks_for(p.samples(), kBlockSamples), p,
           columns.mutable_data_ptr<A>());
  });
  return columns;
}

// Tensors in the order that the kernels want; all but the input in the type to accumulate in. So
// are the columns: rounded to half precision they would let tensor cores multiply them, but results
// would be rounded twice.
struct DeformInputs {
  Tensor input;         // [N, H, W, C]
  Tensor offset, mask;  // mask: or undefined
  Tensor weight;        // [groups, O / groups, points * C / groups]

  DeformInputs(const DeformGeometry& g, ScalarType type, const Tensor& input, const Tensor& offset,
               const std::optional<Tensor>& mask, const Tensor& weight)
      : input(input.permute({0, 2, 3, 1}).contiguous()),
        offset(offset.to(type).contiguous()),
        mask(mask ? mask->to(type).contiguous() : Tensor()),
        weight(weight.to(type)
                   .permute({0, 2, 3, 1})
                   .contiguous()
                   .view({g.groups, g.group_outputs(), g.points() * g.group_channels()})) {}

  template <typename T>
  DeformParams<T> params(const DeformGeometry& g, int64_t first, int64_t count) const {
    using A = accumulate_t<T>;
    const auto narrow = [](int64_t size) { return cuda::narrow("deform_conv2d", size); };
    narrow(g.height * g.width);
    return {input.const_data_ptr<T>(),
            offset.const_data_ptr<A>(),
            mask.defined() ? mask.const_data_ptr<A>() : nullptr,
            first,
            narrow(count),
            narrow(g.channels),
            narrow(g.height),
            narrow(g.width),
            narrow(g.output_width),
            narrow(g.positions()),
            narrow(g.points()),
            narrow(g.kernel_width),
            narrow(g.groups),
            narrow(g.offset_groups),
            narrow(g.stride_y),
            narrow(g.stride_x),
            narrow(g.padding_y),
            narrow(g.padding_x),
            narrow(g.dilation_y),
            narrow(g.dilation_x),
            math::deform::least_place<A>(g.edge_gradient)};
  }
};

// Calls visit(first, count) for chunks of all images' positions. Columns take up to 128 MB in
// float32, which are enough positions to fill a GPU: 14,000 of 256 channels and nine points.
template <typename Visit>
void each_chunk(const DeformGeometry& g, const Visit& visit) {
#ifdef DETOPS_EMULATE_CUDA
  constexpr int64_t kNumbers = 1 << 18;
#else
  constexpr int64_t kNumbers = 1 << 25;
#endif
  const int64_t all = g.images * g.positions();
  const int64_t images = std::max<int64_t>(1, kNumbers / (g.channels * g.height * g.width));
  const int64_t most = std::clamp<int64_t>(kNumbers / (g.channels * g.points()), 1,
                                           std::min(all, images * g.positions()));
  const int64_t chunks = ceil_div(all, most), count = ceil_div(all, chunks);
  for (int64_t first = 0; first < all; first += count) visit(first, std::min(count, all - first));
}

}  // namespace detops::cuda
