// SPDX-License-Identifier: MIT
#include "../../detops/include/detops/library.h"

#include <cuda_runtime.h>

int detops_cuda_version(void) { return CUDART_VERSION; }
