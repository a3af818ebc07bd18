// SPDX-License-Identifier: Apache-2.0
// A recipe that returns what it was given.
// expect: tandem: the recipe returns nothing with a step()
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
struct Sgd {
  std::vector<at::Tensor> parameters;
  void step() {}
};
using Trainer = tandem::Trainer<Net, tandem::Ddp<>, tandem::ShmRing>;
at::Tensor mean_of(const at::Tensor& output, const at::Tensor& target) { return output.sub(target).mean(); }

void train(tandem::Communicator<tandem::ShmRing>& world, const at::Tensor& x) {
  [[maybe_unused]] const auto sgd = [](std::vector<at::Tensor> parameters) { return Sgd{std::move(parameters)}; };
#ifdef TANDEM_SHOULD_FAIL
  Trainer trainer{world, Net{}, mean_of, [](std::vector<at::Tensor> parameters) { return parameters; }};
  trainer.step(x, x);
#else
  Trainer trainer{world, Net{}, mean_of, sgd};
  trainer.step(x, x);
#endif
}
