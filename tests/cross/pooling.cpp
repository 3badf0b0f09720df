// SPDX-License-Identifier: MIT
// RoI pooling.
#include <algorithm>
#include <vector>

#include "../../csrc/cpu/kernels/ps_roi_align.h"
#include "../../csrc/cpu/kernels/roi_pool.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

// One bin of one RoI on a [height, width, channels] map of few different values.
template <typename T>
void check_roi_pool(int64_t channels) {
  using A = accumulate_t<T>;
  constexpr int64_t kHeight = 6, kWidth = 7;
  std::vector<T> map(kHeight * kWidth * channels), pooled(channels);
  std::vector<int32_t> argmax(channels);
  for (size_t i = 0; i < map.size(); ++i) math::from_float(A(i * 31 % 23), map[i]);
  const math::PixelRange rows{1, 5}, cols{2, 6};
  roi_pool_kernels<T>().forward({&rows, &cols, 1, 1, map.data(), 0, 0, kWidth * channels, channels,
                                 kWidth, channels, pooled.data(), argmax.data(), channels});
  bool same = true;
  for (int64_t c = 0; c < channels; ++c) {
    int64_t best = -1;
    const auto value = [&](int64_t i) { return A(math::to_float(map[i * channels + c])); };
    for (int64_t y = rows.begin; y < rows.end; ++y) {
      for (int64_t x = cols.begin; x < cols.end; ++x) {
        const int64_t i = y * kWidth + x;
        if (best < 0 || value(i) > value(best)) best = i;
      }
    }
    same &= argmax[c] == best && math::to_float(pooled[c]) == value(best);
  }
  check(same, "roi_pool");
}

// One bin of one RoI, forward and backward, with weights that add up exactly.
template <typename T>
void check_ps_roi_align(int64_t planes, int64_t width) {
  using A = accumulate_t<T>;
  constexpr int64_t kHeight = 5;
  const auto& kernel = ps_roi_align_kernels<T>();
  const int64_t pixels = kHeight * width;
  std::vector<T> map(planes * pixels), pooled(planes);
  for (size_t i = 0; i < map.size(); ++i) math::from_float(A(i % 13), map[i]);
  const int64_t one[] = {0, 1}, two[] = {0, 2};
  const int32_t index[] = {1, 3}, first = 0;
  const A row_weight[] = {A(0.5), A(0.25)};
  std::vector<A> col_weight(kernel.columns, A(0)), sums(planes * pixels, A(0));
  const int64_t columns = std::min<int64_t>(2, width);
  for (int64_t x = 0; x < columns; ++x) col_weight[x] = A(x + 1);
  const uint32_t order = 0;
  const PSTaps<A> rows{two, index, row_weight}, cols{one, &first, col_weight.data()};
  kernel.forward(
      {rows, cols, &order, 1, map.data(), planes, pixels, width, pooled.data(), planes, 1});
  kernel.backward(
      {rows, cols, &order, 1, sums.data(), planes, pixels, width, pooled.data(), planes, 1});
  bool same = true;
  for (int64_t c = 0; c < planes; ++c) {
    A expected = 0, spread = 0;
    for (int r = 0; r < 2; ++r) {
      for (int64_t x = 0; x < columns; ++x) {
        const int64_t at = c * pixels + index[r] * width + x;
        const A weight = row_weight[r] * col_weight[x];
        expected += weight * math::to_float(map[at]);
        same &= sums[at] == weight * math::to_float(pooled[c]);
      }
    }
    for (int64_t i = 0; i < pixels; ++i) spread += sums[c * pixels + i] != 0;
    same &= math::to_float(pooled[c]) == expected && spread == (expected != 0 ? 2 * columns : 0);
  }
  check(same, "ps_roi_align");
}

}  // namespace

void check_pooling() {
  for (const int64_t channels : {1, 4, 19, 96}) {
    check_roi_pool<float>(channels);
    check_roi_pool<double>(channels);
    check_roi_pool<Half>(channels);
    check_roi_pool<BFloat16>(channels);
  }
  for (const int64_t planes : {1, 2, 3, 4}) {
    for (const int64_t width : {1, 3, 20}) {
      check_ps_roi_align<float>(planes, width);
      check_ps_roi_align<double>(planes, width);
      check_ps_roi_align<Half>(planes, width);
      check_ps_roi_align<BFloat16>(planes, width);
    }
  }
}

}  // namespace detops::cross
