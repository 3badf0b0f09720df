// SPDX-License-Identifier: MIT
#include <algorithm>
#include <vector>

#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "conv.h"

#define DETOPS_KERNELS "../conv/conv.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// A thread's share of the second cache, for what a block of a direct convolution reads.
constexpr int64_t kWindowBytes = 256 << 10;
constexpr int64_t kBlockRows = 112;     // results that share one pass over the weights
constexpr int64_t kWinogradTiles = 56;  // of a block
constexpr int64_t kConflict = 4096;     // bytes between rows that share their places in the cache

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T>
void direct(ConvSizes s, const ConvData<T>& data) {
  if (s.channels == 0) {  // nothing to add up, as if each result came from one such pixel
    s.height = s.output_height;
    s.width = s.output_width;
    s.kernel_height = s.kernel_width = s.stride_y = s.stride_x = s.dilation_y = s.dilation_x = 1;
    s.padding_y = s.padding_x = 0;
  }
  const bool pointwise = s.kernel_height * s.kernel_width == 1 && s.stride_y * s.stride_x == 1 &&
                         s.padding_y == 0 && s.padding_x == 0;
  if (pointwise) {  // pixels are pixels, whatever the row
    s.width = s.output_width = s.images * s.height * s.width;
    s.images = s.height = s.output_height = 1;
  }
  const int64_t reach_y = s.dilation_y * (s.kernel_height - 1) + 1;
  const int64_t reach_x = s.dilation_x * (s.kernel_width - 1) + 1;
  const bool conflict =
      s.channels > 0 && s.stride_x * s.channels * int64_t(sizeof(T)) % kConflict == 0;
  const bool copies = conflict || reach_y > 1 || reach_x > 1 || s.padding_y > 0 || s.padding_x > 0;
  const int64_t tile = DETOPS_IN_USE(kTileRows);
  ConvBlock block{};
  block.pixel_stride = conflict ? s.channels + 16 : s.channels;
  const auto bytes = [&](int64_t height, int64_t width) {
    return ((height - 1) * s.stride_y + reach_y) * ((width - 1) * s.stride_x + reach_x) *
           block.pixel_stride * int64_t(sizeof(T));
  };
  // The widest block that has its window in the cache, then the highest.
  int64_t width = std::min(s.output_width, kBlockRows / tile * tile), height = 1;
  while (width > tile && bytes(1, width) > kWindowBytes) width -= tile;
  width = divide_up(s.output_width, divide_up(s.output_width, width));
  width = std::min(s.output_width, divide_up(width, tile) * tile);
  while (height < s.output_height && (height + 1) * width <= kBlockRows &&
         bytes(height + 1, width) <= kWindowBytes) {
    ++height;
  }
  const int64_t down = divide_up(s.output_height, height),
                across = divide_up(s.output_width, width);

  // Kernels' rows are runs in memory, if its pixels are neighbours.
  const bool runs = s.dilation_x == 1 && (!copies || !conflict);
  std::vector<int64_t> offsets;
  const int64_t window_width = (width - 1) * s.stride_x + reach_x;
  const auto kernel = DETOPS_IN_USE(direct_block<T>);
  for (int64_t y = 0; y < s.kernel_height; ++y) {
    for (int64_t x = 0; x < (runs ? 1 : s.kernel_width); ++x) {
      offsets.push_back((y * s.dilation_y * window_width + x * s.dilation_x) * block.pixel_stride);
    }
  }
  const ConvTaps taps{offsets.data(), int64_t(offsets.size()),
                      s.channels * (runs ? s.kernel_width : 1)};
  parallel_for(0, s.images * down * across, 1, [&](int64_t begin, int64_t end) {
    Buffer<T> window(copies ? bytes(height, width) / sizeof(T) : 0);
    ConvBlock part = block;
    part.window_width = window_width;
    for (int64_t i = begin; i < end; ++i) {
      part.image = i / (down * across);
      part.y = i / across % down * height;
      part.x = i % across * width;
      part.height = std::min(height, s.output_height - part.y);
      part.width = std::min(width, s.output_width - part.x);
      part.window_height = (part.height - 1) * s.stride_y + reach_y;
      kernel(s, data, part, taps, copies ? window.data() : nullptr);
    }
  });
}

