// SPDX-License-Identifier: Apache-2.0
// The collectives on at::Tensor: includes only.
#pragma once

#include "tandem/tensor/lists.hpp"
#include "tandem/tensor/reductions.hpp"
#include "tandem/tensor/transfers.hpp"
