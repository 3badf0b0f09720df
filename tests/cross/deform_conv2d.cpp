// SPDX-License-Identifier: MIT
// Deformable convolution.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../../csrc/cpu/deform/deform_conv2d_kernels.h"
#include "../../csrc/math/deform_conv2d.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

// A tile of samples of one kernel point, some of them far outside, against the scalar arithmetic.
template <typename A>
void check_deform(std::mt19937& random, int64_t channels) {
  constexpr int64_t kHeight = 5, kWidth = 6, kRow = kWidth + 2, kCount = 21, kStride = 32;
  std::uniform_real_distribution<A> place(-3, 8);
  std::vector<A> map((kHeight + 3) * kRow * kRoIChannels + kRoIChannels), grad_map(map.size());
  for (int64_t y = 2; y < kHeight + 2; ++y) {
    for (int64_t i = kRoIChannels; i < (kWidth + 1) * kRoIChannels; ++i) {
      map[y * kRow * kRoIChannels + i] = place(random);
    }
  }
  std::vector<A> y(kCount), x(kCount), zero(kCount), weights(4 * kStride), dots(4 * kStride);
  for (int64_t i = 0; i < kCount; ++i) y[i] = place(random), x[i] = place(random);
  y[3] = NAN, x[5] = INFINITY, y[7] = A(-1e30);
  std::vector<A> columns(kCount * channels + 16), grad(columns.size()), rows(3 * kCount);
  for (A& g : grad) g = place(random);
  std::vector<pixel_index_t<A>> pixel(kStride);
  const DeformPoint<A> point{kCount, y.data(), x.data(), nullptr,    zero.data(), zero.data(),
                             A(0),   A(0),     A(-1),    A(kHeight), A(kWidth)};
  const DeformTaps<A> taps{
      pixel.data(), {&weights[0], &weights[kStride], &weights[2 * kStride], &weights[3 * kStride]}};
  DeformBlock<A> block{taps, 1, kCount,   kStride,        map.data(),
                       kRow, 0, channels, columns.data(), channels};
  const auto& kernel = deform_kernels<A>();
  kernel.locate(point, taps);
  kernel.gather(block);
  std::vector<A> gathered = columns, expected_map(map.size());
  columns = grad;
  kernel.scatter(block, grad_map.data(), dots.data());
  kernel.differentiate(point, dots.data(), kStride, &rows[0], &rows[kCount], &rows[2 * kCount]);
  const auto near = [](A a, A b) { return std::fabs(a - b) <= A(2e-4); };
  bool close = std::equal(&columns[0], &columns[kCount * channels], &gathered[0]);
  for (int64_t i = 0; i < kCount; ++i) {
    const auto s = math::deform::sample(y[i], x[i], A(-1), A(kHeight), A(kWidth));
    const auto weight = math::deform::weights<A>(s, A(1));
    math::deform::Corners<A> dot{};
    for (int64_t c = 0; c < channels; ++c) {
      A sum = 0;
      for (int corner = 0; corner < 4; ++corner) {
        const int64_t at =
            ((int64_t(s.y) + 2 + corner / 2) * kRow + int64_t(s.x) + 1 + corner % 2) *
                kRoIChannels +
            c;
        sum += weight.at[corner] * map[at];
        dot.at[corner] += grad[i * channels + c] * map[at];
        expected_map[at] += weight.at[corner] * grad[i * channels + c];
      }
      close &= near(sum, gathered[i * channels + c]);
    }
    const auto expected = math::deform::gradient<A>(s, A(1), dot);
    close &= near(rows[i], expected.y) && near(rows[kCount + i], expected.x) &&
             near(rows[2 * kCount + i], expected.mask);
  }
  for (size_t i = 0; i < map.size(); ++i) close &= near(grad_map[i], expected_map[i]);
  check(close, "deform");
}

}  // namespace

void check_deform_conv2d(std::mt19937& random) {
  for (const int64_t channels : {1, 8, 21, 32}) {
    check_deform<float>(random, channels);
    check_deform<double>(random, channels);
  }
}

}  // namespace detops::cross
