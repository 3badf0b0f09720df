// SPDX-License-Identifier: MIT
#pragma once

// The package's own header, where programs find it.
#include "../detops/include/detops/library.h"