template <typename T>
void winograd(const ConvSizes& s, const ConvData<T>& data) {
  const WinogradTiles tiles(s);
  const int64_t count = s.images * tiles.of_image();
  const int64_t blocks = std::max(divide_up(count, kWinogradTiles),
                                  std::min<int64_t>(get_num_threads(), divide_up(count, 14)));
  const int64_t row = DETOPS_IN_USE(kTileRows);
  const int64_t size = divide_up(divide_up(count, blocks), row) * row;
  const auto kernel = DETOPS_IN_USE(winograd_tiles<T>);
  const std::vector<T> zeros(s.channels);
  parallel_for(0, divide_up(count, size), 1, [&](int64_t begin, int64_t end) {
    Buffer<T> values(kWinogradPlanes * size * winograd_stride(s.channels));
    Buffer<T> sums(kWinogradPlanes * size * winograd_stride(s.outputs));
    for (int64_t i = begin; i < end; ++i) {
      const TileBlock block(tiles, i * size, std::min(size, count - i * size));
      kernel(s, block, data, zeros.data(), values.data(), sums.data());
    }
  });
}

// The weights of a panel for `count` channels: [points][count][kPanel].
template <typename T>
void pack_panel(const Tensor& weight, int64_t panel, int64_t first, int64_t count, T* to) {
  const int64_t width = weight.size(3), points = weight.size(2) * width;
  const int64_t outputs = std::min(kPanel, weight.size(0) - panel * kPanel);
  const int64_t next_output = weight.stride(0), next_channel = weight.stride(1);
  const T* from = weight.const_data_ptr<T>() + panel * kPanel * next_output + first * next_channel;
  if (outputs < kPanel) std::fill_n(to, points * count * kPanel, T(0));
  for (int64_t k = 0; k < points; ++k) {
    const T* point = from + k / width * weight.stride(2) + k % width * weight.stride(3);
    T* rows = to + k * count * kPanel;
    if (next_output < next_channel) {  // in the order of memory
      for (int64_t c = 0; c < count; ++c) {
        for (int64_t o = 0; o < outputs; ++o) {
          rows[c * kPanel + o] = point[o * next_output + c * next_channel];
        }
      }
    } else {
      for (int64_t o = 0; o < outputs; ++o) {
        for (int64_t c = 0; c < count; ++c) {
          rows[c * kPanel + o] = point[o * next_output + c * next_channel];
        }
      }
    }
  }
}

}  // namespace

void pack_conv2d_weight(const Tensor& weight, Tensor& packed) {
  const int64_t channels = weight.size(1), size = packed.size(2) * kPanel;
  const Tensor from = as_type(weight, packed.scalar_type());
  DETOPS_WIDE_SWITCH(packed.scalar_type(), [&] {
    scalar_t* to = packed.mutable_data_ptr<scalar_t>();
    parallel_for(0, packed.size(1), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) pack_panel(from, p, 0, channels, to + p * size);
    });
  });
}

void pack_winograd_weight(const Tensor& weight, Tensor& packed) {
  constexpr int64_t kChannels = 32;  // at a time, which the second cache holds
  const int64_t panels = packed.size(1), channels = weight.size(1);
  const int64_t parts = divide_up(channels, kChannels), plane = panels * channels * kPanel;
  const Tensor from = as_type(weight, packed.scalar_type());
  DETOPS_WIDE_SWITCH(packed.scalar_type(), [&] {
    scalar_t* to = packed.mutable_data_ptr<scalar_t>();
    const auto kernel = DETOPS_IN_USE(winograd_weights<scalar_t>);
    parallel_for(0, panels * parts, 1, [&](int64_t begin, int64_t end) {
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
  constexpr MemoryFormat kLast = MemoryFormat::ChannelsLast;
  const ConvSizes s{input.size(0),  input.size(1),  input.size(2),  input.size(3),  outputs,
                    output.size(2), output.size(3), kernel_size[0], kernel_size[1], stride[0],
                    stride[1],      padding[0],     padding[1],     dilation[0],    dilation[1]};
  const ScalarType type = compute_type(input.scalar_type());
  const bool direct_result = output.is_contiguous(kLast) && output.scalar_type() == type;
  const Tensor result =
      direct_result ? output : empty(output.sizes(), output.options().dtype(type), kLast);
  expect_writes(result);
  const auto arrange = [&](const Tensor& t) { return as_type(t.contiguous(kLast), type); };
  const Tensor map = arrange(input), weights = wide(packed, type);
  const Tensor offsets = wide(bias, type);
  const Tensor others = add ? arrange(*add) : Tensor();
  DETOPS_WIDE_SWITCH(type, [&] {
    const ConvData<scalar_t> data{map.const_data_ptr<scalar_t>(),
                                  weights.const_data_ptr<scalar_t>(),
                                  bias ? offsets.const_data_ptr<scalar_t>() : nullptr,
                                  add ? others.const_data_ptr<scalar_t>() : nullptr,
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
  Tensor packed = empty({kWinogradPlanes, panels_of(outputs), channels, kPanel}, options);
  pack_winograd_weight(weight, packed);
  const int64_t kernel[2] = {3, 3}, once[2] = {1, 1};
  packed_conv2d(input, packed, bias, std::nullopt, outputs, kernel, once, padding, once, false,
                output);
}

}  // namespace detops::cpu
