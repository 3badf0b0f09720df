// SPDX-License-Identifier: MIT
#pragma once

#include "../math/weighted_box_fusion.h"
#include "../ops.h"

// What the host functions of both backends make of the arguments of weighted_box_fusion.
namespace detops {

inline math::Confidence confidence_of(std::string_view conf_type) {
  if (conf_type == "avg") return math::Confidence::kAvg;
  if (conf_type == "max") return math::Confidence::kMax;
  return conf_type == "box_and_model_avg" ? math::Confidence::kBoxAndModelAvg
                                          : math::Confidence::kAbsentModelAwareAvg;
}

inline math::FusedModels fused_models(ArrayRef<double> weights) {
  math::FusedModels models{};
  models.count = static_cast<int>(weights.size());
  std::copy(weights.begin(), weights.end(), models.weights);
  return models;
}

}  // namespace detops
