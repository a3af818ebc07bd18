// SPDX-License-Identifier: Apache-2.0
// Rows of parameters, gathered unit by unit, of a model that is not cut.
// expect: tandem: this strategy gathers one unit of the model after another, and the model is not cut
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
#ifdef TANDEM_SHOULD_FAIL
using Policies = tandem::Trainer<Net, tandem::Zero<3, tandem::reference::fsdp2>, tandem::ShmRing>;
#else
using Policies = tandem::Trainer<Net, tandem::Zero<3>, tandem::ShmRing>;
#endif

void touch(Policies& trainer) { (void)trainer; }
