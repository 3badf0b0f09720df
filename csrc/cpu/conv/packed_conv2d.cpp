// SPDX-License-Identifier: MIT
#include "../../products.h"
#include "../common/host.h"
#include "conv.h"

#define DETOPS_KERNELS "../conv/conv.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Largest input window of a block in a direct convolution, in bytes: one thread's part of L2.
constexpr int64_t kWindowBytes = 256 << 10;
constexpr int64_t kBlockRows = 112;        // outputs per pass over the weights
constexpr int64_t kWinogradTiles = 42;     // tiles per block
constexpr int64_t kConflictStride = 4096;  // rows this many bytes apart map to the same cache sets
constexpr int64_t kTransposeGrain = 1 << 15;  // minimum number of elements per thread
constexpr MemoryFormat kChannelsLast = MemoryFormat::ChannelsLast;

// Converts to `type` in channels_last. The strides of a dimension of size 1 do not determine the
// layout, so to() may choose another one. Hence the second contiguous().
Tensor to_channels_last(const Tensor& t, ScalarType type) {
  return t.contiguous(kChannelsLast).to(type).contiguous(kChannelsLast);
}

template <typename T>
void direct(ConvSizes s, const ConvData<T>& data) {
  if (s.channels == 0) {  // all sums are empty, as in a 1x1 convolution without channels
    s.height = s.output_height;
    s.width = s.output_width;
    s.kernel_height = s.kernel_width = s.stride_y = s.stride_x = s.dilation_y = s.dilation_x = 1;
    s.padding_y = s.padding_x = 0;
  }
  const bool pointwise = s.kernel_height * s.kernel_width == 1 && s.stride_y * s.stride_x == 1 &&
                         s.padding_y == 0 && s.padding_x == 0;
  if (pointwise) {  // all pixels of the batch form one row
    s.width = s.output_width = s.images * s.height * s.width;
    s.images = s.height = s.output_height = 1;
  }
  const int64_t extent_y = s.dilation_y * (s.kernel_height - 1) + 1;
  const int64_t extent_x = s.dilation_x * (s.kernel_width - 1) + 1;
  const bool conflict =
      s.channels > 0 && s.stride_x * s.channels * int64_t(sizeof(T)) % kConflictStride == 0;
  const bool uses_window =
      conflict || extent_y > 1 || extent_x > 1 || s.padding_y > 0 || s.padding_x > 0;
  const int64_t tile = DETOPS_IN_USE(kTileRows);
  ConvBlock block{};
  block.pixel_stride = conflict ? s.channels + 16 : s.channels;
  const auto bytes = [&](int64_t height, int64_t width) {
    return ((height - 1) * s.stride_y + extent_y) * ((width - 1) * s.stride_x + extent_x) *
           block.pixel_stride * int64_t(sizeof(T));
  };
  // Choose the widest block whose window fits in the cache, then the tallest.
  int64_t width = std::min(s.output_width, kBlockRows / tile * tile), height = 1;
  while (width > tile && bytes(1, width) > kWindowBytes) width -= tile;
  width = divide_up(s.output_width, divide_up(s.output_width, width));
  width = std::min(s.output_width, round_up(width, tile));
  while (height < s.output_height && (height + 1) * width <= kBlockRows &&
         bytes(height + 1, width) <= kWindowBytes) {
    ++height;
  }
  const int64_t block_rows = divide_up(s.output_height, height),
                block_columns = divide_up(s.output_width, width);

  // The inputs under a kernel row are contiguous if its pixels are adjacent.
  const bool contiguous = s.dilation_x == 1 && (!uses_window || !conflict);
  std::vector<int64_t> offsets;
  const int64_t window_width = (width - 1) * s.stride_x + extent_x;
  const auto kernel = DETOPS_IN_USE(direct_block<T>);
  for (int64_t y = 0; y < s.kernel_height; ++y) {
    for (int64_t x = 0; x < (contiguous ? 1 : s.kernel_width); ++x) {
      offsets.push_back((y * s.dilation_y * window_width + x * s.dilation_x) * block.pixel_stride);
    }
  }
  const ConvTaps taps{offsets.data(), int64_t(offsets.size()),
                      s.channels * (contiguous ? s.kernel_width : 1)};
  parallel_for(s.images * block_rows * block_columns, 1, [&](int64_t begin, int64_t end) {
    Buffer<T> window(uses_window ? bytes(height, width) / sizeof(T) : 0);
    ConvBlock part = block;
    part.window_width = window_width;
    for (int64_t i = begin; i < end; ++i) {
      part.image = i / (block_rows * block_columns);
      part.y = i / block_columns % block_rows * height;
      part.x = i % block_columns * width;
      part.height = std::min(height, s.output_height - part.y);
      part.width = std::min(width, s.output_width - part.x);
      part.window_height = (part.height - 1) * s.stride_y + extent_y;
      kernel(s, data, part, taps, uses_window ? window.data() : nullptr);
    }
  });
}

