// SPDX-License-Identifier: MIT
// NMS, overlaps and losses.
#include "../../csrc/math/focal_loss.h"
#include "../../csrc/ops.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;
constexpr auto kCIoU = math::Overlap::kCIoU;

template <typename T>
void check_nms(std::mt19937& random, int64_t n, T extent, double threshold) {
  const auto boxes = random_boxes<T>(random, n, extent);
  std::vector<float> scores(n);
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < n; ++i) {
    scores[i] = static_cast<float>(n - i);
    const math::Box<T>& box = boxes[i];
    const bool suppressed = std::any_of(expected.begin(), expected.end(), [&](int64_t j) {
      return math::suppresses(boxes[j], box, math::area(box), threshold);
    });
    if (!suppressed) expected.push_back(i);
  }
  check(to_vector<int64_t>(nms(tensor(boxes), tensor(scores, {n}), threshold, {}, {})) == expected,
        "nms");
}

void check_overlap(std::mt19937& random) {
  constexpr int64_t kCount = 37;
  const auto boxes = random_boxes<float>(random, kCount, 50);
  const Tensor all = tensor(boxes);
  std::vector<float> expected;
  for (const auto& a : boxes) {
    for (const auto& b : boxes) {
      expected.push_back(math::pairwise::overlap<kCIoU, float>(math::overlap_box<kCIoU>(a),
                                                               math::overlap_box<kCIoU>(b), 1e-7f));
    }
  }
  Tensor overlaps = empty({kCount, kCount}, all.options());
  box_iou_forward(all, all, "ciou", 1e-7, overlaps);
  check(close(to_vector<float>(overlaps), expected, 1e-6), "overlap");
  Tensor best = empty({kCount}, all.options());
  Tensor index = empty({kCount}, all.options().dtype(kLong));
  match_boxes(all, all, best, index);
  bool itself = true;
  for (int64_t i = 0; i < kCount; ++i) {
    itself &= to_vector<int64_t>(index)[i] == i && to_vector<float>(best)[i] == 1;
  }
  check(itself, "best overlap");
}

void check_overlap_loss(std::mt19937& random) {
  constexpr int64_t kCount = 75;
  const auto a = random_boxes<float>(random, kCount, 50),
             b = random_boxes<float>(random, kCount, 50);
  std::vector<float> expected, first, second;
  for (int64_t i = 0; i < kCount; ++i) {
    const auto box = math::overlap_box<kCIoU>(a[i]), other = math::overlap_box<kCIoU>(b[i]);
    expected.push_back(math::pairwise::overlap_loss<kCIoU, float>(box, other, 1e-7f));
    math::Box<float> da, db;
    math::pairwise::overlap_loss_gradient<kCIoU, float>(box, other, 1e-7f, 1.f, da, db);
    first.insert(first.end(), {da.x1, da.y1, da.x2, da.y2});
    second.insert(second.end(), {db.x1, db.y1, db.x2, db.y2});
  }
  const Tensor all = tensor(a), others = tensor(b);
  Tensor loss = empty({kCount}, all.options()), to_a = empty_like(all), to_b = empty_like(others);
  box_iou_loss_forward(all, others, "ciou", 1e-7, loss);
  box_iou_loss_backward(empty_like(loss).fill_(1), all, others, "ciou", 1e-7, to_a, to_b);
  check(close(to_vector<float>(loss), expected, 1e-6), "overlap loss");
  check(close(to_vector<float>(to_a), first, 1e-6) && close(to_vector<float>(to_b), second, 1e-6),
        "gradients of the overlap loss");
}

void check_focal_loss(std::mt19937& random) {
  constexpr int64_t kCount = 1003;
  constexpr double kAlpha = 0.25, kGamma = 1.5;
  constexpr auto kAny = math::Focus::kAny;
  std::normal_distribution<float> logit(0, 20);
  std::vector<float> x(kCount), t(kCount);
  std::vector<double> losses, slopes;
  double total = 0;
  const auto f = math::focal_params<double>(kAlpha, kGamma);
  for (int64_t i = 0; i < kCount; ++i) {
    x[i] = logit(random), t[i] = static_cast<float>(i % 5) / 4;
    losses.push_back(math::focal::loss<kAny>(f, double(x[i]), double(t[i])));
    slopes.push_back(math::focal::slope<kAny>(f, double(x[i]), double(t[i])));
    total += losses.back();
  }
  const Tensor inputs = tensor(x, {kCount}), targets = tensor(t, {kCount});
  Tensor loss = empty_like(inputs), to_inputs = empty_like(inputs);
  Tensor sum = empty({1}, inputs.options());
  sigmoid_focal_loss_forward(inputs, targets, kAlpha, kGamma, loss);
  sigmoid_focal_loss_sum(inputs, targets, kAlpha, kGamma, sum);
  const Tensor one = empty({1}, inputs.options()).fill_(1);
  sigmoid_focal_loss_backward(one.as_strided({kCount}, {0}), inputs, targets, kAlpha, kGamma,
                              to_inputs);
  check(close(to_vector<float>(loss), losses, 1e-5) &&
            close(to_vector<float>(to_inputs), slopes, 1e-5) &&
            std::fabs(sum.item<float>() - total) <= 1e-5 * total,
        "focal loss");
}

}  // namespace

void check_boxes(std::mt19937& random) {
  for (const double threshold : {0.0, 0.1, 0.3, 0.5, 0.7, 0.95}) {
    for (const int64_t n : {1, 50, 700, 2500}) {
      check_nms<float>(random, n, 500, threshold);
      check_nms<double>(random, n, 500, threshold);
    }
  }
  check_nms<float>(random, 33000, 1000, 0.5);  // large enough for several threads
  check_overlap(random);
  check_overlap_loss(random);
  check_focal_loss(random);
}

}  // namespace detops::cross
