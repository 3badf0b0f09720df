// SPDX-License-Identifier: MIT
#pragma once

#include "../../host/conv_geometry.h"
#include "../../math/deform.h"
#include "../../products.h"
#include "../common/sorted_samples.cuh"
#include "../common/transpose.cuh"

// Gathers the samples of a chunk of output positions into columns for a matrix product. Feature
// maps are [N, H, W, C]: one thread computes the position of a sample once and shares it with the
// threads over its channels.
namespace detops::cuda {
namespace {

// Elements in the input's type or in the accumulation type; null for an undefined tensor.
template <typename T>
struct MixedPointer {
  using A = accumulate_t<T>;
  const T* narrow = nullptr;
  const A* wide = nullptr;

  explicit MixedPointer(const Tensor& t) {
    if (t.defined() && t.scalar_type() == torch::headeronly::CppTypeToScalarType<T>::value) {
      narrow = elements(t);
    } else {
      wide = elements(t);
    }
  }

  __device__ A get(int64_t i, A fallback) const {
    if (narrow != nullptr) return A(narrow[i]);
    return wide != nullptr ? wide[i] : fallback;
  }
};

template <typename T>
struct DeformParams {
  using A = accumulate_t<T>;
  const T* input;                // [N, H, W, C]
  MixedPointer<T> offset, mask;  // contiguous, channels first
  A min_coordinate;              // of samples that count
  int channels, height, width;
  int output_width, positions;  // per image
  int points, kernel_width, groups, group_channels, offset_groups;
  int stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  int64_t first = 0;  // first position of the chunk, counted over all images
  int count = 0;      // positions in the chunk

  __host__ __device__ int sample_channels() const { return channels / offset_groups; }
  __host__ __device__ int pixels() const { return height * width; }

  // Samples are numbered plane by plane for 32 positions at a time, so adjacent threads read
  // adjacent offsets. The last 32 positions may include some past the end, without samples.
  __host__ __device__ int samples() const {
    return ceil_div(count, kWarp) * kWarp * offset_groups * points;
  }

