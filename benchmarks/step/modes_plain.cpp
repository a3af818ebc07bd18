// SPDX-License-Identifier: Apache-2.0
// What tandem is compared with: the same step by PyTorch's own c10d::Reducer over gloo, and by one process alone.
#include "step/worlds.hpp"

namespace tandem::bench {
namespace {

class Plain final : public Mode {
 public:
  /// Alone without a group.
  Plain(const Job& job, const tandem_oracle::GlooGroup* group)
      : loss_(job.loss), net_(job.make()), optimizer_(job.optimizer(net_->parameters())) {
    if (group != nullptr)
      reducer_.emplace(*group, net_->parameters());
    else
      keep_gradients_in_place();
  }
  void step(const Batch& batch) override {
    if (reducer_) reducer_->before_forward();
    const at::Tensor loss = loss_(net_->forward(batch.first), batch.second);
    if (reducer_) reducer_->before_backward();
    loss.backward();
    optimizer_->step();
    optimizer_->zero_grad();
  }
  std::vector<at::Tensor> parameters() override {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : net_->parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }

 private:
  /// Each gradient is copied to where it was in the last step, as buckets have it: no new pages, and no pass that
  /// zeroes or adds. The reducer's gradients lie in its buckets.
  void keep_gradients_in_place() {
    for (const at::Tensor& parameter : net_->parameters()) {
      parameter.register_hook([place = at::empty_like(parameter.detach())](const at::Tensor& gradient) {
        const c10::AutoGradMode no_grad(false);
        return at::Tensor(place).copy_(gradient).alias();
      });
    }
  }

  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss_;
  std::shared_ptr<Net> net_;
  std::optional<tandem_oracle::ReducerOracle> reducer_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

std::unique_ptr<Mode> make_plain(const ModeInfo& which, const Job& job, Worlds& worlds) {
  return std::make_unique<Plain>(job, which.link == Link::gloo ? &*worlds.gloo : nullptr);
}

std::unique_ptr<Mode> make_mode(const ModeInfo& which, const Job& job, Worlds& worlds) {
  switch (which.link) {
    case Link::shm:
      return make_over_shm(which, job, worlds);
    case Link::tcp:
      return make_over_tcp(which, job, worlds);
    default:
      return make_plain(which, job, worlds);
  }
}

}  // namespace tandem::bench
