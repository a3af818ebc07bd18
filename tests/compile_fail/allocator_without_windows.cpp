// SPDX-License-Identifier: Apache-2.0
// Tensors are to lie in windows that the transport does not have.
// expect: tandem: adopt_allocator puts tensors where the other ranks can reach them
#include "tandem/tensor/adopt_allocator.hpp"
#include "tandem/transport/shm_ring.hpp"

/// ShmRing, but for what it says of itself.
struct Distant : tandem::ShmRing {
  static constexpr bool has_windows = false;
};

#ifdef TANDEM_SHOULD_FAIL
using Transport = Distant;
#else
using Transport = tandem::ShmRing;
#endif

void adopt(tandem::Communicator<Transport>& world) { const auto memory = tandem::adopt_allocator(world); }
