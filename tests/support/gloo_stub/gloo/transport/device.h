// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo/transport/device.h; see opaque.h.
#pragma once

#include <gloo/opaque.h>
