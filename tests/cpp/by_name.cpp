// SPDX-License-Identifier: MIT
// Calls an op by name only, as a program that runs an exported model does.
#include <torch/csrc/stable/ops.h>

#include <cstdio>

int main() {
  const auto x = torch::stable::empty({3}, torch::headeronly::ScalarType::Float);
  StableIValue stack[2] = {torch::stable::detail::from(x), torch::stable::detail::from(1.0)};
  if (torch_call_dispatcher("detops::axpy_backward", "", stack, TORCH_ABI_VERSION) != 0) return 1;
  for (const StableIValue each : stack) torch::stable::detail::to<torch::stable::Tensor>(each);
  std::puts("called");
}
