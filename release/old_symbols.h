// SPDX-License-Identifier: MIT
#pragma once

// setup.py reads the names in these lists, and makes the linker redirect every call of `name` to
// `__wrap_name`. On x86-64, a jump leaves the argument registers unchanged.
#define OLD_SYMBOL(name, version)                    \
  __asm__(".symver old_" #name "," #name "@" version \
          "\n"                                       \
          ".text\n.p2align 4\n"                      \
          ".globl __wrap_" #name                     \
          "\n"                                       \
          ".hidden __wrap_" #name                    \
          "\n"                                       \
          ".type __wrap_" #name                      \
          ",@function\n"                             \
          "__wrap_" #name ": jmp old_" #name         \
          "@PLT\n"                                   \
          ".size __wrap_" #name ",.-__wrap_" #name "\n")
