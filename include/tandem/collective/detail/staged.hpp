// SPDX-License-Identifier: Apache-2.0
// How a collective is announced whose data may go beside the flags: with what this rank gives in its staging, unless
// the buffers of all ranks turn out to be registered and large enough to be read where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"

namespace tandem::detail {

/// An operation that was posted. If it is `staged`, all posts were awaited, and what each rank gives lies in its
/// staging; else it is carried out as its way is (see carry_out).
struct Announced {
  Operation operation;
  bool staged;
};

/// `given` is what others read of this rank when it is staged; `staged_bytes`, the most that any rank gives, decides,
/// the same on all ranks.
template <class Algorithm, class T>
Announced announce(Protocol<T>& protocol, const Call& call, const CallOptions& options, std::uint64_t staged_bytes,
                   std::span<const std::byte> given, std::uint64_t input_place, std::uint64_t output_place) {
  const auto goes_staged = [&](Registration registration) {
    return path_for<Algorithm>(protocol, call.verb, staged_bytes, registration) == Path::staged;
  };
  const bool small = goes_staged(Registration::none);
  if (small) {
    std::byte* const stage = protocol.stage(call.verb);
    const bool registered = Place::in_window(input_place) && Place::in_window(output_place);
    if (!given.empty() && (!registered || goes_staged(Registration::all))) {
      if (registered) input_place = Place::hidden;
      copy_bytes(stage, given.data(), given.size());
      protocol.staging().show(given.size());
    }
  }
  Announced it{protocol.post(call, options, input_place, output_place), false};
  small ? protocol.await_posts(it.operation) : protocol.begin(it.operation);
  it.staged = small && goes_staged(protocol.buffers().registration(it.operation));
  return it;
}

}  // namespace tandem::detail
