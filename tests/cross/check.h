// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <random>

// The CPU kernels without PyTorch, so that they can be run on another architecture by an emulator:
// see `make cross-check`. Each file compares some of them with plain loops.
namespace detops::cross {

// Counts and reports a failure.
void check(bool good, const char* what);

void check_attention(std::mt19937& random);
void check_deform_conv2d(std::mt19937& random);
void check_masks(std::mt19937& random);
void check_pooling();

}  // namespace detops::cross