template <typename T>
void winograd(const ConvSizes& s, const ConvData<T>& data) {
  const WinogradTiles tiles(s);
  const int64_t count = s.images * tiles.per_image();
  const int64_t blocks = std::max(divide_up(count, kWinogradTiles),
                                  std::min<int64_t>(get_num_threads(), divide_up(count, 14)));
  const int64_t row = DETOPS_IN_USE(kTileRows);
  const int64_t size = round_up(divide_up(count, blocks), row);
  const auto kernel = DETOPS_IN_USE(winograd_tiles<T>);
  const std::vector<T> zeros(s.channels);
  parallel_for(divide_up(count, size), 1, [&](int64_t begin, int64_t end) {
    Buffer<T> values(kWinogradPlanes * size * winograd_row_stride(s.channels));
    Buffer<T> sums(kWinogradPlanes * size * winograd_row_stride(s.outputs));
    for (int64_t i = begin; i < end; ++i) {
      const TileBlock block(tiles, i * size, std::min(size, count - i * size));
      kernel(s, block, data, zeros.data(), values.data(), sums.data());
    }
  });
}

// Packs a panel's weights for `count` channels from `first` on: [points][count][kPanel].
template <typename T>
void pack_panel(const Tensor& weight, int64_t panel, int64_t first, int64_t count, T* to) {
  const int64_t width = weight.size(3), points = weight.size(2) * width;
  const int64_t outputs = std::min(kPanel, weight.size(0) - panel * kPanel);
  const int64_t output_stride = weight.stride(0), channel_stride = weight.stride(1);
  const T* from =
      weight.const_data_ptr<T>() + panel * kPanel * output_stride + first * channel_stride;
  if (outputs < kPanel) std::fill_n(to, points * count * kPanel, T(0));
  struct Axis {
    int64_t size, from, to;  // from, to: strides in the source and in the panel
  };
  Axis outer{outputs, output_stride, 1}, inner{count, channel_stride, kPanel};
  if (output_stride < channel_stride) std::swap(outer, inner);  // read in memory order
  for (int64_t k = 0; k < points; ++k) {
    const T* point = from + k / width * weight.stride(2) + k % width * weight.stride(3);
    T* rows = to + k * count * kPanel;
    for (int64_t i = 0; i < outer.size; ++i) {
      for (int64_t j = 0; j < inner.size; ++j) {
        rows[i * outer.to + j * inner.to] = point[i * outer.from + j * inner.from];
      }
    }
  }
}

// Tiles processed together. Their values at the points stay in a cache that cores share. The number
// is fixed, so the order of summation does not depend on the number of threads.
constexpr int64_t kTiles = 512;

// Adds the products of a block of tiles to the sums of all planes, or overwrites them if
// `overwrite`. `gradients` are [planes, outputs, tiles], `values` [planes, tiles, channels].
void add_products(const TileBlock& block, const Tensor& gradients, const Tensor& values,
                  const Tensor& sums, bool overwrite) {
  for (const PlaneGroup& group : kPlaneGroups) {
    const int64_t begin = block.begin(group), rows = block.end(group) - begin;
    const Tensor sum = sums.narrow(0, group.first, group.count);
    const Tensor left = gradients.narrow(0, group.first, group.count).narrow(2, begin, rows);
    const Tensor right = values.narrow(0, group.first, group.count).narrow(1, begin, rows);
    overwrite ? bmm_out(sum, left, right) : baddbmm_out(sum, sum, left, right);
  }
}

