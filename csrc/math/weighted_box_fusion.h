// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "box.h"

// "Weighted boxes fusion: Ensembling boxes from different object detection models" (Solovyev, Wang
// and Gabruseva, 2021), section 3, in float64.
namespace detops::math {

// Formulas for the confidence of a fused box. T is the number of models, n that of the members, w
// are the weights of the members' models, and c the members' scores times w. With overflow, kAvg
// uses n instead of min(n, T).
enum class Confidence {
  kAvg,                 // sum(c) / n * min(n, T) / sum of all weights
  kMax,                 // max(c) / the largest weight
  kBoxAndModelAvg,      // sum(c) / sum(w) * sum of the weights of its models / sum of all weights
  kAbsentModelAwareAvg  // sum(c) / (sum(w) + sum of the weights of the models that it lacks)
};

inline Confidence parse_confidence(std::string_view conf_type) {
  if (conf_type == "avg") return Confidence::kAvg;
  if (conf_type == "max") return Confidence::kMax;
  return conf_type == "box_and_model_avg" ? Confidence::kBoxAndModelAvg
                                          : Confidence::kAbsentModelAwareAvg;
}

// The weights of the models whose boxes are fused.
struct FusedModels {
  static constexpr int kMaxModels = 64;
  double weights[kMaxModels];
  int count;

  DETOPS_HD double total() const { return sum_of(~uint64_t(0)); }
  DETOPS_HD double largest() const {
    double result = weights[0];
    for (int i = 1; i < count; ++i) result = max(result, weights[i]);
    return result;
  }
  // Sums the weights of the models whose bit is set.
  DETOPS_HD double sum_of(uint64_t models) const {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += models >> i & 1 ? weights[i] : 0;
    return sum;
  }
};

template <typename Weights>
FusedModels fused_models(const Weights& weights) {
  FusedModels models{};
  for (const double weight : weights) models.weights[models.count++] = weight;
  return models;
}

// A box of a model. `confidence` is its score times the weight of the model.
struct FusionMember {
  Box<double> box;
  double confidence;
  int model;
};

// Returns whether a box is fused at all.
DETOPS_HD bool is_eligible(const Box<double>& box, double score, double min_score) {
  const double size = area(box);
  return box.x2 > box.x1 && box.y2 > box.y1 && size - size == 0 && score >= min_score &&
         score > 0 && score - score == 0;
}

// The result of fusing some boxes, the members.
struct FusedBox {
  Box<double> box;  // the mean of the members, weighted by their confidences
  Box<double> sum;  // of their weighted coordinates
  double confidence, weight, max_confidence;  // sums of c and w; the largest c
  int64_t members;
  uint64_t models;  // one bit per model

  DETOPS_HD void begin(const FusionMember& m, const FusedModels& ensemble) {
    *this = {};
    add(m, ensemble);
    box = m.box;
  }

  DETOPS_HD void add(const FusionMember& m, const FusedModels& ensemble) {
    const double c = m.confidence;
    sum.x1 += c * m.box.x1, sum.y1 += c * m.box.y1;
    sum.x2 += c * m.box.x2, sum.y2 += c * m.box.y2;
    confidence += c;
    box = {sum.x1 / confidence, sum.y1 / confidence, sum.x2 / confidence, sum.y2 / confidence};
    max_confidence = max(max_confidence, c);
    weight += ensemble.weights[m.model];
    ++members;
    models |= uint64_t(1) << m.model;
  }

  DETOPS_HD double score(const FusedModels& ensemble, Confidence type, bool allows_overflow) const {
    if (type == Confidence::kMax) return max_confidence / ensemble.largest();
    if (type == Confidence::kBoxAndModelAvg) {
      return confidence / weight * ensemble.sum_of(models) / ensemble.total();
    }
    if (type == Confidence::kAbsentModelAwareAvg) {
      return confidence / (weight + ensemble.sum_of(~models));
    }
    const int64_t counted = allows_overflow ? members : min(members, int64_t(ensemble.count));
    return confidence / static_cast<double>(members) * static_cast<double>(counted) /
           ensemble.total();
  }
};

}  // namespace detops::math
