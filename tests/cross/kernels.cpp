// SPDX-License-Identifier: MIT
// The CPU kernels without PyTorch, so that they can be run on another architecture by an emulator:
// see `make cross-check`. Compares them with plain loops.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../csrc/cpu/kernels/box_iou.h"
#include "../../csrc/cpu/kernels/box_iou_loss.h"
#include "../../csrc/cpu/kernels/deform_conv2d.h"
#include "../../csrc/cpu/kernels/focal_loss.h"
#include "../../csrc/cpu/kernels/isa.h"
#include "../../csrc/cpu/kernels/lltm.h"
#include "../../csrc/cpu/kernels/masks_to_boxes.h"
#include "../../csrc/cpu/kernels/mlp.h"
#include "../../csrc/cpu/kernels/ms_deform_attn.h"
#include "../../csrc/cpu/kernels/nms.h"
#include "../../csrc/cpu/kernels/paste_masks_in_image.h"
#include "../../csrc/cpu/kernels/ps_roi_align.h"
#include "../../csrc/cpu/kernels/roi_align.h"
#include "../../csrc/cpu/kernels/roi_pool.h"
#include "../../csrc/cpu/nms_grid.h"
#include "../../csrc/math/deform_conv2d.h"

// The one function of PyTorch that the kernels call.
namespace at {
std::string get_cpu_capability() { return "DEFAULT"; }
}  // namespace at

namespace {

using namespace detops;
using namespace detops::cpu;

int failures = 0;

void check(bool good, const char* what) {
  if (good) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

template <typename T>
void check_nms(std::mt19937& random, int64_t n, double threshold) {
  std::uniform_real_distribution<T> place(0, 500), side(T(4), T(40));
  std::vector<T> x1(n), y1(n), x2(n), y2(n);
  for (int64_t i = 0; i < n; ++i) {
    x1[i] = place(random), y1[i] = place(random);
    x2[i] = x1[i] + side(random), y2[i] = y1[i] + side(random);
  }
  std::vector<uint8_t> keep(n), expected(n);
  for (int64_t i = 0; i < n; ++i) {
    const math::Box<T> box{x1[i], y1[i], x2[i], y2[i]};
    expected[i] = 1;
    for (int64_t j = 0; j < i && expected[i]; ++j) {
      const math::Box<T> kept{x1[j], y1[j], x2[j], y2[j]};
      expected[i] = !(expected[j] &&
                      math::suppresses(kept, math::area(kept), box, math::area(box), threshold));
    }
  }
  const int64_t stride = n + kNmsPadding;
  std::vector<T> list(5 * stride);
  const NmsBoxes<T> kept{&list[0], &list[stride], &list[2 * stride], &list[3 * stride],
                         &list[4 * stride]};
  const NmsSegment<T> s{x1.data(), y1.data(), x2.data(), y2.data(), n, threshold, keep.data()};
  const auto& kernel = nms_kernels<T>();
  const int64_t settled = kernel.flat(s, kept);
  NmsGridStorage<T> storage;
  if (settled < n) kernel.grid(s, storage.build(s, settled), settled);
  check(keep == expected, "nms");
}

template <typename T>
void check_transpose(int64_t channels, int64_t count) {
  using A = accumulate_t<T>;
  const auto& kernel = roi_align_kernels<T>();
  std::vector<T> planes(channels * count), back(channels * count);
  for (size_t i = 0; i < planes.size(); ++i) math::from_float(A(i % 97), planes[i]);
  std::vector<A> lanes(count * kRoIChannels, A(-1));
  kernel.planes_to_lanes(planes.data(), count, channels, count, lanes.data());
  kernel.lanes_to_planes(lanes.data(), count, channels, count, back.data());
  bool same = true;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < count; ++i) {
      const A value = math::to_float(planes[c * count + i]);
      same &= lanes[i * kRoIChannels + c] == value;
      same &= math::to_float(back[c * count + i]) == value;
    }
  }
  check(same, "transpose");
}

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