template <typename T>
void backward_weight(const ConvSizes& s, const Tensor& grad, const Tensor& input,
                     const Tensor& to_weight) {
  const WinogradTiles tiles(s);
  const int64_t total_tiles = s.images * tiles.per_image(),
                block_tiles = std::min(total_tiles, kTiles);
  const int64_t value_stride = winograd_row_stride(s.channels),
                grad_stride = winograd_row_stride(s.outputs);
  const Tensor values = empty({kWinogradPlanes, block_tiles, value_stride}, grad.options());
  const Tensor gradients = empty({kWinogradPlanes, block_tiles, grad_stride}, grad.options());
  const Tensor sums = empty({kWinogradPlanes, s.outputs, s.channels}, grad.options());
  const std::vector<T> zeros(std::max(s.channels, s.outputs));
  const T *pixels = input.const_data_ptr<T>(), *grads = grad.const_data_ptr<T>();
  T *value = values.mutable_data_ptr<T>(), *gradient = gradients.mutable_data_ptr<T>();
  const auto transform_inputs = DETOPS_IN_USE(winograd_points<false, T>);
  const auto transform_gradients = DETOPS_IN_USE(winograd_points<true, T>);
  for (int64_t first = 0; first < total_tiles; first += block_tiles) {
    const int64_t count = std::min(block_tiles, total_tiles - first);
    const TileBlock block(tiles, first, count);
    const int64_t value_plane = count * value_stride, grad_plane = count * grad_stride;
    parallel_for(count, 8, [&](int64_t begin, int64_t end) {
      transform_inputs(s, block, pixels, begin, end, zeros.data(), value, value_plane);
      transform_gradients(s, block, grads, begin, end, zeros.data(), gradient, grad_plane);
    });
    add_products(
        block,
        gradients.as_strided({kWinogradPlanes, s.outputs, count}, {grad_plane, 1, grad_stride}),
        values.as_strided({kWinogradPlanes, count, s.channels}, {value_plane, value_stride, 1}),
        sums, first == 0);
  }
  const int64_t plane = s.outputs * s.channels;
  const T* sum = sums.const_data_ptr<T>();
  T* kernels = to_weight.mutable_data_ptr<T>();
  const auto transform_sums = DETOPS_IN_USE(winograd_weight_gradients<T>);
  parallel_each(s.outputs, 4, [&](int64_t o) {
    transform_sums(sum + o * s.channels, plane, s.channels, kernels + o * 9 * s.channels);
  });
}

}  // namespace

void pack_conv2d_weight(const Tensor& weight, Tensor& packed) {
  const int64_t channels = weight.size(1), size = packed.size(2) * kPanel;
  const Tensor from = weight.to(packed.scalar_type());
  DETOPS_WIDE_SWITCH(packed.scalar_type(), [&] {
    scalar_t* to = packed.mutable_data_ptr<scalar_t>();
    parallel_each(packed.size(1), 1,
                  [&](int64_t p) { pack_panel(from, p, 0, channels, to + p * size); });
  });
}

void pack_winograd_weight(const Tensor& weight, Tensor& packed) {
  constexpr int64_t kChannels = 32;  // at a time: they fit in L2
  const int64_t panels = packed.size(1), channels = weight.size(1);
  const int64_t parts = divide_up(channels, kChannels), plane = panels * channels * kPanel;
  const Tensor from = weight.to(packed.scalar_type());
  DETOPS_WIDE_SWITCH(packed.scalar_type(), [&] {
    scalar_t* to = packed.mutable_data_ptr<scalar_t>();
    const auto kernel = DETOPS_IN_USE(winograd_weights<scalar_t>);
    parallel_for(panels * parts, 1, [&](int64_t begin, int64_t end) {
      Buffer<scalar_t> weights(9 * kChannels * kPanel), points(36 * kChannels * kPanel);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t p = i / parts, first = i % parts * kChannels;
        const int64_t count = std::min(kChannels, channels - first), size = count * kPanel;
        pack_panel(from, p, first, count, weights.data());
        kernel(weights.data(), size, points.data());
        scalar_t* panel = to + (p * channels + first) * kPanel;
        for (int64_t k = 0; k < 36; ++k) {
          std::copy_n(points.data() + k * size, size, panel + k * plane);
        }
      }
    });
  });
}

