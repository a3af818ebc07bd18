// SPDX-License-Identifier: Apache-2.0
// The library as a peer over Tcp.
#include "peers/tandem.hpp"
#include "peers/tandem_world.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/transport/tcp.hpp"

namespace tandem::bench {

std::unique_ptr<Tandem> join_over_tcp() { return std::make_unique<TandemWorld<Tcp>>(join<Tcp>()); }

}  // namespace tandem::bench
