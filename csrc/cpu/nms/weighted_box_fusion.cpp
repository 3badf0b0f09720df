// SPDX-License-Identifier: MIT
#include "../../math/weighted_box_fusion.h"

#include "../../math/overlap.h"
#include "../common/box_columns.h"
#include "../common/host.h"
#include "../common/score_order.h"

#define DETOPS_KERNELS "../nms/weighted_box_fusion.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

struct Result {
  math::Box<double> box;
  double score;
  int64_t label;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> weighted_box_fusion(
    const Tensor& boxes, const Tensor& scores, const Tensor& labels, const Tensor& models,
    ArrayRef<double> weights, double iou_threshold, double skip_box_threshold,
    std::string_view conf_type, bool allows_overflow) {
  const int64_t n = boxes.size(0);
  const Tensor wide_boxes = boxes.to(kDouble).contiguous();
  const Tensor model = models.to(kLong).contiguous();
  const Tensor confidence = empty({n}, boxes.options().dtype(kDouble)).copy_(scores);
  const math::FusedModels ensemble = math::fused_models(weights);
  const auto* box = rows<math::Box, double>(wide_boxes);
  const int64_t* model_index = model.const_data_ptr<int64_t>();
  double* c = confidence.mutable_data_ptr<double>();
  // Boxes that do not take part are last in their label.
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    check(model_index[i] >= 0 && model_index[i] < ensemble.count,
          "detops.weighted_box_fusion: models must be 0 to ", ensemble.count - 1, ", got ",
          model_index[i], " at index ", i);
    const bool eligible = math::is_eligible(box[i], c[i], skip_box_threshold);
    c[i] = eligible ? c[i] * ensemble.weights[model_index[i]] : kNone;
  }
  const Tensor normalized = normalize_labels(&labels);
  const Selection selection(confidence, &normalized);
  const auto segments = static_cast<int64_t>(selection.ends().size());
  std::vector<std::vector<math::FusedBox>> fused(segments);
  parallel_each(segments, grain_for(segments * 512, n + 1), [&](int64_t k) {
    const BoxColumns<double> columns(selection.count(k));
    std::vector<math::FusedBox> clusters;  // in the order of creation
    for (int64_t i = selection.begin(k); i < selection.ends()[k]; ++i) {
      const int64_t from = selection.order()[i];
      if (c[from] == kNone) break;
      const math::FusionMember member{box[from], c[from], static_cast<int>(model_index[from])};
      const auto count = static_cast<int64_t>(clusters.size());
      int64_t cluster = DETOPS_IN_USE(best_overlap)(columns, count, member.box, iou_threshold);
      if (cluster >= 0) {
        clusters[cluster].add(member, ensemble);
      } else {
        cluster = count;
        clusters.emplace_back().begin(member, ensemble);
      }
      columns.set(cluster, clusters[cluster].box);
    }
    fused[k] = std::move(clusters);
  });
  // Sorts by descending score, then by label, then by order of creation.
  std::vector<Result> results;
  const Tensor label = labels.to(kLong).contiguous();
  for (int64_t k = 0; k < segments; ++k) {
    for (const math::FusedBox& f : fused[k]) {
      results.push_back({f.box,
                         f.score(ensemble, math::parse_confidence(conf_type), allows_overflow),
                         label.const_data_ptr<int64_t>()[selection.order()[selection.begin(k)]]});
    }
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const Result& a, const Result& b) { return a.score > b.score; });
  const auto count = static_cast<int64_t>(results.size());
  const Tensor out_boxes = empty({count, 4}, wide_boxes.options());
  const Tensor out_scores = empty({count}, wide_boxes.options());
  const Tensor out_labels = empty({count}, label.options());
  for (int64_t i = 0; i < count; ++i) {
    mutable_rows<math::Box, double>(out_boxes)[i] = results[i].box;
    out_scores.mutable_data_ptr<double>()[i] = results[i].score;
    out_labels.mutable_data_ptr<int64_t>()[i] = results[i].label;
  }
  return {out_boxes.to(boxes.scalar_type()), out_scores.to(scores.scalar_type()),
          out_labels.to(labels.scalar_type())};
}

}  // namespace detops::cpu
