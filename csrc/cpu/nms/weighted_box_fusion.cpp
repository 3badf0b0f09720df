// SPDX-License-Identifier: MIT
#include "../../math/weighted_box_fusion.h"

#include "../../math/overlap.h"
#include "../common/host.h"
#include "nms_boxes.h"
#include "score_order.h"

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
  const Tensor all = boxes.to(kDouble).contiguous();
  const Tensor model = models.to(kLong).contiguous();
  const Tensor confidence = empty({n}, boxes.options().dtype(kDouble)).copy_(scores);
  const math::FusedModels taking_part = math::fused_models(weights);
  const auto* box = rows<math::Box, double>(all);
  const int64_t* of_model = model.const_data_ptr<int64_t>();
  double* c = confidence.mutable_data_ptr<double>();
  // Boxes that do not take part are last in their label.
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    check(of_model[i] >= 0 && of_model[i] < taking_part.count,
          "detops.weighted_box_fusion: models must be 0 to ", taking_part.count - 1, ", got ",
          of_model[i], " at index ", i);
    const bool takes_part = math::takes_part(box[i], c[i], skip_box_threshold);
    c[i] = takes_part ? c[i] * taking_part.weights[of_model[i]] : kNone;
  }
  const Tensor distinct = labels_of(&labels);
  const Selection selection(confidence, &distinct);
  const auto segments = static_cast<int64_t>(selection.ends().size());
  std::vector<std::vector<math::FusedBox>> fused(segments);
  parallel_each(segments, grain_for(segments * 512, n + 1), [&](int64_t k) {
    const BoxColumns<double> columns(selection.count(k));
    std::vector<math::FusedBox> of_label;  // in the order of creation
    for (int64_t i = selection.begin(k); i < selection.ends()[k]; ++i) {
      const int64_t from = selection.order()[i];
      if (c[from] == kNone) break;
      const math::FusionMember member{box[from], c[from], static_cast<int>(of_model[from])};
      const auto count = static_cast<int64_t>(of_label.size());
      int64_t at = DETOPS_IN_USE(best_overlap)(columns, count, member.box, iou_threshold);
      if (at >= 0) {
        of_label[at].add(member, taking_part);
      } else {
        at = count;
        of_label.emplace_back().begin(member, taking_part);
      }
      columns.set(at, of_label[at].box);
    }
    fused[k] = std::move(of_label);
  });
  // Sorts by descending score, then by label, then by order of creation.
  std::vector<Result> results;
  const Tensor label = labels.to(kLong).contiguous();
  for (int64_t k = 0; k < segments; ++k) {
    for (const math::FusedBox& f : fused[k]) {
      results.push_back({f.box,
                         f.score(taking_part, math::confidence_of(conf_type), allows_overflow),
                         label.const_data_ptr<int64_t>()[selection.order()[selection.begin(k)]]});
    }
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const Result& a, const Result& b) { return a.score > b.score; });
  const auto count = static_cast<int64_t>(results.size());
  const Tensor out_boxes = empty({count, 4}, all.options());
  const Tensor out_scores = empty({count}, all.options());
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
