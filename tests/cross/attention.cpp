// SPDX-License-Identifier: MIT
// Deformable attention.
#include "../../csrc/math/deform.h"
#include "../../csrc/ops.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

// Checks three queries of two heads on a feature map of 5 x 7.
void check_queries(std::mt19937& random, int64_t channels, int64_t samples) {
  using namespace math::attention;
  constexpr int64_t kHeight = 5, kWidth = 7, kPositions = kHeight * kWidth, kHeads = 2;
  constexpr int64_t kQueries = 3, kRows = kQueries * kHeads;
  const auto value = uniform(random, kPositions * kHeads * channels, -0.3f, 1.3f);
  const auto locations = uniform(random, kRows * samples * 2, -0.3f, 1.3f);
  const auto weights = uniform(random, kRows * samples, -0.3f, 1.3f);
  const auto grad = uniform(random, kRows * channels, -0.3f, 1.3f);

  std::vector<double> output(grad.size()), to_value(value.size());
  std::vector<float> to_locations, to_weights;
  for (int64_t i = 0; i < kRows * samples; ++i) {
    const int64_t row = i / samples, head = row % kHeads;
    const auto at =
        locate<float>(locations[2 * i], locations[2 * i + 1], float(kWidth), float(kHeight));
    const auto corner = positions(int64_t(at.x), int64_t(at.y), kWidth, kHeight, int64_t(0));
    const auto shares = corner_weights<float>(at);
    Corners<float> product{};
    for (int k = 0; k < 4; ++k) {
      for (int64_t c = 0; c < channels && corner.at[k] >= 0; ++c) {
        const int64_t from = (corner.at[k] * kHeads + head) * channels + c, to = row * channels + c;
        output[to] += double(weights[i]) * shares.at[k] * value[from];
        to_value[from] += double(weights[i]) * shares.at[k] * grad[to];
        product.at[k] += grad[to] * value[from];
      }
    }
    const auto to = gradient<float>(at, weights[i], float(kWidth), float(kHeight), product);
    to_locations.insert(to_locations.end(), {to.x, to.y});
    to_weights.push_back(to.weight);
  }

  const Tensor values = tensor(value, {1, kPositions, kHeads, channels});
  const Tensor shapes = tensor<int64_t>({kHeight, kWidth}, {1, 2}),
               start = tensor<int64_t>({0}, {1});
  const Tensor sampling_locations = tensor(locations, {1, kQueries, kHeads, 1, samples, 2});
  const Tensor weight = tensor(weights, {1, kQueries, kHeads, 1, samples});
  Tensor result = empty({1, kQueries, kHeads * channels}, values.options());
  ms_deform_attn_forward(values, shapes, start, sampling_locations, weight, result);
  check(close(to_vector<float>(result), output, 1e-4), "attention");
  Tensor grad_value = empty_like(values), grad_locations = empty_like(sampling_locations);
  Tensor grad_weight = empty_like(weight);
  ms_deform_attn_backward(tensor(grad, result.sizes()), values, shapes, start, sampling_locations,
                          weight, grad_value, grad_locations, grad_weight);
  check(close(to_vector<float>(grad_value), to_value, 1e-4) &&
            close(to_vector<float>(grad_locations), to_locations, 1e-4) &&
            close(to_vector<float>(grad_weight), to_weights, 1e-4),
        "gradients of attention");
}

}  // namespace

void check_attention(std::mt19937& random) {
  for (const int64_t channels : {1, 5, 32}) {
    for (const int64_t samples : {1, 3, 16, 36}) check_queries(random, channels, samples);
  }
}

}  // namespace detops::cross
