// SPDX-License-Identifier: MIT
// Deformable attention and the focal loss.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../../csrc/cpu/boxes/focal_loss_kernels.h"
#include "../../csrc/cpu/deform/ms_deform_attn_kernels.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

// One query of one head on a map of 5 x 7.
void check_query(std::mt19937& random, int64_t channels, int64_t samples) {
  constexpr int64_t kHeight = 5, kWidth = 7, kPositions = kHeight * kWidth;
  const auto& kernel = attention_kernels<float>();
  const auto padded = [&](int64_t n) {
    return (n + kernel.lanes - 1) / kernel.lanes * kernel.lanes;
  };
  std::uniform_real_distribution<float> place(-0.3f, 1.3f);
  const auto numbers = [&](int64_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = place(random);
    return v;
  };
  const auto value = numbers(kPositions * channels), locations = numbers(2 * samples);
  const auto weights = numbers(samples);
  std::vector<float> grad = numbers(padded(channels)), zeros(channels, 0.f);
  std::fill(grad.begin() + channels, grad.end(), 0.f);
  std::vector<int32_t> height(padded(samples), kHeight), width(padded(samples), kWidth);
  const std::vector<int32_t> start(padded(samples), 0);

  std::vector<double> output(channels, 0.), to_value(kPositions * channels, 0.);
  std::vector<float> to_locations(2 * samples), to_weights(samples);
  for (int64_t i = 0; i < samples; ++i) {
    using namespace math::attention;
    const auto at = math::attention::place<float>(locations[2 * i], locations[2 * i + 1],
                                                  float(kWidth), float(kHeight));
    const auto corner = positions(int64_t(at.x), int64_t(at.y), kWidth, kHeight, int64_t(0));
    const auto share = shares<float>(at);
    Corners<float> product{};
    for (int k = 0; k < 4; ++k) {
      for (int64_t c = 0; c < channels && corner.at[k] >= 0; ++c) {
        const int64_t where = corner.at[k] * channels + c;
        output[c] += double(weights[i]) * share.at[k] * value[where];
        to_value[where] += double(weights[i]) * share.at[k] * grad[c];
        product.at[k] += grad[c] * value[where];
      }
    }
    const auto to = gradient<float>(at, weights[i], float(kWidth), float(kHeight), product);
    to_locations[2 * i] = to.x, to_locations[2 * i + 1] = to.y, to_weights[i] = to.weight;
  }

  const SampleLevels<float> levels{height.data(), width.data(), start.data(), samples};
  const HeadValues<float> head{value.data(), channels, channels, zeros.data()};
  std::vector<float> scratch(padded(channels)), got(channels), got_value(kPositions * channels);
  std::vector<float> got_locations(2 * samples), got_weights(samples);
  kernel.forward(levels, head, locations.data(), weights.data(), got.data(), scratch.data());
  std::vector<float> memory((kPositions + 1) * 2 * padded(channels));
  const HeadRows<float> rows{memory.data() + 2 * padded(channels), padded(channels)};
  kernel.load_rows(head, kPositions, rows);
  kernel.backward(levels, rows, locations.data(), weights.data(), grad.data(), got_locations.data(),
                  got_weights.data());
  kernel.store_rows(rows, kPositions, head, got_value.data());
  bool close = true;
  const auto compare = [&](const auto& ours, const auto& expected) {
    for (size_t i = 0; i < ours.size(); ++i) close &= std::fabs(ours[i] - expected[i]) <= 1e-4;
  };
  compare(got, output);
  compare(got_value, to_value);
  compare(got_locations, to_locations);
  compare(got_weights, to_weights);
  check(close, "attention");
}

void check_focal_loss(std::mt19937& random) {
  constexpr int64_t kCount = 1003;
  std::normal_distribution<float> logit(0, 20);
  std::vector<float> x(kCount), t(kCount), losses(kCount), slopes(kCount);
  for (int64_t i = 0; i < kCount; ++i) x[i] = logit(random), t[i] = float(i % 5) / 4;
  const auto f = math::focal_of<float>(0.25, 1.5);
  const auto f64 = math::focal_of<double>(0.25, 1.5);
  constexpr auto kAny = math::Focus::kAny;
  const auto& kernel = focal_kernels<float>();
  kernel.forward[int(kAny)](f, x.data(), t.data(), kCount, losses.data());
  kernel.backward[int(kAny)](f, nullptr, 1.f, x.data(), t.data(), kCount, slopes.data());
  double sum = 0;
  bool close = true;
  for (int64_t i = 0; i < kCount; ++i) {
    const double loss = math::focal::loss<kAny>(f64, double(x[i]), double(t[i]));
    const double slope = math::focal::slope<kAny>(f64, double(x[i]), double(t[i]));
    close &= std::fabs(losses[i] - loss) <= 1e-5 * loss + 1e-30;
    close &= std::fabs(slopes[i] - slope) <= 1e-5;
    sum += loss;
  }
  close &= std::fabs(kernel.sum[int(kAny)](f, x.data(), t.data(), kCount) - sum) <= 1e-5 * sum;
  check(close, "focal loss");
}

}  // namespace

void check_attention(std::mt19937& random) {
  for (const int64_t channels : {1, 5, 32}) {
    for (const int64_t samples : {1, 3, 16, 36}) check_query(random, channels, samples);
  }
  check_focal_loss(random);
}

}  // namespace detops::cross
