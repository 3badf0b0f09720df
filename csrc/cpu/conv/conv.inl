// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.
#include "product.inl"
//
#include "direct.inl"
#include "winograd.inl"
