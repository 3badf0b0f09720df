// SPDX-License-Identifier: MIT
// The postprocessing of a Mask R-CNN without Python: computes boxes, labels, scores and masks from
// the network's tensors of a photograph. Compares them with Python's results for the same tensors.
#include <detops/ops.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using detops::Tensor;
using torch::headeronly::ScalarType;
using Sizes = std::vector<int64_t>;

template <typename T>
Tensor to_tensor(const std::vector<T>& elements, const Sizes& sizes) {
  const Tensor t = torch::stable::empty(sizes, torch::headeronly::CppTypeToScalarType<T>::value);
  std::copy(elements.begin(), elements.end(), t.mutable_data_ptr<T>());
  return t;
}

// Reads the file that make_inputs.py writes. The format is documented there.
std::map<std::string, Tensor> read(const char* path) {
  const std::map<std::string, ScalarType> types = {
      {"float32", ScalarType::Float}, {"int64", ScalarType::Long}, {"bool", ScalarType::Bool}};
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot open ") + path);
  std::map<std::string, Tensor> tensors;
  for (std::string line; std::getline(file, line);) {
    std::istringstream header(line);
    std::string name, type;
    header >> name >> type;
    Sizes sizes;
    for (int64_t size = 0; header >> size;) sizes.push_back(size);
    const Tensor t = torch::stable::empty(sizes, types.at(type));
    if (!file.read(static_cast<char*>(t.mutable_data_ptr()), t.numel() * t.element_size())) {
      throw std::runtime_error(std::string(path) + " is truncated in " + name);
    }
    tensors.emplace(name, t);
  }
  return tensors;
}

// Converts logits [N, C] to probabilities.
std::vector<float> softmax(const Tensor& logits) {
  const int64_t classes = logits.size(1);
  const float* x = logits.const_data_ptr<float>();
  std::vector<float> p(x, x + logits.numel());
  for (auto row = p.begin(); row != p.end(); row += classes) {
    const float row_max = *std::max_element(row, row + classes);
    float sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += row[c] = std::exp(row[c] - row_max);
    for (int64_t c = 0; c < classes; ++c) row[c] /= sum;
  }
  return p;
}

std::vector<float> sigmoid(const Tensor& logits) {
  const float* x = logits.const_data_ptr<float>();
  std::vector<float> p(x, x + logits.numel());
  for (float& each : p) each = 1 / (1 + std::exp(-each));
  return p;
}

struct Detections {
  std::vector<float> boxes, scores;
  std::vector<int64_t> labels;

  int64_t size() const { return int64_t(scores.size()); }
  Tensor box_tensor() const { return to_tensor(boxes, {size(), 4}); }
  void add(const float* box, float score, int64_t label) {
    boxes.insert(boxes.end(), box, box + 4);
    scores.push_back(score);
    labels.push_back(label);
  }
};

// Computes the best detections from class logits and deltas of the proposals, as the box head does.
Detections detect(const Tensor& logits, const Tensor& deltas, const Tensor& proposals, float height,
                  float width) {
  const int64_t count = logits.size(0), classes = logits.size(1);
  const std::vector<float> scores = softmax(logits);
  const Tensor decoded = detops::decode_boxes(deltas, proposals, {10, 10, 5, 5});
  const float* boxes = decoded.const_data_ptr<float>();
  Detections all;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 1; c < classes; ++c) {  // class 0 is the background
      const float score = scores[i * classes + c];
      if (!(score > 0.05f)) continue;
      float box[4];
      for (int64_t k = 0; k < 4; ++k) {
        const float end = k % 2 == 0 ? width : height;
        box[k] = std::min(std::max(boxes[(i * classes + c) * 4 + k], 0.0f), end);
      }
      if (box[2] - box[0] >= 0.01f && box[3] - box[1] >= 0.01f) all.add(box, score, c);
    }
  }
  const Tensor keep =
      detops::batched_nms(all.box_tensor(), to_tensor(all.scores, {all.size()}),
                          to_tensor(all.labels, {all.size()}), /*iou_threshold=*/0.5);
  Detections best;
  for (int64_t i = 0; i < std::min<int64_t>(keep.numel(), 30); ++i) {
    const int64_t k = keep.const_data_ptr<int64_t>()[i];
    best.add(&all.boxes[4 * k], all.scores[k], all.labels[k]);
  }
  return best;
}

