// SPDX-License-Identifier: Apache-2.0
#include "step/memory.hpp"

#include <malloc.h>

#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>

#include "step/worlds.hpp"
#include "tandem/strategy/options.hpp"

namespace tandem::bench {
namespace {

constexpr int steps = 4;
constexpr std::int64_t width = 1024;
constexpr std::int64_t batch = 4;  // so that activations are nothing beside parameters

void train(const ModeInfo& which, const Job& job, Worlds& worlds, const std::function<void(int)>& after_step) {
  const Batch data = job.draw();
  const auto mode = make_mode(which, job, worlds);
  for (int step = 0; step < steps; ++step) {
    mode->step(data);
    after_step(step);
  }
}

/// All ranks stand still meanwhile, so that nobody's pages change hands.
Footprint at_rest(Team& team) {
  team.align();
  const Footprint found = footprint();
  team.align();
  return found;
}

void raise(Footprint& most, const Footprint& seen) {
  if (seen.sum() > most.sum()) most = seen;
}

}  // namespace

void measure_memory(Team& team, Worlds& worlds, const ModeInfo& which, int layers) {
  // What libtorch and the mode set up once, on a model of nothing.
  train(which, chain_with_adamw(8, 2, batch), worlds, [](int) {});
  MemoryUse use;
  static_assert(default_piece_bytes <= sizeof(float) * width * width, "a piece is a layer: its bias and its weight");
  use.piece_bytes = sizeof(float) * width * (width + 1);
  malloc_trim(0);
  const Footprint start = at_rest(team);

  Job job = chain_with_adamw(width, layers, batch);
  Arena* const arena = worlds.arena(which.link);
  int step = 0;
  const auto watch = [&] {
    if (step == 0) raise(use.first, footprint() - start);
    if (step == steps - 1) raise(use.peak, footprint() - start);
  };
  job.make = [&watch, &use, make = job.make] {
    const auto net = make();
    for (const at::Tensor& parameter : net->parameters()) {
      use.parameters += parameter.numel();
      parameter.register_hook([&watch](const at::Tensor&) { watch(); });
    }
    return net;
  };
  train(which, job, worlds, [&](int done) {
    step = done + 1;
    if (step == 1 && arena != nullptr) arena->watch_use();
    if (step < steps) return;
    if (arena != nullptr) use.under_way = static_cast<double>(arena->use().most - arena->use().now);
    use.held = at_rest(team) - start;
    malloc_trim(0);
    use.trimmed = at_rest(team) - start;
  });
  ::new (static_cast<void*>(team.samples(team.rank()))) MemoryUse(use);
  team.align();
}

MemoryUse memory_use(Team& team) {
  static_assert(std::is_trivially_copyable_v<MemoryUse>);
  MemoryUse mean;
  for (int rank = 0; rank < team.ranks(); ++rank) {
    const MemoryUse& one = *std::launder(reinterpret_cast<const MemoryUse*>(team.samples(rank)));
    mean.parameters = one.parameters;
    mean.piece_bytes = one.piece_bytes;
    const auto share = [&team](Footprint& sum, const Footprint& part) {
      sum.anonymous += part.anonymous / team.ranks();
      sum.shared += part.shared / team.ranks();
    };
    share(mean.held, one.held);
    share(mean.trimmed, one.trimmed);
    share(mean.first, one.first);
    share(mean.peak, one.peak);
    mean.under_way += one.under_way / team.ranks();
  }
  return mean;
}

}  // namespace tandem::bench
