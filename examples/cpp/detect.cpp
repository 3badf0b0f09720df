// SPDX-License-Identifier: MIT
// A complete detector without Python: reads a photograph and writes an image with the detections
// drawn on it. `detops export --format aoti` writes the detector.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// An image in the PPM format, as written by `convert photograph.jpg photograph.ppm`.
struct Image {
  int64_t width = 0, height = 0;
  std::vector<unsigned char> rgb;  // row by row

  explicit Image(const char* path) {
    std::ifstream file(path, std::ios::binary);
    std::string kind;
    int64_t max_value = 0;
    if (!(file >> kind >> width >> height >> max_value) || kind != "P6" || max_value != 255) {
      throw std::runtime_error(std::string(path) + ": not an 8-bit PPM image (P6)");
    }
    file.get();
    rgb.resize(3 * width * height);
    if (!file.read(reinterpret_cast<char*>(rgb.data()), std::streamsize(rgb.size()))) {
      throw std::runtime_error(std::string(path) + " is truncated");
    }
  }

  void write(const char* path) const {
    std::ofstream file(path, std::ios::binary);
    file << "P6\n" << width << ' ' << height << "\n255\n";
    file.write(reinterpret_cast<const char*>(rgb.data()), std::streamsize(rgb.size()));
    if (!file.flush()) throw std::runtime_error(std::string("cannot write ") + path);
  }

  // Returns the image as [3, height, width], with values from 0 to 1.
  at::Tensor tensor() const {
    const auto bytes = at::from_blob(const_cast<unsigned char*>(rgb.data()), {height, width, 3},
                                     at::TensorOptions().dtype(at::kByte));
    return bytes.permute({2, 0, 1}).to(at::kFloat).div(255).contiguous();
  }

  void paint(int64_t x, int64_t y) {
    if (x < 0 || y < 0 || x >= width || y >= height) return;
    unsigned char* pixel = &rgb[3 * (y * width + x)];
    pixel[0] = 255, pixel[1] = 220, pixel[2] = 0;
  }

  void draw_box(const float* box) {
    const auto x1 = int64_t(box[0]), y1 = int64_t(box[1]);
    const auto x2 = std::max(x1, int64_t(box[2]) - 1), y2 = std::max(y1, int64_t(box[3]) - 1);
    for (int64_t x = x1; x <= x2; ++x) paint(x, y1), paint(x, y2);
    for (int64_t y = y1; y <= y2; ++y) paint(x1, y), paint(x2, y);
  }

  // Draws a cross at each point: [points, 3] as (x, y, 1).
  void draw_points(const at::Tensor& points) {
    const at::Tensor rows = points.contiguous();
    for (int64_t i = 0; i < rows.size(0); ++i) {
      const float* point = rows.const_data_ptr<float>() + 3 * i;
      for (int64_t d = -3; d <= 3; ++d) {
        paint(int64_t(point[0]) + d, int64_t(point[1])),
            paint(int64_t(point[0]), int64_t(point[1]) + d);
      }
    }
  }

  // Tints the pixels of a mask green: bool [height, width].
  void tint(const at::Tensor& mask) {
    const at::Tensor inside = mask.contiguous();
    const bool* flags = inside.const_data_ptr<bool>();
    for (int64_t i = 0; i < width * height; ++i) {
      if (flags[i]) rgb[3 * i + 1] = static_cast<unsigned char>(128 + rgb[3 * i + 1] / 2);
    }
  }
};

std::vector<std::string> lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> found;
  for (std::string line; std::getline(stream, line);) found.push_back(line);
  return found;
}

void run(const char* package, const char* photograph, const char* output, float min_score) {
  const c10::InferenceMode no_gradients;
  // The detector calls its ops by name. They are in libdetops.so, which the program links.
  torch::inductor::AOTIModelPackageLoader detector(package);
  Image image(photograph);
  const std::vector<at::Tensor> found = detector.run({image.tensor()});
  const at::Tensor boxes = found.at(0).contiguous(), labels = found.at(1), scores = found.at(2);
  const std::vector<std::string> names = lines(detector.get_metadata()["names"]);

  const bool has_masks = found.size() > 3 && found[3].scalar_type() == at::kBool;
  const bool has_keypoints = found.size() > 3 && !has_masks;
  std::vector<int64_t> selected;
  for (int64_t i = 0; i < boxes.size(0); ++i) {
    if (scores[i].item<float>() >= min_score) selected.push_back(i);
  }
  // Tints all masks first, so that outlines are drawn on top of them.
  for (const int64_t i : selected) {
    if (has_masks) image.tint(found[3][i][0]);
  }
  for (const int64_t i : selected) {
    const float* box = boxes.const_data_ptr<float>() + 4 * i;
    image.draw_box(box);
    if (has_keypoints) image.draw_points(found[3][i]);
    const auto label = size_t(labels[i].item<int64_t>() - 1);
    const char* name = label < names.size() ? names[label].c_str() : "?";
    std::printf("%s %.6f %.3f %.3f %.3f %.3f", name, scores[i].item<float>(), box[0], box[1],
                box[2], box[3]);
    if (has_masks) std::printf(" %ld", long(found[3][i].sum().item<int64_t>()));
    if (has_keypoints) {
      std::printf(" %.3f %.3f", found[3][i][0][0].item<float>(), found[3][i][0][1].item<float>());
    }
    std::printf("\n");
  }
  image.write(output);
}

int main(int argc, char** argv) {
  if (argc < 4) {
    return std::fprintf(stderr, "usage: %s detector.pt2 in.ppm out.ppm [score]\n", argv[0]), 2;
  }
  try {
    run(argv[1], argv[2], argv[3], argc > 4 ? std::strtof(argv[4], nullptr) : 0.5f);
  } catch (const c10::Error& error) {
    return std::fprintf(stderr, "%s: %s\n", argv[1], error.what_without_backtrace()), 2;
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 2;
  }
}
