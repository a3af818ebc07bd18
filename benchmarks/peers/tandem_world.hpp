// SPDX-License-Identifier: Apache-2.0
// The library's verbs on spans, as a user calls them, over one transport. Compiled once for each, beside the others.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "harness/case.hpp"
#include "harness/pattern.hpp"
#include "peers/tandem.hpp"
#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/send_recv.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/reduce/functor.hpp"

namespace tandem::bench {

/// The call that a case times. The algorithm is left to the library, as users leave it.
template <Element T, class Transport>
std::function<void()> tandem_operation(Communicator<Transport>& world, const Case& which, std::byte* input,
                                       std::byte* output) {
  const Range slice = slice_of(which.count, which.ranks, world.rank());
  T* const in = reinterpret_cast<T*>(input);
  T* const out = reinterpret_cast<T*>(output);
  const std::span<T> whole(in, which.count);
  switch (which.verb) {
    case Verb::all_reduce:
      return [&world, whole] { all_reduce(world, whole, Sum{}); };
    case Verb::reduce_scatter:
      return [&world, whole, result = std::span<T>(out, slice.size())] {
        reduce_scatter(world, std::span<const T>(whole), result, Sum{});
      };
    case Verb::all_gather:
      return [&world, own = std::span<const T>(in, slice.size()), result = std::span<T>(out, which.count)] {
        all_gather(world, own, result);
      };
    case Verb::broadcast:
      return [&world, whole] { broadcast(world, whole, 0); };
    case Verb::all_to_all:
      return [&world, whole, result = std::span<T>(out, which.count)] {
        all_to_all(world, std::span<const T>(whole), result);
      };
    case Verb::send:
      return [&world, whole] {
        if (world.rank() % 2 == 0)
          send(world, std::span<const T>(whole), world.rank() + 1);
        else
          recv(world, whole, world.rank() - 1);
      };
    case Verb::barrier:
      return [&world] { barrier(world); };
  }
  return {};
}

template <class Transport>
class TandemWorld : public Tandem {
 public:
  explicit TandemWorld(Communicator<Transport> world) : world_(std::move(world)) {}

  std::function<void()> operation(const Case& which, std::byte* input, std::byte* output) override {
    return visit_number(which.dtype, [&]<class T>(T) { return tandem_operation<T>(world_, which, input, output); });
  }
  std::byte* allocate(std::size_t bytes) override { return static_cast<std::byte*>(world_.arena()->allocate(bytes)); }

 protected:
  Communicator<Transport>& world() noexcept { return world_; }

 private:
  Communicator<Transport> world_;
};

}  // namespace tandem::bench
