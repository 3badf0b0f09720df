// SPDX-License-Identifier: MIT
// Deformable convolution.
#include "../../csrc/math/deform.h"
#include "../../csrc/ops.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

// Checks a 2 x 2 kernel without stride or padding on a feature map of 5 x 6. Some samples lie far
// outside.
template <typename A>
void check_deform(std::mt19937& random, int64_t channels) {
  constexpr int64_t kHeight = 5, kWidth = 6, kPixels = kHeight * kWidth, kSide = 2;
  constexpr int64_t kPoints = kSide * kSide, kOutputs = 3, kOutputWidth = kWidth - 1;
  constexpr int64_t kPositions = (kHeight - 1) * kOutputWidth;
  const auto map = uniform(random, channels * kPixels, A(-1), A(1));
  auto offset = uniform(random, 2 * kPoints * kPositions, A(-3), A(3));
  offset[3] = NAN, offset[5] = INFINITY, offset[7] = A(-1e30);
  const auto mask = uniform(random, kPoints * kPositions, A(0), A(1));
  const auto weight = uniform(random, kOutputs * channels * kPoints, A(-1), A(1));
  const auto bias = uniform(random, kOutputs, A(-1), A(1));
  const auto grad = uniform(random, kOutputs * kPositions, A(-1), A(1));

  std::vector<double> output(kOutputs * kPositions), to_map(map.size()), to_weight(weight.size());
  std::vector<double> to_bias(kOutputs), to_offset(offset.size()), to_mask(mask.size());
  for (int64_t i = 0; i < kOutputs * kPositions; ++i) {
    output[i] = double(bias[i / kPositions]);
    to_bias[i / kPositions] += double(grad[i]);
  }
  for (int64_t k = 0; k < kPoints; ++k) {
    for (int64_t p = 0; p < kPositions; ++p) {
      const int64_t y_index = 2 * k * kPositions + p, x_index = y_index + kPositions;
      const A y = A(p / kOutputWidth + k / kSide) + offset[y_index];
      const A x = A(p % kOutputWidth + k % kSide) + offset[x_index];
      const A scale = mask[k * kPositions + p];
      const auto s = math::deform::sample(y, x, A(-1), A(kHeight), A(kWidth));
      const auto corner_weights = math::deform::weights<A>(s, scale);
      math::deform::Corners<A> dot{};
      for (int64_t c = 0; c < channels; ++c) {
        double sample = 0, to_sample = 0;
        for (int64_t o = 0; o < kOutputs; ++o) {
          to_sample += double(weight[(o * channels + c) * kPoints + k]) * grad[o * kPositions + p];
        }
        for (int corner = 0; corner < 4; ++corner) {
          const int64_t row = int64_t(s.y) + corner / 2, column = int64_t(s.x) + corner % 2;
          if (row < 0 || row >= kHeight || column < 0 || column >= kWidth) continue;
          const int64_t at = c * kPixels + row * kWidth + column;
          sample += double(corner_weights.at[corner]) * map[at];
          to_map[at] += double(corner_weights.at[corner]) * to_sample;
          dot.at[corner] += static_cast<A>(to_sample) * map[at];
        }
        for (int64_t o = 0; o < kOutputs; ++o) {
          const int64_t w = (o * channels + c) * kPoints + k;
          output[o * kPositions + p] += double(weight[w]) * sample;
          to_weight[w] += double(grad[o * kPositions + p]) * sample;
        }
      }
      const auto to = math::deform::gradient<A>(s, scale, dot);
      to_offset[y_index] = to.y, to_offset[x_index] = to.x, to_mask[k * kPositions + p] = to.mask;
    }
  }

  const Tensor maps = tensor(map, {1, channels, kHeight, kWidth});
  const Tensor offsets = tensor(offset, {1, 2 * kPoints, kHeight - 1, kOutputWidth});
  const Tensor masks = tensor(mask, {1, kPoints, kHeight - 1, kOutputWidth});
  const Tensor weights = tensor(weight, {kOutputs, channels, kSide, kSide}),
               biases = tensor(bias, {kOutputs});
  const std::vector<int64_t> one{1, 1}, none{0, 0};
  Tensor result = empty({1, kOutputs, kHeight - 1, kOutputWidth}, maps.options());
  deform_conv2d_forward(maps, offsets, masks, weights, biases, one, none, one, result);
  check(close(to_vector<A>(result), output, 2e-4), "deformable convolution");
  Tensor grads[] = {empty_like(maps), empty_like(offsets), empty_like(masks), empty_like(weights),
                    empty_like(biases)};
  deform_conv2d_backward(tensor(grad, result.sizes()), maps, offsets, masks, weights, biases, one,
                         none, one, {true, true, true, true, true}, true, grads[0], grads[1],
                         grads[2], grads[3], grads[4]);
  check(close(to_vector<A>(grads[0]), to_map, 2e-4) &&
            close(to_vector<A>(grads[1]), to_offset, 2e-4) &&
            close(to_vector<A>(grads[2]), to_mask, 2e-4) &&
            close(to_vector<A>(grads[3]), to_weight, 2e-4) &&
            close(to_vector<A>(grads[4]), to_bias, 2e-4),
        "gradients of deformable convolution");
}

}  // namespace

void check_deform_conv2d(std::mt19937& random) {
  for (const int64_t channels : {1, 8, 21, 32}) {
    check_deform<float>(random, channels);
    check_deform<double>(random, channels);
  }
}

}  // namespace detops::cross
