// SPDX-License-Identifier: Apache-2.0
// What stands before every "cpp fragment" of the docs: the includes. What else a page needs, it says itself ("cpp
// shared").
#pragma once

#include <torch/torch.h>

#include "tandem/tandem.hpp"
