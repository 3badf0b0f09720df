// SPDX-License-Identifier: MIT
// Stands in for PyTorch's header of this name.
#pragma once

#include "../../emulation.h"
