// SPDX-License-Identifier: Apache-2.0
// Fewer ranks than none.
// expect: tandem: the strategy asks for fewer than 0 ranks
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
using Policies = tandem::Trainer<Net, tandem::Ddp<-2>, tandem::ShmRing>;
#else
using Policies = tandem::Trainer<Net, tandem::Ddp<2>, tandem::ShmRing>;
#endif

void touch(Policies& trainer) { (void)trainer; }