template <typename T>
int64_t differences(const Tensor& a, const Tensor& b) {
  const T *x = a.const_data_ptr<T>(), *y = b.const_data_ptr<T>();
  int64_t count = 0;
  for (int64_t i = 0; i < a.numel(); ++i) count += !(std::abs(double(x[i]) - double(y[i])) <= 1e-4);
  return count;
}

// Returns whether a result is the same as in Python. One element in 100,000 may differ, because an
// exponential function that rounds differently can move a pixel across the threshold of a mask.
bool same(const char* name, const Tensor& result, const Tensor& expected) {
  const auto sizes = result.sizes(), expected_sizes = expected.sizes();
  const ScalarType type = result.scalar_type();
  const bool comparable =
      type == expected.scalar_type() &&
      std::equal(sizes.begin(), sizes.end(), expected_sizes.begin(), expected_sizes.end());
  const int64_t count = !comparable                 ? result.numel()
                        : type == ScalarType::Float ? differences<float>(result, expected)
                        : type == ScalarType::Long  ? differences<int64_t>(result, expected)
                                                    : differences<bool>(result, expected);
  const bool equal = comparable && count <= result.numel() / 100000;
  std::printf("  %-10s %8ld elements, %s\n", name, long(result.numel()),
              equal ? "matches Python" : "DIFFERS from Python");
  return equal;
}

int run(const char* path) {
  const auto file = read(path);
  const auto get = [&](const char* name) { return file.at(name); };
  const int64_t* size = file.at("image_size").const_data_ptr<int64_t>();
  const int64_t height = size[0], width = size[1];
  const Tensor logits = get("class_logits"), proposals = get("proposals");

  // NMS over all classes at once, by the best score except the background's.
  const std::vector<float> scores = softmax(logits);
  std::vector<float> best;
  for (auto row = scores.begin(); row != scores.end(); row += logits.size(1)) {
    best.push_back(*std::max_element(row + 1, row + logits.size(1)));
  }
  const Tensor kept = detops::nms(proposals, to_tensor(best, {proposals.size(0)}), 0.5);
  const Detections found = detect(logits, get("deltas"), proposals, float(height), float(width));
  const Tensor boxes = found.box_tensor();
  std::vector<float> regions;  // of image 0
  for (int64_t i = 0; i < found.size(); ++i) {
    regions.push_back(0);
    regions.insert(regions.end(), &found.boxes[4 * i], &found.boxes[4 * i] + 4);
  }
  const Tensor rois = to_tensor(regions, {found.size(), 5});
  const std::vector<Tensor> levels = {get("level0"), get("level1"), get("level2")};
  const Tensor pooled = detops::roi_align(levels[0], rois, 0.25, 7, 7, /*sampling_ratio=*/2);
  const Tensor pyramid = detops::multiscale_roi_align(
      levels, rois, {0.25, 0.125, 0.0625}, 14, 14, /*sampling_ratio=*/2, /*aligned=*/false,
      /*canonical_scale=*/56, /*canonical_level=*/3);
  const Tensor mask_logits = get("mask_logits");  // [N, h, w]
  const Sizes mask_sizes(mask_logits.sizes().begin(), mask_logits.sizes().end());
  const Tensor masks = detops::paste_masks_in_image(to_tensor(sigmoid(mask_logits), mask_sizes),
                                                    boxes, height, width);

  const unsigned long long version = aoti_torch_abi_version();
  std::printf("compiled with LibTorch %d.%d, running with %llu.%llu\n", TORCH_VERSION_MAJOR,
              TORCH_VERSION_MINOR, version >> 56, version >> 48 & 255);
  std::printf("%ld proposals, %ld detections\n", long(best.size()), long(found.size()));
  bool all_equal = same("nms", kept, get("expected_nms"));
  all_equal &= same("boxes", boxes, get("expected_boxes"));
  all_equal &= same("labels", to_tensor(found.labels, {found.size()}), get("expected_labels"));
  all_equal &= same("scores", to_tensor(found.scores, {found.size()}), get("expected_scores"));
  all_equal &= same("roi_align", pooled, get("expected_roi_align"));
  all_equal &= same("pyramid", pyramid, get("expected_pyramid"));
  all_equal &= same("masks", masks, get("expected_masks"));

  try {  // A rejected call throws an error with a message.
    detops::nms(rois, to_tensor(found.scores, {found.size()}), 0.5);
    all_equal = false;
  } catch (const std::runtime_error& error) {
    std::printf("boxes of five columns: %s\n", error.what());
  }
  return all_equal ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s photograph.bin\n", argv[0]), 2;
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 2;
  }
}
