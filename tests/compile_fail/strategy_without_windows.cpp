// SPDX-License-Identifier: Apache-2.0
// Sharded parameters for ranks that do not map each other's memory, of a model that is not cut.
// expect: tandem: Zero<3> needs ranks that map each other's memory, or a model that is cut in units
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/strategy/zero.hpp"
#include "tandem/trainer/trainer.hpp"
#include "tandem/transport/shm_ring.hpp"

struct Net {
  at::Tensor weight;
  at::Tensor forward(const at::Tensor& x) const { return x.mul(weight); }
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const { return {{"weight", weight}}; }
};
/// ShmRing, but for what it says of itself.
struct Distant : tandem::ShmRing {
  static constexpr bool has_windows = false;
};
#ifdef TANDEM_SHOULD_FAIL
using Policies = tandem::Trainer<Net, tandem::Zero<3>, Distant>;
#else
using Policies = tandem::Trainer<Net, tandem::Zero<3>, tandem::ShmRing>;
#endif

void touch(Policies& trainer) { (void)trainer; }
