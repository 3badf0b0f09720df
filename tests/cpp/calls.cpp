// SPDX-License-Identifier: MIT
// Tests each kind of argument and result in detops/ops.h, that calls do not leak memory, and the
// messages of rejected calls.
#include <detops/ops.h>
#include <torch/csrc/stable/ops.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

using detops::Tensor;
using torch::headeronly::ScalarType;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("expectation failed: %s\n", what);
  std::exit(1);
}
#define EXPECT(condition) expect(condition, #condition)

Tensor filled(const std::vector<int64_t>& sizes, double value,
              ScalarType type = ScalarType::Float) {
  return torch::stable::fill_(torch::stable::empty(sizes, type), value);
}

float first_element(const Tensor& t) { return t.const_data_ptr<float>()[0]; }

std::string error_message(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

// Returns the number of resident pages of this process.
int64_t resident_pages() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident;
}

void expect_no_leak(const char* what, const std::function<void()>& call) {
  for (int i = 0; i < 1000; ++i) call();
  const int64_t before = resident_pages();
  for (int i = 0; i < 20000; ++i) call();
  const int64_t leaked = (resident_pages() - before) * 4096 / 20000;
  std::printf("%-24s %ld bytes leaked per call\n", what, long(leaked));
  EXPECT(leaked < 8);
}

int main() {
  const Tensor boxes = filled({3, 4}, 2), scores = filled({3}, 0.5), map = filled({1, 1, 4, 4}, 3);
  const Tensor rois = filled({2, 5}, 0), weight = filled({1, 1, 1, 1}, 2), bias = filled({1}, 1);
  const Tensor offset = filled({1, 2, 4, 4}, 0);
  const Tensor labels = filled({3}, 1, ScalarType::Long);

  // Numbers, flags, and the defaults of the schema.
  EXPECT(detops::nms(boxes, scores, 0.5).numel() == 3);  // empty boxes do not overlap
  EXPECT(first_element(detops::axpy(scores, scores)) == 1.5f);
  EXPECT(first_element(detops::roi_align(map, rois, 1, 2, 2, 1, true)) == 3);
  // Optional tensors, present and absent, with several results.
  const auto [keep, count] = detops::nms_padded(boxes, scores, std::nullopt, 0.5, 5);
  EXPECT(keep.size(0) == 5 && count.const_data_ptr<int64_t>()[0] == 3);
  EXPECT(std::get<0>(detops::nms_padded(boxes, scores, labels, 0.5, 4)).size(0) == 4);
  // Strings.
  const auto naive = [&] { return detops::soft_nms(boxes, scores, 0.3, 0.5, 1e-3, "naive"); };
  EXPECT(std::get<1>(naive()).numel() == 3);
  // Lists of tensors and of numbers, and a list as a result.
  const auto pyramid = [&] {
    return detops::multiscale_roi_align({map, map}, rois, {1, 0.5}, 1, 1);
  };
  EXPECT(first_element(pyramid()) == 3);
  const auto grads = [&] {
    return detops::multiscale_roi_align_backward(pyramid(), rois, {1, 0.5}, 1, 1, 1, 1, {4, 2},
                                                 {4, 2}, -1, false, 224, 4);
  };
  EXPECT(grads().size() == 2 && grads()[1].size(3) == 2);
  // Lists of a fixed length, some of flags, and more results than arguments.
  const auto convolved = [&] { return detops::deform_conv2d(map, offset, {}, weight, bias); };
  EXPECT(first_element(convolved()) == 7);
  const auto gradients = [&] {
    return detops::deform_conv2d_backward(map, map, offset, {}, weight, bias, {1, 1}, {0, 0},
                                          {1, 1}, {true, false, false, true, true});
  };
  EXPECT(first_element(std::get<0>(gradients())) == 6 && std::get<1>(gradients()).numel() == 0);
  EXPECT(first_element(std::get<4>(gradients())) == 48);
  EXPECT(std::get<1>(detops::masks_to_rle(filled({1, 2, 2}, 1, ScalarType::Bool))).numel() == 1);

  // Errors: from a contract, for an argument of the wrong kind, and from PyTorch itself.
  const auto wrong = [&] { detops::nms(rois, scores, 0.5); };
  EXPECT(error_message(wrong) == "detops.nms: boxes must be [N, 4], got [2, 5]");
  EXPECT(error_message([&] { detops::soft_nms(boxes, scores, 0.3, 0.5, 1e-3, "mean"); }) ==
         "detops.soft_nms: method must be linear, gaussian or naive, got mean");
  EXPECT(error_message([&] { detops::nms(Tensor(), scores, 0.5); }) ==
         "detops.nms: boxes must be a tensor, got None");
  const std::string unknown =
      error_message([&] { detops::detail::call<Tensor>("detops::no_such_op", boxes); });
  std::printf("unknown op: %s\n", unknown.c_str());
  EXPECT(unknown.find("detops::no_such_op: ") == 0 && unknown.find("[N, 4]") == std::string::npos);
  std::thread([] { EXPECT(std::string(detops_last_error()).empty()); }).join();

  expect_no_leak("tensors", [&] { detops::nms(boxes, scores, 0.5); });
  expect_no_leak("lists", [&] { grads(); });
  expect_no_leak("optionals, flags", [&] { gradients(); });
  // PyTorch 2.11 leaks every string that it is given.
  if (aoti_torch_abi_version() >> 48 > 0x020b) expect_no_leak("text", [&] { naive(); });
}
