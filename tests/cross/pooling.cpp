// SPDX-License-Identifier: MIT
// RoI pooling.
#include <algorithm>
#include <vector>

#include "../../csrc/cpu/common/planes.h"
#include "../../csrc/math/roi_pool.h"
#include "../../csrc/ops.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

constexpr int64_t kRoIs = 4, kPooledHeight = 2, kPooledWidth = 4,
                  kBins = kPooledHeight * kPooledWidth, kHeight = 9;
// The third box reaches beyond the feature map, the fourth lies outside. Sides and bins are sums of
// powers of two, so that samples have the same positions in every type.
const std::vector<float> kBoxes = {0, 1.25f, 0.5f, 7.25f, 6.5f, 0, 2,  3,  2,  3,
                                   0, -4,    2,    4,     30,   0, 90, 90, 98, 98};

// Returns `count` integers below `modulus`, which are exact in every type.
std::vector<double> integers(int64_t count, int64_t step, int64_t modulus) {
  std::vector<double> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = double(i * step % modulus);
  return values;
}

struct Config {
  ScalarType type;
  MemoryFormat format;
  int64_t channels, width;

  double tolerance() const { return type == kFloat || type == kDouble ? 1e-5 : 1e-2; }
  Tensor make_tensor(const std::vector<double>& values, IntArrayRef sizes) const {
    return tensor(values, sizes).to(type).contiguous(format);
  }
  Tensor make_empty(IntArrayRef sizes) const { return empty(sizes, {type, kCPU, -1}, format); }
};

std::vector<double> doubles(const Tensor& t) {
  return to_vector<double>(t.contiguous().to(kDouble));
}

Tensor boxes() { return tensor(kBoxes, {kRoIs, 5}); }

// Checks an op with bins that are products of rows and columns. Each pooled channel has `planes`
// planes of the feature map.
template <typename MakeAxis, typename Forward, typename Backward>
void check_products(const Config& config, int64_t planes, const MakeAxis& make_axis,
                    const Forward& forward, const Backward& backward, const char* op) {
  const int64_t channels = config.channels, width = config.width;
  const std::vector<double> map = integers(channels * planes * kHeight * width, 31, 23);
  const std::vector<double> grad = integers(kRoIs * channels * kBins, 17, 13);
  std::vector<double> pooled(grad.size()), to_map(map.size());
  for (int64_t i = 0; i < kRoIs * channels * kBins; ++i) {
    const int64_t k = i / kBins / channels, c = i / kBins % channels, bin = i % kBins;
    const float* roi = kBoxes.data() + 5 * k;
    const int64_t plane = planes == 1 ? c : c * planes + bin;
    math::visit_taps(make_axis(roi[2], roi[4], kPooledHeight), bin / kPooledWidth, kHeight,
                     [&](int64_t y, double h) {
                       math::visit_taps(make_axis(roi[1], roi[3], kPooledWidth), bin % kPooledWidth,
                                        width, [&](int64_t x, double w) {
                                          const int64_t at = (plane * kHeight + y) * width + x;
                                          pooled[i] += h * w * map[at];
                                          to_map[at] += h * w * grad[i];
                                        });
                     });
  }
  const int64_t map_sizes[] = {1, channels * planes, kHeight, width};
  const int64_t pooled_sizes[] = {kRoIs, channels, kPooledHeight, kPooledWidth};
  Tensor output = config.make_empty({pooled_sizes, 4}),
         to_input = config.make_empty({map_sizes, 4});
  forward(config.make_tensor(map, {map_sizes, 4}), output);
  backward(config.make_tensor(grad, {pooled_sizes, 4}), to_input);
  check(close(doubles(output), pooled, config.tolerance()), op);
  check(close(doubles(to_input), to_map, config.tolerance()), op);
}

void check_roi_align(const Config& config) {
  const auto make_axis = [](double low, double high, int64_t pooled) {
    return math::roi_axis(low, high, 1.0, true, pooled, 2);
  };
  check_products(
      config, 1, make_axis,
      [&](const Tensor& map, Tensor& output) {
        roi_align_forward(map, boxes(), 1, kPooledHeight, kPooledWidth, 2, true, output);
      },
      [&](const Tensor& grad, Tensor& map) {
        roi_align_backward(grad, boxes(), 1, kPooledHeight, kPooledWidth, 1, config.channels,
                           kHeight, config.width, 2, true, map);
      },
      "roi_align");
  check_products(
      config, kBins, make_axis,
      [&](const Tensor& map, Tensor& output) {
        ps_roi_align_forward(map, boxes(), 1, kPooledHeight, kPooledWidth, 2, output);
      },
      [&](const Tensor& grad, Tensor& map) {
        ps_roi_align_backward(grad, boxes(), 1, kPooledHeight, kPooledWidth, 1,
                              kBins * config.channels, kHeight, config.width, 2, map);
      },
      "ps_roi_align");
}

