// SPDX-License-Identifier: MIT
#include "../detops/include/detops/library.h"

#include <exception>
#include <string>

#include "contract/contract.h"
#include "cpu/simd/isa.h"
#include "parallel.h"

using detops::Contract;

int detops_op_count(void) { return static_cast<int>(Contract::all().size()); }
const char* detops_op_name(int i) { return Contract::all()[i].op.c_str(); }
const char* detops_contracts(void) { return Contract::text(); }

const char* detops_cpu_isa(void) { return detops::cpu::cpu_isa(); }

const char* detops_set_cpu_isa(const char* name) {
  static DETOPS_PER_THREAD std::string message;
  try {
    detops::cpu::set_cpu_isa(name);
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

int detops_use_arena(int on) { return detops::use_arena(on != 0); }

void detops_arena_size(long long* held, long long* free) {
  const detops::ArenaSize size = detops::arena_size();
  *held = size.held;
  *free = size.free;
}

void detops_release_arena(void) { detops::release_arena(); }

void detops_limit_grain(long long most) { detops::limit_grain(most); }
long long detops_shared_loops(void) { return detops::shared_loops(); }

int detops_is_emulated(void) {
#ifdef DETOPS_EMULATE_CUDA
  return 1;
#else
  return 0;
#endif
}
