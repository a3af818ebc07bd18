// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo/context.h; see opaque.h.
#pragma once

#include <gloo/opaque.h>
