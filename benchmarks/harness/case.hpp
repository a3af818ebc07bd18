// SPDX-License-Identifier: Apache-2.0
// One case of the benchmark: verb, dtype, size, kind of buffer, and what tandem runs it over. Plain data, so that it
// can be handed to another process. Knows no peer.
#pragma once

#include <cstddef>
#include <string>

#include "tandem/core/dtype.hpp"

namespace tandem::bench {

enum class Verb { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send, barrier };
constexpr Verb all_verbs[] = {Verb::all_reduce, Verb::reduce_scatter, Verb::all_gather, Verb::broadcast,
                              Verb::all_to_all, Verb::send,           Verb::barrier};

constexpr const char* name_of(Verb verb) noexcept {
  switch (verb) {
    case Verb::all_reduce:
      return "all_reduce";
    case Verb::reduce_scatter:
      return "reduce_scatter";
    case Verb::all_gather:
      return "all_gather";
    case Verb::broadcast:
      return "broadcast";
    case Verb::all_to_all:
      return "all_to_all";
    case Verb::send:
      return "send";
    case Verb::barrier:
      return "barrier";
  }
  return "?";
}

constexpr bool reduces(Verb verb) noexcept { return verb == Verb::all_reduce || verb == Verb::reduce_scatter; }
constexpr bool works_in_place(Verb verb) noexcept {
  return verb == Verb::all_reduce || verb == Verb::broadcast || verb == Verb::send;
}
/// Buffers are cut into one slice per rank; all of one size here, for not every peer knows others.
constexpr bool is_sliced(Verb verb) noexcept {
  return verb == Verb::reduce_scatter || verb == Verb::all_gather || verb == Verb::all_to_all;
}

/// What tandem runs over.
enum class Over { shm, tcp };
constexpr Over all_transports[] = {Over::shm, Over::tcp};
constexpr const char* name_of(Over transport) noexcept { return transport == Over::shm ? "shm" : "tcp"; }

constexpr Dtype all_dtypes[] = {Dtype::float32, Dtype::float64, Dtype::float16, Dtype::bfloat16,
                                Dtype::int8,    Dtype::uint8,   Dtype::int32,   Dtype::int64};

/// `count` elements are the full, larger buffer of every verb: the input of reduce_scatter, the output of all_gather.
struct Case {
  Over transport = Over::shm;
  Verb verb = Verb::all_reduce;
  Dtype dtype = Dtype::float32;
  std::size_t count = 0;
  bool registered = false;
  int ranks = 1;

  std::size_t bytes() const noexcept { return count * size_of(dtype); }
  std::string name() const {
    return std::string(name_of(verb)) + "/" + tandem::name_of(dtype) + "/" + std::to_string(bytes()) + "B/N" +
           std::to_string(ranks) + "/" + name_of(transport) +
           (transport == Over::tcp ? ""
            : registered           ? "/registered"
                                   : "/unregistered");
  }
};

}  // namespace tandem::bench