void packed_conv2d(const Tensor& input, const Tensor& packed, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& add, int64_t outputs, IntArrayRef kernel_size,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool relu,
                   Tensor& output) {
  const ConvSizes s{input.size(0),  input.size(1),  input.size(2),  input.size(3),  outputs,
                    output.size(2), output.size(3), kernel_size[0], kernel_size[1], stride[0],
                    stride[1],      padding[0],     padding[1],     dilation[0],    dilation[1]};
  const ScalarType type = compute_type(input.scalar_type());
  const bool direct_result = output.is_contiguous(kChannelsLast) && output.scalar_type() == type;
  const Tensor result =
      direct_result ? output : empty(output.sizes(), output.options().dtype(type), kChannelsLast);
  const Tensor map = to_channels_last(input, type), weights = wide(packed, type);
  const Tensor wide_bias = wide(bias, type);
  const Tensor addend = add ? to_channels_last(*add, type) : Tensor();
  DETOPS_WIDE_SWITCH(type, [&] {
    const ConvData<scalar_t> data{map.const_data_ptr<scalar_t>(),
                                  weights.const_data_ptr<scalar_t>(),
                                  bias ? wide_bias.const_data_ptr<scalar_t>() : nullptr,
                                  add ? addend.const_data_ptr<scalar_t>() : nullptr,
                                  result.mutable_data_ptr<scalar_t>(),
                                  relu};
    if (packed.size(0) == 1) {
      direct(s, data);
    } else {
      winograd(s, data);
    }
  });
  if (!direct_result) output.copy_(result);
}

void winograd_conv2d_forward(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, IntArrayRef padding,
                             Tensor& output) {
  const Options options = input.options().dtype(compute_type(input.scalar_type()));
  const int64_t outputs = weight.size(0), channels = weight.size(1);
  Tensor packed = empty({kWinogradPlanes, panel_count(outputs), channels, kPanel}, options);
  pack_winograd_weight(weight, packed);
  const int64_t kernel[2] = {3, 3}, ones[2] = {1, 1};
  packed_conv2d(input, packed, bias, std::nullopt, outputs, kernel, ones, padding, ones, false,
                output);
}

void winograd_conv2d_backward_weight(const Tensor& grad, const Tensor& input, IntArrayRef padding,
                                     Tensor& to_weight) {
  if (grad.numel() == 0 || input.numel() == 0) {
    to_weight.zero_();
    return;
  }
  ConvSizes s{};
  s.images = input.size(0), s.channels = input.size(1);
  s.height = input.size(2), s.width = input.size(3);
  s.outputs = grad.size(1), s.output_height = grad.size(2), s.output_width = grad.size(3);
  s.padding_y = padding[0], s.padding_x = padding[1];
  const ScalarType type = to_weight.scalar_type();
  const Tensor gradients = to_channels_last(grad, type), map = to_channels_last(input, type);
  const bool in_place = to_weight.is_contiguous(kChannelsLast);
  const Tensor kernels =
      in_place ? to_weight : empty(to_weight.sizes(), to_weight.options(), kChannelsLast);
  DETOPS_WIDE_SWITCH(type, [&] { backward_weight<scalar_t>(s, gradients, map, kernels); });
  if (!in_place) to_weight.copy_(kernels);
}

void batch_transpose(const Tensor& input, Tensor& output) {
  const Tensor from = input.contiguous();
  const int64_t height = from.size(1), width = from.size(2), size = height * width;
  with_element_type(from.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* matrices = elements<T>(from);
    T* transposed = mutable_elements<T>(output);
    const auto kernel = DETOPS_IN_USE(transpose_matrix<T>);
    parallel_each(from.size(0), grain_for(kTransposeGrain, size), [&](int64_t n) {
      kernel(matrices + n * size, width, height, width, transposed + n * size, height);
    });
  });
}

}  // namespace detops::cpu