void check_ps_roi_pool(const Config& config) {
  check_products(
      config, kBins,
      [](double low, double high, int64_t pooled) {
        return math::pool_axis(low, high, 1.0, 0, pooled);
      },
      [&](const Tensor& map, Tensor& output) {
        ps_roi_pool_forward(map, boxes(), 1, kPooledHeight, kPooledWidth, output);
      },
      [&](const Tensor& grad, Tensor& map) {
        ps_roi_pool_backward(grad, boxes(), 1, kPooledHeight, kPooledWidth, 1,
                             kBins * config.channels, kHeight, config.width, map);
      },
      "ps_roi_pool");
}

void check_roi_pool(const Config& config) {
  const int64_t channels = config.channels, width = config.width, pixels = kHeight * width;
  const std::vector<double> map = integers(channels * pixels, 31, 23);
  const std::vector<double> grad = integers(kRoIs * channels * kBins, 17, 13);
  std::vector<double> pooled(grad.size()), to_map(map.size());
  std::vector<int32_t> argmax(grad.size(), -1);
  for (int64_t i = 0; i < kRoIs * channels * kBins; ++i) {
    const int64_t c = i / kBins % channels, bin = i % kBins;
    const float* roi = kBoxes.data() + 5 * (i / kBins / channels);
    const auto axis = [](double low, double high, int64_t bins) {
      return math::pool_axis(low, high, 1.0, 1, bins);
    };
    const auto rows =
        math::bin_range(axis(roi[2], roi[4], kPooledHeight), bin / kPooledWidth, kHeight);
    const auto cols =
        math::bin_range(axis(roi[1], roi[3], kPooledWidth), bin % kPooledWidth, width);
    for (int64_t y = rows.begin; y < rows.end; ++y) {
      for (int64_t x = cols.begin; x < cols.end; ++x) {
        const double value = map[c * pixels + y * width + x];
        if (argmax[i] >= 0 && value <= pooled[i]) continue;
        pooled[i] = value;
        argmax[i] = static_cast<int32_t>(y * width + x);
      }
    }
    if (argmax[i] >= 0) to_map[c * pixels + argmax[i]] += grad[i];
  }
  const int64_t map_sizes[] = {1, channels, kHeight, width};
  const int64_t pooled_sizes[] = {kRoIs, channels, kPooledHeight, kPooledWidth};
  const Tensor input = config.make_tensor(map, {map_sizes, 4});
  Tensor output = config.make_empty({pooled_sizes, 4}),
         to_input = config.make_empty({map_sizes, 4});
  Tensor index = empty({pooled_sizes, 4}, {kInt, kCPU, -1}, config.format);
  roi_pool_forward(input, boxes(), 1, kPooledHeight, kPooledWidth, output, index);
  roi_pool_backward(config.make_tensor(grad, {pooled_sizes, 4}), input, boxes(), index, 1,
                    kPooledHeight, kPooledWidth, 1, channels, kHeight, width, to_input);
  check(doubles(output) == pooled && to_vector<int32_t>(index.contiguous()) == argmax, "roi_pool");
  check(close(doubles(to_input), to_map, config.tolerance()), "roi_pool_backward");
}

// Checks that load_lanes and store_lanes restore the positions.
template <typename T>
void check_lanes(int64_t channels, int64_t count) {
  using A = accumulate_t<T>;
  std::vector<T> values(channels * count), back(values.size());
  for (size_t i = 0; i < values.size(); ++i) math::from_float(A(i % 97), values[i]);
  for (const bool channels_last : {false, true}) {
    const Planes<T> map{values.data(), channels, 1, count, channels_last};
    const Planes<T> copy{back.data(), channels, 1, count, channels_last};
    std::vector<A> lanes(count * kRoIChannels, A(-1));
    load_lanes(map.for_reading(), 0, channels, 0, 0, count, lanes.data());
    store_lanes(lanes.data(), copy, 0, channels, 0, 0, count);
    bool same = true;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < count; ++i) {
        const A value = math::to_float(*map.at(c, 0, i));
        same &= lanes[i * kRoIChannels + c] == value && math::to_float(*copy.at(c, 0, i)) == value;
      }
    }
    check(same, "lanes");
  }
}

}  // namespace

void check_pooling() {
  for (const int64_t channels : {1, 3, 17, 32}) {
    for (const int64_t count : {1, 5, 16, 49}) {
      check_lanes<float>(channels, count);
      check_lanes<double>(channels, count);
      check_lanes<Half>(channels, count);
      check_lanes<BFloat16>(channels, count);
    }
  }
  for (const ScalarType type : {kFloat, kDouble, kHalf, kBFloat16}) {
    for (const MemoryFormat format : {MemoryFormat::Contiguous, MemoryFormat::ChannelsLast}) {
      for (const int64_t channels : {1, 4, 19, 96}) {
        for (const int64_t width : {3, 20}) {
          const Config config{type, format, channels, width};
          check_roi_align(config);
          check_ps_roi_pool(config);
          check_roi_pool(config);
        }
      }
    }
  }
}

}  // namespace detops::cross
