#pragma once

#include <cstdio>

// A program of tests: it reports what is false and exits with the number of failures.
inline int failures = 0;

#define EXPECT(condition)                                                         \
  if (!(condition)) {                                                             \
    std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
    ++failures;                                                                   \
  }
