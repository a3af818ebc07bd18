// SPDX-License-Identifier: Apache-2.0
// The table of supported dtypes and reductions between real processes: every cell of it, of few elements and of more
// than a channel's slot takes, against the oracle's bits. (Which cells there are is shown in tests/unit/reduce, against
// the documentation.)
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/join.hpp"
#if defined(TANDEM_TEST_BOTH_TRANSPORTS)
#include "tandem/transport/tcp.hpp"
#endif

using namespace tandem;
using namespace tandem::test;

namespace {

/// A third of them zero, for the logical reductions.
template <class E>
E value(std::size_t i, int rank) {
  return mix(i * 8 + static_cast<std::size_t>(rank)) % 3 == 0 ? E{} : sample<E>(i, rank);
}
/// How many of the elements that `ranks` ranks have reduced have other bits than the oracle's.
template <class E, class Op>
std::size_t wrong(std::span<const E> data, const Op& op, int ranks) {
  const GlooRingOracle oracle(data.size(), sizeof(E), static_cast<std::size_t>(ranks));
  std::size_t count = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    const E right = oracle.element<E>(i, op, [i](std::size_t rank) { return value<E>(i, static_cast<int>(rank)); });
    count += std::memcmp(&data[i], &right, sizeof(E)) != 0 ? 1 : 0;
  }
  return count;
}

/// By one algorithm: another one would fold with the same code, and be compiled 88 times.
template <class E, class T, class Op>
void reduces_exactly(Communicator<T>& world, const Op& op, std::size_t count) {
  const auto memory = std::make_unique<E[]>(count);  // no vector: of bool there is none
  const std::span<E> data(memory.get(), count);
  for (std::size_t i = 0; i < count; ++i) data[i] = value<E>(i, world.rank());
  all_reduce<Naive>(world, data, op);
  INFO(reduction_name<Op>(), " of ", count, " elements of ", name_of(dtype_of<E>()), " over ", T::name);
  CHECK(wrong(std::span<const E>(data), op, world.size()) == 0);
}
/// The row of one dtype.
template <class E, class T, class... Ops>
void cells(Communicator<T>& world, const Ops&... ops) {
  const auto one = [&](const auto& op) {
    if constexpr (Reduction<std::remove_cvref_t<decltype(op)>, E>) {
      reduces_exactly<E>(world, op, 5);
      reduces_exactly<E>(world, op, (std::size_t{64} << 10) / sizeof(E) + 3);
    }
  };
  (one(ops), ...);
}
template <class Transport, class... Elements>
void table() {
  on_ranks(ranks(), [](int) {
    auto world = join<Transport>();
    (cells<Elements>(world, Sum{}, Prod{}, Min{}, Max{}, Avg{}, PreMulSum{3}, BitAnd{}, BitOr{}, BitXor{}, LogicalAnd{},
                     LogicalOr{}, LogicalXor{}),
     ...);
    CHECK(world.ledger().balanced());
  });
}
template <class Transport>
void whole_table() {
  table<Transport, bool, std::uint8_t, std::int8_t, std::int32_t, std::int64_t, Float16, BFloat16, float, double>();
}

}  // namespace

TEST_CASE("C009: every dtype is reduced exactly by every reduction that it has, bool to bytes of 0 or 1") {
  whole_table<ShmRing>();
#if defined(TANDEM_TEST_BOTH_TRANSPORTS)
  whole_table<Tcp>();
#endif
}
