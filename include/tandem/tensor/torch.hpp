// SPDX-License-Identifier: Apache-2.0
// Everything of libtorch that the library includes, in one place: this is the only file that names its headers.
//
// Chosen by what they cost a user's compile (g++ 12, -O0): Tensor.h 2 s, the *_ops.h about nothing more; ATen/ATen.h
// would be 9 s and torch/torch.h 23 s.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/stack_ops.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <string>

#if defined(_GLIBCXX_USE_CXX11_ABI)
static_assert(_GLIBCXX_USE_CXX11_ABI == 1,
              "tandem: libtorch's C++ ABI differs from this build's; compile with -D_GLIBCXX_USE_CXX11_ABI=1");
#endif

namespace at {
// Declared as in ATen/Version.h, which would add 2.4 s by including ATen/Context.h.
TORCH_API std::string get_cpu_capability();
}  // namespace at