  // Returns an index into columns, [groups, positions of the chunk, points, C / groups]. `row` is a
  // position and a point, flattened.
  __device__ int64_t column(int row, int channel) const {
    const int group = groups == 1 ? 0 : channel / group_channels;
    return (int64_t(group) * count * points + row) * group_channels + channel -
           group * group_channels;
  }
};

template <typename T>
struct DeformSample {
  using A = accumulate_t<T>;
  math::deform::Sample<A> sample;
  A mask;
  int64_t image;
  int row;                        // of the columns, -1 for no sample
  int group;                      // offset group
  int64_t plane, image_position;  // of the mask, and the position in it
  const T* map;                   // pixel 0 of the image at the group's first channel
  Vector<int, 4> corners;         // pixels of the image, or -1
  Vector<A, 4> corner_weights;    // times the mask; 0 off the image
};

template <typename T, typename A = accumulate_t<T>>
__device__ DeformSample<T> locate_sample(const DeformParams<T>& p, int index) {
  DeformSample<T> s{};
  const int plane = index / kWarp % (p.offset_groups * p.points);
  const int position = index / kWarp / (p.offset_groups * p.points) * kWarp + index % kWarp;
  s.row = -1;
  s.corners = {{-1, -1, -1, -1}};
  if (position >= p.count) return s;
  const int point = plane % p.points;
  s.group = plane / p.points;
  s.row = position * p.points + point;
  s.image = (p.first + position) / p.positions;
  const int image_position = static_cast<int>(p.first + position - s.image * p.positions);
  s.image_position = image_position;
  s.plane = s.image * p.offset_groups * p.points + plane;
  s.map = p.input + s.image * p.pixels() * p.channels + s.group * p.sample_channels();
  const int64_t offset = 2 * s.plane * p.positions + image_position;
  const A window_y = A(image_position / p.output_width * p.stride_y - p.padding_y);
  const A window_x = A(image_position % p.output_width * p.stride_x - p.padding_x);
  s.sample = math::deform::sample(
      window_y + A(point / p.kernel_width * p.dilation_y) + p.offset.get(offset, A(0)),
      window_x + A(point % p.kernel_width * p.dilation_x) +
          p.offset.get(offset + p.positions, A(0)),
      p.min_coordinate, A(p.height), A(p.width));
  s.mask = p.mask.get(s.plane * p.positions + image_position, A(1));
  const auto weights = math::deform::weights<A>(s.sample, s.mask);
  for (int i = 0; i < 4; ++i) {
    const int y = static_cast<int>(s.sample.y) + i / 2, x = static_cast<int>(s.sample.x) + i % 2;
    const bool inside = y >= 0 && y < p.height && x >= 0 && x < p.width;
    s.corners.at[i] = inside ? y * p.width + x : -1;
    s.corner_weights.at[i] = inside ? weights.at[i] : A(0);
  }
  return s;
}

// A block handles up to one sample per thread, all planes of one position after another. The planes
// of a position read nearly the same pixels. These stay in the L1 cache, because the block reads
// only `lanes` vectors per pixel for all samples before it goes on to the next channels.
template <typename T, typename C, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    deform_im2col_kernel(DeformParams<T> p, int block_samples, int lanes, C* columns) {
  __shared__ Vector<int, 4> corners[kThreads];
  __shared__ Vector<A, 4> corner_weights[kThreads];
  __shared__ const T* maps[kThreads];
  __shared__ int rows[kThreads], channel[kThreads];
  const int self = static_cast<int>(threadIdx.x), lane = self % lanes;
  for (int first = static_cast<int>(blockIdx.x) * block_samples; first < p.samples();
       first += static_cast<int>(gridDim.x) * block_samples) {
    if (self < block_samples) {
      const DeformSample<T> s = locate_sample(p, first + self);
      const int at = self % kWarp * (block_samples / kWarp) + self / kWarp;
      corners[at] = s.corners;
      corner_weights[at] = s.corner_weights;
      maps[at] = s.map;
      rows[at] = s.row;
      channel[at] = s.group * p.sample_channels();
    }
    __syncthreads();
    for (int c = lane * n; c < p.sample_channels(); c += lanes * n) {
      for (int k = self / lanes; k < block_samples; k += kThreads / lanes) {
        if (rows[k] < 0) continue;
        Vector<A, n> sums{};
        add_corners(maps[k] + c, p.channels, corners[k], corner_weights[k], sums);
        store_channels<n, true>(columns + p.column(rows[k], channel[k] + c), 0, n, sums);
      }
    }
    __syncthreads();
  }
}

// Calls run(std::integral_constant<int, n>()), where n channels can be loaded at a time.
template <typename T, typename Run>
void with_channel_vectors(const DeformParams<T>& p, const void* pointer, const Run& run) {
  // A vector must not cross offset groups or channel groups.
  const bool divisible = p.group_channels % kRun == 0 && p.sample_channels() % kRun == 0;
  with_vector<T, kRun>(divisible ? 0 : 1, {pointer}, run);
}

template <typename C, typename T>
Tensor deform_im2col(const DeformParams<T>& p, const Tensor& like) {
  Tensor columns = empty({p.groups, p.count, int64_t(p.points) * p.group_channels}, like.options());
#ifdef DETOPS_EMULATE_CUDA
  constexpr int kManySamples = 1 << 12;
#else
  constexpr int kManySamples = 1 << 17;
#endif
  // Spreads few samples over more blocks.
  const int block_samples = p.samples() < kManySamples ? kBlockSamples : kThreads;
  const int lanes = std::min(kWarp / 2, lanes_for_runs(p.sample_channels()));
  with_channel_vectors(p, p.input, [&](auto n) {
    launch(deform_im2col_kernel<T, C, n>, blocks_for(p.samples(), block_samples), p, block_samples,
           lanes, columns);
  });
  return columns;
}

// Transposes each matrix of a batch. Both tensors must be contiguous.
void transpose_matrices(const Tensor& from, const Tensor& to, int64_t batch, int64_t rows,
                        int64_t columns) {
  DETOPS_FLOAT_SWITCH(from.scalar_type(), [&] {
    const scalar_t* in = elements(from);
    scalar_t* out = elements(to);
    const auto begin = [=] __device__(int64_t k) { return k * rows * columns; };
    transpose_matrices(Matrices{batch, rows, columns, columns}, begin, in, out);
  });
}

// Converts [N, C, H, W] to [N, H, W, C]. Returns a view if the memory is already in that order.
Tensor to_channels_last(const Tensor& maps) {
  const Tensor nhwc = maps.permute({0, 2, 3, 1});
  if (nhwc.is_contiguous()) return nhwc;
  Tensor to = empty(nhwc.sizes(), maps.options());
  transpose_matrices(maps.contiguous(), to, maps.size(0), maps.size(1),
                     maps.size(2) * maps.size(3));
  return to;
}

// Converts [N, H, W, C] to [N, C, H, W].
void from_channels_last(const Tensor& nhwc, const Tensor& maps) {
  transpose_matrices(nhwc, maps, maps.size(0), maps.size(2) * maps.size(3), maps.size(1));
}

// Views maps [N, C, H, W] as [positions of all images, groups, C / groups]. Returns an undefined
// tensor if the strides do not allow it or would slow down the product: cuBLAS is fast if rows
// begin at multiples of 16 bytes.
Tensor as_rows(const Tensor& maps, int64_t groups) {
  const int64_t positions = maps.size(2) * maps.size(3), size = maps.size(1) / groups;
  const Tensor nhwc = maps.permute({0, 2, 3, 1});
  if (nhwc.is_contiguous()) return nhwc.view({maps.size(0) * positions, groups, size});
  const bool aligned = positions * maps.element_size() % 16 == 0;
  if (maps.size(0) != 1 || !aligned || !maps.is_contiguous()) return {};
  return maps.as_strided({positions, groups, size}, {1, size * positions, positions});
}

// Reallocates an output if its dtype is not `type`.
void retype(Tensor& output, ScalarType type) {
  if (output.scalar_type() != type) output = empty_like(output, output.options().dtype(type));
}

// Inputs in the layout that the kernels require. If input and weight have the same dtype, the
// columns have it too, as in PyTorch's convolutions, so tensor cores multiply half types. Samples
// are rounded to that dtype before the product, which is summed in float32.
struct DeformInputs {
  ScalarType type;      // of the columns
  Tensor input;         // [N, H, W, C]
  Tensor offset, mask;  // see MixedPointer
  Tensor weight;        // [groups, O / groups, points * C / groups]

