// SPDX-License-Identifier: MIT
// RoI pooling.
#include <algorithm>
#include <vector>

#include "../../csrc/cpu/roi/ps_roi_align_kernels.h"
#include "../../csrc/cpu/roi/ps_roi_rows_kernels.h"
#include "../../csrc/cpu/roi/roi_pool_kernels.h"
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

// A row of a channels_last map that the second row of two RoIs' bins reads.
template <typename T>
void check_ps_roi_rows(int64_t channels) {
  using A = accumulate_t<T>;
  constexpr int64_t kHigh = 3, kWide = 7, kBins = kHigh * kWide, kWidth = 9;
  const int64_t n = std::min(channels, kPSLanes);
  std::vector<T> pooled(2 * kBins * channels), row(kWidth * kBins * channels, T{});
  for (size_t i = 0; i < pooled.size(); ++i) math::from_float(A(i % 13), pooled[i]);
  const PSReach<A> reaches[] = {{0, 1, A(0.5)}, {1, 1, A(0.25)}};
  std::vector<int64_t> begin;
  std::vector<int32_t> index;
  std::vector<A> weight, sums(kWidth * kBins * kPSLanes), expected(row.size(), A(0));
  const uint32_t order[] = {1, 0};
  for (int roi = 0; roi < 2; ++roi) {
    for (int64_t pw = 0; pw < kWide; ++pw) {
      begin.push_back(index.size());
      for (int64_t x = pw; x < pw + 2; ++x) {
        index.push_back(x);
        weight.push_back(A(x - pw + 1));
        for (int64_t c = 0; c < n; ++c) {
          const int64_t bin = kWide + pw;
          const A g = math::to_float(pooled[(order[roi] * kBins + bin) * channels + c]);
          expected[(x * channels + c) * kBins + bin] += reaches[roi].weight * weight.back() * g;
        }
      }
    }
  }
  begin.push_back(index.size());
  ps_roi_rows_kernels<T>().backward({reaches,
                                     2,
                                     {begin.data(), index.data(), weight.data()},
                                     order,
                                     kWide,
                                     kBins,
                                     pooled.data(),
                                     channels,
                                     n,
                                     kWidth,
                                     sums.data(),
                                     row.data()});
  bool same = true;
  for (size_t i = 0; i < row.size(); ++i) same &= math::to_float(row[i]) == expected[i];
  check(same, "ps_roi_rows");
}

}  // namespace

void check_pooling() {
  for (const int64_t channels : {1, 4, 19, 96}) {
    check_roi_pool<float>(channels);
    check_roi_pool<double>(channels);
    check_roi_pool<Half>(channels);
    check_roi_pool<BFloat16>(channels);
  }
  for (const int64_t channels : {1, 4, 10, 16, 21}) {
    check_ps_roi_rows<float>(channels);
    check_ps_roi_rows<double>(channels);
    check_ps_roi_rows<Half>(channels);
    check_ps_roi_rows<BFloat16>(channels);
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
