// SPDX-License-Identifier: Apache-2.0
// The last two arguments in the wrong order.
// expect: tandem: the strategy and the transport have changed places
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/strategy/ddp.hpp"
#include "tandem/trainer/trainer.hpp"
#include "tandem/transport/shm_ring.hpp"

struct Net {
  at::Tensor weight;
  at::Tensor forward(const at::Tensor& x) const { return x.mul(weight); }
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const { return {{"weight", weight}}; }
};
#ifdef TANDEM_SHOULD_FAIL
using Policies = tandem::Trainer<Net, tandem::ShmRing, tandem::Ddp<>>;
#else
using Policies = tandem::Trainer<Net, tandem::Ddp<>, tandem::ShmRing>;
#endif

void touch(Policies& trainer) { (void)trainer; }
