// SPDX-License-Identifier: MIT
// A library linked on a recent system requires the newest version of each symbol. It would not load
// on glibc 2.28, which manylinux_2_28 promises to support. Equivalent older versions of the
// functions below exist there. `make wheel` links this file into every library. The inner loops of
// kernels call none of these functions.
#include <exception>
#include <new>
#include <sstream>

#include "old_symbols.h"

OLD_SYMBOL(dlsym, "GLIBC_2.2.5");
OLD_SYMBOL(exp, "GLIBC_2.2.5");
OLD_SYMBOL(log, "GLIBC_2.2.5");
OLD_SYMBOL(log2, "GLIBC_2.2.5");

#define HIDDEN __attribute__((visibility("hidden")))

// 0 means "possibly multithreaded" and is always correct: reference counts are then atomic.
extern "C" {
HIDDEN char __libc_single_threaded = 0;

// The copy constructor and destructor of exception_ptr, which older headers called.
void _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(void* self, const void* other);
void _ZNSt15__exception_ptr13exception_ptrD1Ev(void* self);

// exception_ptr::_M_addref and _M_release. They are private, hence the mangled names.
HIDDEN void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void* self) {
  void* copy;  // never destroyed, so its reference stays counted
  _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(&copy, self);
}

HIDDEN void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void** self) {
  void* copy = *self;
  *self = nullptr;
  _ZNSt15__exception_ptr13exception_ptrD1Ev(&copy);
}
}

namespace std {
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
// Instantiated here, because the header declares them as instantiated in libstdc++.
template basic_ostringstream<char>::basic_ostringstream();
template basic_stringstream<char>::basic_stringstream();
}  // namespace std
