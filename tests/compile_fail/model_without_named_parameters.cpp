// SPDX-License-Identifier: Apache-2.0
// A model that keeps its parameters to itself.
// expect: tandem: the model has no named_parameters()
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
struct Other {
  at::Tensor forward(const at::Tensor& x) const { return x; }
};

#ifdef TANDEM_SHOULD_FAIL
using Policies = tandem::Trainer<Other, tandem::Ddp<>, tandem::ShmRing>;
#else
using Policies = tandem::Trainer<Net, tandem::Ddp<>, tandem::ShmRing>;
#endif

void touch(Policies& trainer) { (void)trainer; }
