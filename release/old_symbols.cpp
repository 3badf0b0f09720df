// SPDX-License-Identifier: MIT
// A library that is linked on a system of today asks for the newest version of each symbol, and so
// would not load on glibc 2.28, which manylinux_2_28 promises. The functions below exist there
// under older versions that do the same; `make wheel` links this file into all that it makes. Only
// functions stand here: the arithmetic of a kernel's inner loop calls none of them.
#include <exception>
#include <new>
#include <sstream>

#include "old_symbols.h"

OLD_SYMBOL(dlsym, "GLIBC_2.2.5");
OLD_SYMBOL(exp, "GLIBC_2.2.5");
OLD_SYMBOL(log, "GLIBC_2.2.5");
OLD_SYMBOL(log2, "GLIBC_2.2.5");

#define HIDDEN __attribute__((visibility("hidden")))

// "Maybe not single-threaded" is always a right answer: reference counts are then atomic.
extern "C" {
HIDDEN char __libc_single_threaded = 0;

// The copy constructor and the destructor of exception_ptr, which older headers called.
void _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(void* self, const void* other);
void _ZNSt15__exception_ptr13exception_ptrD1Ev(void* self);

// exception_ptr::_M_addref and _M_release, by their mangled names: they are private.
HIDDEN void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void* self) {
  void* copy;  // never destroyed: its count is the one to add
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
// Compiled here from the header, where libstdc++ declares them as its own.
template basic_ostringstream<char>::basic_ostringstream();
template basic_stringstream<char>::basic_stringstream();
}  // namespace std
