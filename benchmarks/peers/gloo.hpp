// SPDX-License-Identifier: Apache-2.0
// gloo as PyTorch ships it: libtorch's ProcessGroupGloo over the loopback interface. This header names nothing of
// libtorch, so that only gloo.cpp pays for its headers.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "harness/case.hpp"

namespace tandem::bench {

/// One rank's process group. Ranks find each other through a file that must not exist yet.
class Gloo {
 public:
  Gloo(int rank, int ranks, const std::string& store_file);
  Gloo(const Gloo&) = delete;
  Gloo& operator=(const Gloo&) = delete;
  ~Gloo();

  /// The call that this case times, on private buffers; nothing where gloo has no such verb for the dtype.
  std::function<void()> operation(const Case& which, std::byte* input, std::byte* output);

 private:
  struct Group;
  std::unique_ptr<Group> group_;
};

}  // namespace tandem::bench
