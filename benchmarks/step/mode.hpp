// SPDX-License-Identifier: Apache-2.0
// The ways in which the step benchmark trains a model: tandem's strategies over its transports, PyTorch's own data
// parallelism, and one process by itself. This header names no strategy's type; they are compiled one transport a file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "step/models.hpp"

namespace tandem::bench {

class Worlds;

/// What ranks are connected by.
enum class Link { nothing, gloo, shm, tcp };

struct ModeInfo {
  const char* name;
  Link link;
  int level;    ///< of ZeRO; 0 where nothing is sharded
  bool shared;  ///< one copy of the parameters for all ranks
  bool rows;    ///< reference::fsdp2: shards are rows, bits are fully_shard's
};
/// Are its weights to be c10d's, to the bit? Alone, each rank trains on its own data only; fully_shard adds up in
/// another order.
inline bool has_bits_of_c10d(const ModeInfo& mode) { return mode.link != Link::nothing && !mode.rows; }

/// tandem's first, in the order of their tables; c10d and alone are always there, to compare with.
inline constexpr ModeInfo all_modes[] = {
    {"ddp", Link::shm, 0, false, false},         {"zero1", Link::shm, 1, false, false},
    {"zero1-shared", Link::shm, 1, true, false}, {"zero2", Link::shm, 2, false, false},
    {"zero2-shared", Link::shm, 2, true, false}, {"zero3", Link::shm, 3, true, false},
    {"zero3-apart", Link::shm, 3, false, false}, {"fsdp2", Link::shm, 3, false, true},
    {"ddp-tcp", Link::tcp, 0, false, false},     {"zero2-tcp", Link::tcp, 2, false, false},
    {"zero3-tcp", Link::tcp, 3, false, false},   {"c10d", Link::gloo, 0, false, false},
    {"alone", Link::nothing, 0, false, false},
};
inline bool is_ours(const ModeInfo& mode) { return mode.link == Link::shm || mode.link == Link::tcp; }

/// Those that --modes takes.
inline std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const ModeInfo& mode : all_modes) {
    if (is_ours(mode)) names.emplace_back(mode.name);
  }
  return names;
}

/// A model in training on one rank.
class Mode {
 public:
  Mode() = default;
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;
  virtual ~Mode() = default;

  /// Forward, backward, reduction, update.
  virtual void step(const Batch& batch) = 0;
  /// Copies of all parameters, whole, in registration order. Collective.
  virtual std::vector<at::Tensor> parameters() = 0;
};

/// Collective over the mode's link, whose world must be there and outlive the mode.
std::unique_ptr<Mode> make_mode(const ModeInfo& which, const Job& job, Worlds& worlds);

std::unique_ptr<Mode> make_over_shm(const ModeInfo& which, const Job& job, Worlds& worlds);
std::unique_ptr<Mode> make_over_tcp(const ModeInfo& which, const Job& job, Worlds& worlds);
/// PyTorch's own: over gloo, or alone.
std::unique_ptr<Mode> make_plain(const ModeInfo& which, const Job& job, Worlds& worlds);

}  // namespace tandem::bench
