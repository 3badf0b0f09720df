#pragma once

#include <cstdio>

// For test programs: EXPECT reports a condition that is false, and main() returns `failures`.
inline int failures = 0;

#define EXPECT(condition)                                                         \
  if (!(condition)) {                                                             \
    std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
    ++failures;                                                                   \
  }