  DeformInputs(const DeformGeometry& g, const Tensor& input, const Tensor& offset,
               const std::optional<Tensor>& mask, const Tensor& weight)
      : type(weight.scalar_type() == input.scalar_type() ? input.scalar_type()
                                                         : compute_type(input.scalar_type())),
        input(to_channels_last(input)),
        offset(narrow_or_wide(offset, input.scalar_type())),
        mask(mask ? narrow_or_wide(*mask, input.scalar_type()) : Tensor()),
        weight(to_channels_last(weight.to(type))
                   .view({g.groups, g.group_outputs(), g.points() * g.group_channels()})) {}

  static Tensor narrow_or_wide(const Tensor& t, ScalarType input) {
    return t.scalar_type() == input ? t.contiguous() : wide(t, input);
  }

  template <typename T>
  DeformParams<T> params(const DeformGeometry& g) const {
    narrow(g.height * g.width);
    narrow(kWarp * g.offset_groups * g.points());
    const auto min_coordinate = math::deform::min_coordinate<accumulate_t<T>>(g.edge_gradient);
    return {elements(input),
            MixedPointer<T>(offset),
            MixedPointer<T>(mask),
            min_coordinate,
            narrow(g.channels),
            narrow(g.height),
            narrow(g.width),
            narrow(g.output_width),
            narrow(g.positions()),
            narrow(g.points()),
            narrow(g.kernel_width),
            narrow(g.groups),
            narrow(g.group_channels()),
            narrow(g.offset_groups),
            narrow(g.stride_y),
            narrow(g.stride_x),
            narrow(g.padding_y),
            narrow(g.padding_x),
            narrow(g.dilation_y),
            narrow(g.dilation_x)};
  }
};

// Calls run(T(), C()) with the types of the input and of the columns.
template <typename Run>
void with_types(ScalarType input, ScalarType columns, const Run& run) {
  DETOPS_FLOAT_SWITCH(input, [&] {
    if (columns == input) {
      run(scalar_t(), scalar_t());
    } else {
      run(scalar_t(), accumulate_t<scalar_t>());
    }
  });
}

// Calls visit(p) for chunks of the positions of all images, each a multiple of a warp. Columns and
// sorted samples take up to 512 MB. The product of a chunk has to be many times larger than what a
// GPU computes at once. Otherwise most of the GPU idles during the last part.
template <typename C, typename T, typename Visit>
void each_chunk(const DeformGeometry& g, DeformParams<T> p, const Visit& visit) {
#ifdef DETOPS_EMULATE_CUDA
  constexpr int64_t kBytes = 1 << 20;
#else
  constexpr int64_t kBytes = 1 << 29;
#endif
  constexpr int64_t kElementBytes = sizeof(C), kSampleBytes = 32;
  const int64_t positions = g.images * g.positions();
  const int64_t image_bytes = g.channels * g.height * g.width * kElementBytes;
  const int64_t position_bytes =
      g.points() * (g.channels * kElementBytes + g.offset_groups * kSampleBytes);
  const int64_t images = std::max<int64_t>(1, kBytes / image_bytes);
  const int64_t max_count =
      std::clamp<int64_t>(kBytes / position_bytes, 1, std::min(positions, images * g.positions()));
  const int64_t chunks = ceil_div(positions, max_count);
  const int64_t count = ceil_div(ceil_div(positions, chunks), kWarp) * kWarp;
  for (; p.first < positions; p.first += count) {
    p.count = static_cast<int>(std::min(count, positions - p.first));
    visit(p);
  }
}

}  // namespace
}  // namespace detops::cuda
