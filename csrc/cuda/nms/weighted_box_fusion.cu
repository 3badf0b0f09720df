// SPDX-License-Identifier: MIT
#include "../../math/weighted_box_fusion.h"

#include "../../math/overlap.h"
#include "../common/launch.cuh"
#include "../common/sort.cuh"

namespace detops::cuda {
namespace {

constexpr int kFusionThreads = 256, kFusionWarps = kFusionThreads / kWarp;

struct FusionParams {
  const math::Box<double>* boxes;  // [N]
  const double* confidence;        // [N], below 0 where a box does not take part
  const int64_t* labels;           // [N]
  const int64_t* models;           // [N]
  const int64_t* order;            // [N], by label, then by descending confidence
  int64_t count;                   // N
  math::FusedModels taking_part;
  double threshold;
  math::Confidence how;
  bool allows_overflow;
  math::FusedBox* fused;           // [N], those of a label from where it begins in that order
  double* scores;                  // [N], out: -1 where there is no fused box
  math::Box<double>* fused_boxes;  // [N], out
  int64_t* fused_labels;           // [N], out
  int* n_fused;                    // [1], out; 0 at first
};

// The score of a box times its model's weight, or -1 where it does not take part.
__global__ void confidence_kernel(const math::Box<double>* boxes, const int64_t* models,
                                  int64_t count, math::FusedModels taking_part, double least_score,
                                  double* scores) {
  DETOPS_FOR_EACH(i, count) {
    const bool known = models[i] >= 0 && models[i] < taking_part.count;
    const bool takes_part = known && math::takes_part(boxes[i], scores[i], least_score);
    scores[i] = takes_part ? scores[i] * taking_part.weights[models[i]] : -1.0;
  }
}

// The larger overlap, and of equals the first box; an index of -1 is none.
struct BestOverlap {
  double overlap;
  int64_t index;

  __device__ void add(const BestOverlap& o) {
    if (o.index < 0) return;
    if (index < 0 || o.overlap > overlap || (o.overlap == overlap && o.index < index)) *this = o;
  }
};

// A block per label: each of its boxes is compared with what the boxes before it were fused to.
__global__ void __launch_bounds__(kFusionThreads) fusion_kernel(FusionParams p) {
  __shared__ BestOverlap of_warps[kFusionWarps];
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t begin = blockIdx.x; begin < p.count; begin += gridDim.x) {
    const int64_t label = p.labels[p.order[begin]];
    if (begin > 0 && p.labels[p.order[begin - 1]] == label) continue;
    math::FusedBox* fused = p.fused + begin;
    int64_t n = 0, i = begin;
    for (; i < p.count && p.labels[p.order[i]] == label; ++i) {
      const int64_t from = p.order[i];
      const math::FusionMember member{p.boxes[from], p.confidence[from],
                                      static_cast<int>(p.models[from])};
      if (member.confidence < 0) break;
      const double area = math::area(member.box);
      BestOverlap best{0, -1};
      for (int64_t k = self; k < n; k += kFusionThreads) {
        const math::Box<double> box = fused[k].box;
        const double meet = math::pairwise::intersection(member.box, box);
        const double iou = math::pairwise::iou(meet, math::area(box) + area - meet);
        if (iou > p.threshold) best.add({iou, k});
      }
      for (int step = kWarp / 2; step > 0; step /= 2) {
        best.add({__shfl_xor_sync(0xffffffffu, best.overlap, step),
                  __shfl_xor_sync(0xffffffffu, best.index, step)});
      }
      if (self % kWarp == 0) of_warps[self / kWarp] = best;
      __syncthreads();
      for (int w = 0; w < kFusionWarps; ++w) best.add(of_warps[w]);
      if (self == 0) {
        if (best.index < 0) {
          fused[n].begin(member, p.taking_part);
        } else {
          fused[best.index].add(member, p.taking_part);
        }
      }
      n += best.index < 0;
      __syncthreads();
    }
    for (int64_t k = self; k < n; k += kFusionThreads) {
      p.scores[begin + k] = fused[k].score(p.taking_part, p.how, p.allows_overflow);
      p.fused_boxes[begin + k] = fused[k].box;
      p.fused_labels[begin + k] = label;
    }
    if (self == 0 && n > 0) atomicAdd(p.n_fused, static_cast<int>(n));
    __syncthreads();
  }
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> weighted_box_fusion(
    const Tensor& boxes, const Tensor& scores, const Tensor& labels, const Tensor& models,
    ArrayRef<double> weights, double iou_threshold, double skip_box_threshold,
    std::string_view conf_type, bool allows_overflow) {
  const int64_t count = narrow("weighted_box_fusion", boxes.size(0));
  const auto doubles = boxes.options().dtype(kDouble), indices = boxes.options().dtype(kLong);
  if (count == 0) {
    return {empty({0, 4}, boxes.options()), empty({0}, scores.options()),
            empty({0}, labels.options())};
  }
  const Tensor all = as_type(boxes, kDouble).contiguous();
  const Tensor label = as_type(labels, kLong).contiguous();
  const Tensor model = as_type(models, kLong).contiguous();
  const Tensor confidence = empty({count}, doubles).copy_(scores);
  const math::FusedModels taking_part = math::fused_models(weights);
  launch("weighted_box_fusion", confidence_kernel, blocks_for(count), rows<math::Box, double>(all),
         model.const_data_ptr<int64_t>(), count, taking_part, skip_box_threshold,
         confidence.mutable_data_ptr<double>());
  const Tensor by_confidence = stable_sort(confidence, /*descending=*/true).second;
  const Tensor by_label = stable_sort(index_select(label, by_confidence), false).second;
  const Tensor order = index_select(by_confidence, by_label);
  const Tensor fused =
      empty({count, int64_t(sizeof(math::FusedBox))}, boxes.options().dtype(kByte));
  const Tensor out_scores = empty({count}, doubles).fill_(-1);
  const Tensor out_boxes = empty({count, 4}, doubles), out_labels = empty({count}, indices);
  const Tensor n_fused = zeros({1}, boxes.options().dtype(kInt));
  const FusionParams p{rows<math::Box, double>(all),
                       confidence.const_data_ptr<double>(),
                       label.const_data_ptr<int64_t>(),
                       model.const_data_ptr<int64_t>(),
                       order.const_data_ptr<int64_t>(),
                       count,
                       taking_part,
                       iou_threshold,
                       math::confidence_of(conf_type),
                       allows_overflow,
                       static_cast<math::FusedBox*>(fused.mutable_data_ptr()),
                       out_scores.mutable_data_ptr<double>(),
                       mutable_rows<math::Box, double>(out_boxes),
                       out_labels.mutable_data_ptr<int64_t>(),
                       n_fused.mutable_data_ptr<int>()};
  launch("weighted_box_fusion", fusion_kernel, Launch(blocks_for(count, 1), kFusionThreads), p);
  const int64_t n = n_fused.item<int>();
  const auto [sorted, places] = stable_sort(out_scores, /*descending=*/true);
  const Tensor best = places.narrow(0, 0, n);
  return {as_type(index_select(out_boxes, best), boxes.scalar_type()),
          as_type(sorted.narrow(0, 0, n).clone(), scores.scalar_type()),
          as_type(index_select(out_labels, best), labels.scalar_type())};
}

}  // namespace detops::cuda
