// SPDX-License-Identifier: MIT
#include "../../math/weighted_box_fusion.h"

#include "../../math/overlap.h"
#include "../common/block.cuh"
#include "../common/sort.cuh"

namespace detops::cuda {
namespace {

// One block per label, starting where the label begins in `order`. `order` sorts boxes by label,
// then by descending confidence. A box that does not take part has a negative confidence. Each box
// is compared with the fused boxes so far. `scores` must be initialised to -1 and `n_fused` to 0.
__global__ void __launch_bounds__(kThreads)
    fusion_kernel(const math::Box<double>* boxes, const double* confidence, const int64_t* labels,
                  const int64_t* models, const int* order, int64_t count,
                  math::FusedModels fusion_models, double threshold,
                  math::Confidence confidence_type, bool allows_overflow, math::FusedBox* all_fused,
                  double* scores, math::Box<double>* fused_boxes, int64_t* fused_labels,
                  int* n_fused) {
  __shared__ ArgMax<double> warp_best[kThreads / kWarp];
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t begin = blockIdx.x; begin < count; begin += gridDim.x) {
    const int64_t label = labels[order[begin]];
    if (begin > 0 && labels[order[begin - 1]] == label) continue;
    math::FusedBox* fused = all_fused + begin;
    int64_t n = 0;
    for (int64_t i = begin; i < count && labels[order[i]] == label; ++i) {
      const int from = order[i];
      const math::FusionMember member{boxes[from], confidence[from],
                                      static_cast<int>(models[from])};
      if (member.confidence < 0) break;
      const double area = math::area(member.box);
      ArgMax<double> best{0, -1};  // by IoU
      for (int64_t k = self; k < n; k += kThreads) {
        const math::Box<double> box = fused[k].box;
        const double intersection = math::pairwise::intersection(member.box, box);
        const double iou = math::pairwise::iou(intersection, math::area(box) + area - intersection);
        if (iou > threshold) best.add({iou, k});
      }
      best = reduce_block(best, warp_best);
      if (self == 0) {
        if (best.index < 0) {
          fused[n].begin(member, fusion_models);
        } else {
          fused[best.index].add(member, fusion_models);
        }
      }
      n += best.index < 0;
      __syncthreads();
    }
    for (int64_t k = self; k < n; k += kThreads) {
      scores[begin + k] = fused[k].score(fusion_models, confidence_type, allows_overflow);
      fused_boxes[begin + k] = fused[k].box;
      fused_labels[begin + k] = label;
    }
    if (self == 0 && n > 0) atomicAdd(n_fused, static_cast<int>(n));
    __syncthreads();
  }
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> weighted_box_fusion(
    const Tensor& boxes, const Tensor& scores, const Tensor& labels, const Tensor& models,
    ArrayRef<double> weights, double iou_threshold, double skip_box_threshold,
    std::string_view conf_type, bool allows_overflow) {
  const int64_t count = narrow(boxes.size(0));
  const auto doubles = boxes.options().dtype(kDouble);
  if (count == 0) {
    return {empty({0, 4}, boxes.options()), empty({0}, scores.options()),
            empty({0}, labels.options())};
  }
  const Tensor wide_boxes = boxes.to(kDouble).contiguous();
  const Tensor label = labels.to(kLong).contiguous();
  const Tensor model = models.to(kLong).contiguous();
  // Score of a box times the weight of its model, or -1 if the box does not take part.
  const Tensor confidence = empty({count}, doubles).copy_(scores);
  const math::FusedModels fusion_models = math::fused_models(weights);
  const math::Box<double>* box = elements(wide_boxes);
  const int64_t* model_index = elements(model);
  double* weighted = elements(confidence);
  for_each(count, [=] __device__(int64_t i) {
    const bool valid = model_index[i] >= 0 && model_index[i] < fusion_models.count;
    const bool is_fused = valid && math::is_eligible(box[i], weighted[i], skip_box_threshold);
    weighted[i] = is_fused ? weighted[i] * fusion_models.weights[model_index[i]] : -1.0;
  });
  const Tensor by_confidence = selection_order(confidence), keys = empty_like(label);
  const int64_t* label_data = elements(label);
  const int* confidence_order = elements(by_confidence);
  int64_t* key = elements(keys);
  for_each(count, [=] __device__(int64_t i) {
    key[i] = label_data[confidence_order[i]] ^
             std::numeric_limits<int64_t>::min();  // order-preserving, unsigned
  });
  const Tensor order = sort_by_key(keys, by_confidence);
  const Tensor fused =
      empty({count, int64_t(sizeof(math::FusedBox))}, boxes.options().dtype(kByte));
  const Tensor out_scores = empty({count}, doubles).fill_(-1);
  const Tensor out_boxes = empty({count, 4}, doubles);
  const Tensor out_labels = empty({count}, boxes.options().dtype(kLong));
  const Tensor n_fused = zeros({1}, boxes.options().dtype(kInt));
  launch(fusion_kernel, blocks_for(count, 1), wide_boxes, confidence, label, model, order, count,
         fusion_models, iou_threshold, math::parse_confidence(conf_type), allows_overflow,
         static_cast<math::FusedBox*>(fused.mutable_data_ptr()), out_scores, out_boxes, out_labels,
         n_fused);
  const int64_t n = n_fused.item<int>();
  const Tensor best = selection_order(out_scores).narrow(0, 0, n);
  return {index_select(out_boxes, best).to(boxes.scalar_type()),
          index_select(out_scores, best).to(scores.scalar_type()),
          index_select(out_labels, best).to(labels.scalar_type())};
}

}  // namespace detops::cuda
