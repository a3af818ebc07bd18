// SPDX-License-Identifier: Apache-2.0
// A mode that is one of tandem's Trainers. Compiled once for each strategy and transport.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "step/mode.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/trainer/trainer.hpp"

namespace tandem::bench {

template <class Strategy, class T>
class Trained final : public Mode {
 public:
  Trained(Communicator<T>& world, const Job& job, Placement placement)
      : trainer_(world, job.make(), job.loss,
                 [&job](std::vector<at::Tensor> owned) { return job.optimizer(std::move(owned)); },
                 {.placement = placement}) {}

  void step(const Batch& batch) override { trainer_.step(batch.first, batch.second); }
  std::vector<at::Tensor> parameters() override {
    const auto whole = trainer_.unshard();
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : trainer_.model().parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }

 private:
  Trainer<Net, Strategy, T> trainer_;
};

template <class Strategy, class T>
std::unique_ptr<Mode> make_trained(Communicator<T>& world, const ModeInfo& which, const Job& job) {
  return std::make_unique<Trained<Strategy, T>>(world, job, which.shared ? Placement::shared : Placement::apart);
}

}  // namespace tandem::bench
