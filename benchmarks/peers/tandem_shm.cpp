// SPDX-License-Identifier: Apache-2.0
// The library as a peer over ShmRing.
#include <ATen/ops/empty.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peers/tandem.hpp"
#include "peers/tandem_world.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/tensor/adopt_allocator.hpp"
#include "tandem/transport/shm_ring.hpp"

namespace tandem::bench {
namespace {

class AdoptingWorld final : public TandemWorld<ShmRing> {
 public:
  explicit AdoptingWorld(Communicator<ShmRing> world)
      : TandemWorld(std::move(world)), adopted_(adopt_allocator(this->world())) {}

  std::byte* allocate(std::size_t bytes) override {
    tensors_.push_back(at::empty({static_cast<std::int64_t>(bytes)}, at::kByte));
    return static_cast<std::byte*>(tensors_.back().data_ptr());
  }

 private:
  AdoptedAllocator adopted_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace

std::unique_ptr<Tandem> join_over_shm(bool adopt) {
  auto world = join<ShmRing>();
  if (adopt) return std::make_unique<AdoptingWorld>(std::move(world));
  return std::make_unique<TandemWorld<ShmRing>>(std::move(world));
}

}  // namespace tandem::bench
