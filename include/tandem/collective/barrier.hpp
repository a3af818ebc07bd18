// SPDX-License-Identifier: Apache-2.0
// Nobody leaves before everybody has come.
#pragma once

#include "tandem/collective/detail/checks.hpp"
#include "tandem/comm/communicator.hpp"

namespace tandem {

/// Returns when all ranks have called it. One synchronisation, 0 bytes of payload.
/// Throws Error: dead_peer (naming the rank), timeout (naming the rank that did not come), mismatch, poisoned.
template <ControlTransport T>
void barrier(Communicator<T>& comm, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::barrier, site);
  const Call call = detail::describe<std::byte>(Verb::barrier, 0, 0, 0, -1, site);
  auto operation = protocol.post(call, options, 0, 0);
  protocol.await_posts(operation);
  protocol.finish(operation, 0, 0);
}

}  // namespace tandem
