// SPDX-License-Identifier: MIT
// Convolutions with packed weights, direct and by Winograd's algorithm, and weight gradients.
#include "../../csrc/ops.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

constexpr int64_t kImages = 2, kChannels = 5, kOutputs = 35, kHeight = 9, kWidth = 11;
constexpr int64_t kOnes[] = {1, 1}, kKernel[] = {3, 3};

struct Inputs {
  std::vector<float> map, weight, bias, add;
};

// Calls run(output, input, weight), three indices, for each product of a pixel and a weight.
template <typename Run>
void each_product(int64_t padding, const Run& run) {
  for (int64_t i = 0; i < kImages * kOutputs * kHeight * kWidth; ++i) {
    const int64_t x = i % kWidth, y = i / kWidth % kHeight, o = i / (kWidth * kHeight) % kOutputs;
    const int64_t image = i / (kWidth * kHeight * kOutputs);
    for (int64_t k = 0; k < kChannels * 9; ++k) {
      const int64_t c = k / 9, v = y + k / 3 % 3 - padding, u = x + k % 3 - padding;
      if (v < 0 || u < 0 || v >= kHeight || u >= kWidth) continue;
      run(i, ((image * kChannels + c) * kHeight + v) * kWidth + u, o * kChannels * 9 + k);
    }
  }
}

Inputs inputs(std::mt19937& random) {
  const int64_t pixels = kImages * kHeight * kWidth;
  return {uniform<float>(random, pixels * kChannels, -1, 1),
          uniform<float>(random, kOutputs * kChannels * 9, -1, 1),
          uniform<float>(random, kOutputs, -1, 1),
          uniform<float>(random, pixels * kOutputs, -1, 1)};
}

void check_sums(const Inputs& in, bool winograd) {
  std::vector<double> expected(in.add.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = double(in.add[i]) + double(in.bias[i / (kHeight * kWidth) % kOutputs]);
  }
  each_product(1, [&](int64_t to, int64_t pixel, int64_t weight) {
    expected[to] += double(in.map[pixel]) * double(in.weight[weight]);
  });
  for (double& sum : expected) sum = std::max(0., sum);
  const Options options{kFloat, kCPU, -1};
  const int64_t panels = (kOutputs + 31) / 32;
  Tensor packed = winograd ? empty({36, panels, kChannels, 32}, options)
                           : empty({1, panels, 9 * kChannels, 32}, options);
  const Tensor weight = tensor(in.weight, {kOutputs, kChannels, 3, 3});
  winograd ? pack_winograd_weight(weight, packed) : pack_conv2d_weight(weight, packed);
  Tensor sums = empty({kImages, kOutputs, kHeight, kWidth}, options);
  packed_conv2d(tensor(in.map, {kImages, kChannels, kHeight, kWidth}), packed,
                tensor(in.bias, {kOutputs}), tensor(in.add, sums.sizes()), kOutputs, kKernel, kOnes,
                kOnes, kOnes, true, sums);
  check(close(to_vector<float>(sums), expected, 1e-5), "convolution");
}

void check_gradient(const Inputs& in) {
  std::vector<double> expected(in.weight.size());
  each_product(1, [&](int64_t to, int64_t pixel, int64_t weight) {
    expected[weight] += double(in.add[to]) * double(in.map[pixel]);
  });
  Tensor gradient = empty({kOutputs, kChannels, 3, 3}, {kFloat, kCPU, -1});
  winograd_conv2d_backward_weight(tensor(in.add, {kImages, kOutputs, kHeight, kWidth}),
                                  tensor(in.map, {kImages, kChannels, kHeight, kWidth}), kOnes,
                                  gradient);
  check(close(to_vector<float>(gradient), expected, 2e-5), "gradient of a convolution's weights");
}

}  // namespace

void check_convolutions(std::mt19937& random) {
  const Inputs in = inputs(random);
  check_sums(in, false);
  check_sums(in, true);
  check_gradient(in);
}

}  // namespace detops::cross
