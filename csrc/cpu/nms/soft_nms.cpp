// SPDX-License-Identifier: MIT
#include <limits>

#include "../../math/decay.h"
#include "../../ops.h"
#include "score_order.h"

namespace detops::cpu {

// Boxes that are left, as a structure of arrays, in input order. A score of NaN marks a box that is
// selected or dropped; such ones stand behind the last up to a whole vector.
template <typename T>
struct SoftNmsList {
  T *x1, *y1, *x2, *y2, *area, *score;
  int64_t count;
};
constexpr int64_t kSoftNmsPadding = 16;

struct SoftNmsNext {
  int64_t best;  // the first of the highest scores, -1 where none is left
  int64_t left;  // how many are
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../nms/soft_nms.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// The boxes that are left, and where they come from.
template <typename T>
class SoftNmsBoxes {
 public:
  SoftNmsBoxes(const T* boxes, const T* scores, int64_t n, T min_score)
      : data_(6 * (n + kSoftNmsPadding)), index_(n) {
    T* x1 = data_.data();
    const int64_t stride = n + kSoftNmsPadding;
    list_ = {x1, x1 + stride, x1 + 2 * stride, x1 + 3 * stride, x1 + 4 * stride, x1 + 5 * stride,
             0};
    std::fill_n(x1, 6 * stride, T(0));
    for (int64_t i = 0; i < n; ++i) {
      if (!(scores[i] >= min_score)) continue;
      const T* b = boxes + 4 * i;
      const int64_t k = list_.count++;
      list_.x1[k] = b[0], list_.y1[k] = b[1], list_.x2[k] = b[2], list_.y2[k] = b[3];
      list_.area[k] = math::area(math::Box<T>{b[0], b[1], b[2], b[3]});
      list_.score[k] = scores[i];
      index_[k] = static_cast<uint32_t>(i);
    }
    end();
  }

  const SoftNmsList<T>& list() const { return list_; }

  // Removes the k-th box.
  math::OverlapBox<T> take(int64_t k) {
    list_.score[k] = kNone;
    return {{list_.x1[k], list_.y1[k], list_.x2[k], list_.y2[k]}, list_.area[k], 0};
  }

  T score(int64_t k) const { return list_.score[k]; }
  int64_t index(int64_t k) const { return index_[k]; }

  // Closes the gaps; returns where the k-th box is now.
  int64_t compact(int64_t k) {
    int64_t to = 0, now = k;
    for (int64_t i = 0; i < list_.count; ++i) {
      if (i == k) now = to;
      for (T* column : {list_.x1, list_.y1, list_.x2, list_.y2, list_.area, list_.score}) {
        column[to] = column[i];
      }
      index_[to] = index_[i];
      to += list_.score[i] == list_.score[i];
    }
    list_.count = to;
    end();
    return now;
  }

 private:
  static constexpr T kNone = std::numeric_limits<T>::quiet_NaN();

  void end() { std::fill_n(list_.score + list_.count, kSoftNmsPadding, kNone); }

  Buffer<T> data_;
  Buffer<uint32_t> index_;
  SoftNmsList<T> list_;
};

}  // namespace

std::tuple<Tensor, Tensor> soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                                    double sigma, double min_score, std::string_view method,
                                    std::optional<int64_t> max_output) {
  const int64_t n = boxes.size(0), limit = max_output.value_or(n);
  check_count("soft_nms", n);
  const auto type = compute_type(promoted_type(boxes.scalar_type(), scores.scalar_type()));
  const Tensor all = as_type(boxes, type).contiguous();
  const Tensor first = as_type(scores, type).contiguous();
  Tensor keep, kept_scores;
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto rule = math::soft_nms_rule<scalar_t>(iou_threshold, sigma, min_score);
    SoftNmsBoxes<scalar_t> left(all.const_data_ptr<scalar_t>(), first.const_data_ptr<scalar_t>(), n,
                                rule.min_score);
    Buffer<int64_t> index(n);
    Buffer<scalar_t> score(n);
    int64_t count = 0;
    // The first look is with a box that meets none, which by the linear rule changes no score.
    constexpr auto kLinear = math::Decay::kLinear;
    SoftNmsNext next =
        DETOPS_IN_USE(soft_nms_rescale<kLinear, scalar_t>)(left.list(), {{0, 0, 0, 0}, 0, 0}, rule);
    math::with_decay(decay_method(method), [&](auto decay) {
      const auto rescale = DETOPS_IN_USE(soft_nms_rescale<decltype(decay)::value, scalar_t>);
      while (next.best >= 0 && count < limit) {
        // Closing gaps costs as much as a few passes.
        if (next.left < left.list().count / 4 * 3) next.best = left.compact(next.best);
        index[count] = left.index(next.best);
        score[count++] = left.score(next.best);
        if (count < limit) next = rescale(left.list(), left.take(next.best), rule);
      }
    });
    keep = empty({count}, boxes.options().dtype(kLong));
    kept_scores = empty({count}, first.options());
    std::copy_n(index.data(), count, keep.mutable_data_ptr<int64_t>());
    std::copy_n(score.data(), count, kept_scores.mutable_data_ptr<scalar_t>());
  });
  return {keep, as_type(kept_scores, scores.scalar_type())};
}

}  // namespace detops::cpu
