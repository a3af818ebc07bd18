// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo/common/error.h; see opaque.h.
#pragma once

#include <gloo/opaque.h>
