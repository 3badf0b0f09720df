// Tests that the emulation reports behaviour that a GPU leaves undefined. Exits with the number of
// failures; see tests/ops/cuda/test_cuda_emulation.py.
#include "../emulation/emulation.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "expect.h"

using namespace detops::cuda::emulation;

namespace {

// Runs a kernel on two blocks and returns the error message, empty for none.
template <typename Kernel>
const char* error_message(unsigned threads, const Kernel& kernel) {
  static char message[200];
  try {
    run(dim3(2), threads, 0, kernel);
  } catch (const std::runtime_error& error) {
    std::strncpy(message, error.what(), sizeof(message) - 1);
    return message;
  }
  return "";
}

template <typename T>
void read_before_written() {
  bool all_nan = true;
  const char* message = error_message(64, [&] {
    __shared__ T values[64];
    all_nan = all_nan && std::isnan(values[threadIdx.x]);
    __syncthreads();
    values[threadIdx.x] = 1;  // must not be visible to the next block
  });
  EXPECT(all_nan && *message == '\0');
}

void written_before_read() {
  int wrong = 0;
  const char* message = error_message(64, [&] {
    __shared__ int values[64];
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    wrong += values[63 - threadIdx.x] != static_cast<int>(63 - threadIdx.x);
  });
  EXPECT(wrong == 0 && *message == '\0');
}

void votes() {
  const auto vote = [] { __ballot_sync(0xffffffffu, true); };
  EXPECT(*error_message(64, vote) == '\0');
  EXPECT(std::strstr(error_message(40, vote), "a warp voted without all of its threads") !=
         nullptr);
  const auto some_leave = [&] {
    if (threadIdx.x == 35) return;
    vote();
  };
  EXPECT(std::strstr(error_message(64, some_leave), "a warp voted without all of its threads") !=
         nullptr);
  EXPECT(*error_message(64, vote) == '\0');  // the next kernel reports no error
}

}  // namespace

int main() {
  read_before_written<float>();
  read_before_written<double>();
  written_before_read();
  votes();
  return failures;
}