void check_overlap(std::mt19937& random) {
  std::uniform_real_distribution<float> place(0, 50), side(4, 40);
  constexpr int64_t kCount = 37;
  std::vector<float> columns(6 * (kCount + kOverlapPadding), 0.f), row(kCount);
  std::vector<math::OverlapBox<float>> boxes;
  const int64_t stride = kCount + kOverlapPadding;
  for (int64_t i = 0; i < kCount; ++i) {
    const float x = place(random), y = place(random);
    boxes.push_back(math::overlap_box<math::Overlap::kCIoU>(
        math::Box<float>{x, y, x + side(random), y + side(random)}));
    const auto& b = boxes.back();
    const float values[] = {b.box.x1, b.box.y1, b.box.x2, b.box.y2, b.area, b.angle};
    for (int64_t k = 0; k < 6; ++k) columns[k * stride + i] = values[k];
  }
  const float* x1 = columns.data();
  const OverlapBoxes<float> others{
      x1, x1 + stride, x1 + 2 * stride, x1 + 3 * stride, x1 + 4 * stride, x1 + 5 * stride, kCount};
  const auto& kernel = overlap_kernels<float>();
  kernel.row[static_cast<int>(math::Overlap::kCIoU)](boxes[0], others, 1e-7f, row.data());
  bool close = true;
  for (int64_t i = 0; i < kCount; ++i) {
    const float expected =
        math::pairwise::overlap<math::Overlap::kCIoU, float>(boxes[0], boxes[i], 1e-7f);
    close &= std::fabs(row[i] - expected) <= 1e-6f;
  }
  check(close, "overlap");
  float best = -1;
  int64_t index = -1;
  kernel.best(boxes[5], others, best, index);
  check(index == 5 && best == 1, "best overlap");
}

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
  const DeformPoint<A> point{kCount,      y.data(), x.data(), nullptr,    zero.data(),
                             zero.data(), A(0),     A(0),     A(kHeight), A(kWidth)};
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
    const auto s = math::deform::sample(y[i], x[i], A(kHeight), A(kWidth));
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
  void check_overlap_loss(std::mt19937 & random) {
    constexpr auto kCIoU = math::Overlap::kCIoU;
    constexpr int64_t kCount = 75;
    std::uniform_real_distribution<float> place(0, 50), side(4, 40);
    std::vector<math::Box<float>> a(kCount), b(kCount), to_a(kCount), to_b(kCount);
    std::vector<float> grad(kCount, 1.f), loss(kCount);
    for (auto* boxes : {&a, &b}) {
      for (auto& box : *boxes) {
        const float x = place(random), y = place(random);
        box = {x, y, x + side(random), y + side(random)};
      }
    }
    const auto& kernels = box_loss_kernels<float>();
    const int kind = static_cast<int>(kCIoU);
    kernels.forward[kind](&a[0].x1, &b[0].x1, kCount, 1e-7f, loss.data());
    kernels.backward[kind](grad.data(), &a[0].x1, &b[0].x1, kCount, 1e-7f, &to_a[0].x1,
                           &to_b[0].x1);
    bool close = true;
    for (int64_t i = 0; i < kCount; ++i) {
      const auto first = math::overlap_box<kCIoU>(a[i]), second = math::overlap_box<kCIoU>(b[i]);
      const float value = math::pairwise::overlap_loss<kCIoU, float>(first, second, 1e-7f);
      math::Box<float> da, db;
      math::pairwise::overlap_loss_gradient<kCIoU, float>(first, second, 1e-7f, 1.f, da, db);
      close &= std::fabs(loss[i] - value) <= 1e-6f;
      close &= std::fabs(to_a[i].x1 - da.x1) <= 1e-6f && std::fabs(to_b[i].y2 - db.y2) <= 1e-6f;
    }
    check(close, "overlap loss");
  }
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
  check_overlap(random);
}

  void check_mask_extent(std::mt19937 & random, int64_t width, int64_t element_size) {
    constexpr int64_t kHeight = 5;
    std::vector<uint8_t> mask(kHeight * width * element_size);
    const MaskParams params{kHeight, width, element_size, ~uint64_t(0)};
    MaskExtent found{};
    check(!mask_kernels().extent(params, mask.data(), found), "empty mask");
    MaskExtent expected{width, kHeight, -1, -1};
    for (int i = 0; i < 2; ++i) {
      const int64_t pixel = random() % (kHeight * width), x = pixel % width, y = pixel / width;
      mask[pixel * element_size + random() % element_size] = 4;
      expected = {std::min(expected.x1, x), std::min(expected.y1, y), std::max(expected.x2, x),
                  std::max(expected.y2, y)};
    }
    check(mask_kernels().extent(params, mask.data(), found) && found.x1 == expected.x1 &&
              found.y1 == expected.y1 && found.x2 == expected.x2 && found.y2 == expected.y2,
          "mask extent");
  }

  void check_paste(std::mt19937 & random) {
    constexpr int64_t kCount = 83;
    std::uniform_real_distribution<float> value(0, 1);
    std::vector<float> low(kCount), high(kCount);
    std::vector<uint8_t> binary(kCount), soft(kCount);
    for (float& x : low) x = value(random);
    for (float& x : high) x = value(random);
    const auto& kernels = paste_kernels<float>();
    kernels.binary(low.data(), high.data(), 0.3f, 0.7f, 0.5f, kCount, binary.data());
    kernels.soft(low.data(), high.data(), 0.3f, 0.7f, -1.f, kCount, soft.data());
    bool same = true;
    for (int64_t i = 0; i < kCount; ++i) {
      const float between = low[i] * 0.3f + high[i] * 0.7f;
      same &= binary[i] == (between >= 0.5f) && soft[i] == math::soft_mask_value(between);
    }
    check(same, "paste");
    // One query of one head on a map of 5 x 7.
    void check_attention(std::mt19937 & random, int64_t channels, int64_t samples) {
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
      kernel.backward(levels, rows, locations.data(), weights.data(), grad.data(),
                      got_locations.data(), got_weights.data());
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

    void check_focal_loss(std::mt19937 & random) {
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

    void check_all() {
      std::mt19937 random(0);
      for (const double threshold : {0.0, 0.1, 0.3, 0.5, 0.7, 0.95}) {
        for (const int64_t n : {1, 50, 700, 2500}) {
          check_nms<float>(random, n, threshold);
          check_nms<double>(random, n, threshold);
        }
      }
      for (const int64_t channels : {1, 3, 17, 32}) {
        for (const int64_t count : {1, 5, 16, 49}) {
          check_transpose<float>(channels, count);
          check_transpose<double>(channels, count);
          check_transpose<Half>(channels, count);
          check_transpose<BFloat16>(channels, count);
        }
      }
      check_overlap(random);
      for (const int64_t channels : {1, 8, 21, 32}) {
        check_deform<float>(random, channels);
        check_deform<double>(random, channels);
        check_overlap_loss(random);
        check_paste(random);
        for (const int64_t width : {1, 7, 40, 203}) {
          for (const int64_t element_size : {1, 2, 4, 8})
            check_mask_extent(random, width, element_size);
        }
        for (const int64_t channels : {1, 5, 32}) {
          for (const int64_t samples : {1, 3, 16, 36}) check_attention(random, channels, samples);
        }
        check_focal_loss(random);
      }

    }  // namespace

    int main() {
      for (const char* isa : {"baseline", "avx2", "avx512"}) {
        try {
          set_cpu_isa(isa);
        } catch (const std::invalid_argument&) {
          continue;  // not on this processor
        }
        check_all();
        std::printf("%s kernels: %d failures\n", cpu_isa(), failures);
      }
      return failures != 0;
    }
