// SPDX-License-Identifier: Apache-2.0
// A strategy that says what it is and does nothing.
// expect: tandem: the strategy has no engine for this transport
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
struct Idle {
  static constexpr int degree = 0;
  static constexpr const char* name = "Idle";
  static constexpr const char* reference = "nothing";
};

#ifdef TANDEM_SHOULD_FAIL
using Policies = tandem::Trainer<Net, Idle, tandem::ShmRing>;
#else
using Policies = tandem::Trainer<Net, tandem::Ddp<>, tandem::ShmRing>;
#endif

void touch(Policies& trainer) { (void)trainer; }
