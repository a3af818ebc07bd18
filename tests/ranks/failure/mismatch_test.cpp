// SPDX-License-Identifier: Apache-2.0
// Ranks that do not call the same thing: all of them are told both values and both call sites, and nobody's data was
// touched.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/all_reduce_coalesced.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/reduce.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

constexpr CallSite here{"here.cpp", "train", 11};
constexpr CallSite there{"there.cpp", "evaluate", 22};

/// Eight bytes for each of `count` elements, seen as elements of any type.
class Data {
 public:
  Data(const World& world, std::size_t count, bool registered)
      : count_(count),
        arena_(world.arena(), registered ? count * 8 : 0),
        own_(registered ? 0 : count),
        memory_(registered ? arena_.data() : reinterpret_cast<std::byte*>(own_.data())) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = mix(i * 8 + static_cast<std::uint64_t>(world.rank()));
      std::memcpy(memory_ + i * 8, &bits, 8);
    }
    before_.assign(memory_, memory_ + count * 8);
  }
  template <class E>
  std::span<E> as() const {
    return {reinterpret_cast<E*>(memory_), count_};
  }
  bool untouched() const { return std::memcmp(memory_, before_.data(), before_.size()) == 0; }

 private:
  std::size_t count_;
  ArenaArray<std::byte> arena_;
  std::vector<std::uint64_t> own_;
  std::byte* memory_;
  std::vector<std::byte> before_;
};

/// An order of a user's own: one chunk, from the last rank down.
struct Descending {
  static constexpr ChunkTable table(std::size_t count, std::size_t, int ranks) noexcept {
    return {count, count, ranks};
  }
};

struct Mismatch {
  /// What every rank calls; the odd one another thing.
  std::function<void(World&, const Data&, bool odd, CallSite)> call;
  std::vector<std::string> said;  // on every rank
};

const std::vector<Mismatch>& mismatches() {
  const CallOptions usual;
  static const std::vector<Mismatch> all{
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         odd ? all_reduce(world, data.as<std::int32_t>(), Sum{}, usual, site)
             : all_reduce(world, data.as<float>(), Sum{}, usual, site);
       },
       {"dtype", "float32", "int32"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         odd ? all_reduce(world, data.as<BFloat16>(), Sum{}, usual, site)
             : all_reduce(world, data.as<Float16>(), Sum{}, usual, site);
       },
       {"dtype", " float16", "bfloat16"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         odd ? broadcast(world, data.as<double>(), 0, usual, site)
             : broadcast(world, data.as<std::int64_t>(), 0, usual, site);
       },
       {"dtype", "int64", "float64"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         odd ? all_reduce(world, data.as<float>(), Max{}, usual, site)
             : all_reduce(world, data.as<float>(), Sum{}, usual, site);
       },
       {"the reduction", "Sum", "Max"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         all_reduce(world, data.as<float>(), PreMulSum{odd ? 0.25 : 0.5}, usual, site);
       },
       {"the factor of PreMulSum is ", "0.25", "0.5", "with the factor "}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         odd ? all_reduce<Auto, Descending>(world, data.as<float>(), Sum{}, usual, site)
             : all_reduce(world, data.as<float>(), Sum{}, usual, site);
       },
       {"the order of addition is ", "GlooRing on rank ", "a user's own (number "}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         const auto all = data.as<float>();
         all_reduce(world, all.first(all.size() - (odd ? 1 : 0)), Sum{}, usual, site);
       },
       {"the number of elements"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         broadcast(world, data.as<float>(), odd ? 1 : 0, usual, site);
       },
       {"root is", "0 on", "1 on"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         reduce(world, std::span<const float>(data.as<float>()), data.as<float>(), Sum{}, odd ? 1 : 0, usual, site);
       },
       {"root is", "0 on", "1 on"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         odd ? all_reduce<Ring>(world, data.as<float>(), Sum{}, usual, site)
             : all_reduce<Pairwise>(world, data.as<float>(), Sum{}, usual, site);
       },
       {"the forced algorithm", "Ring", "Pairwise"}},
      {[=](World& world, const Data&, bool odd, CallSite site) {
         if (odd)
           barrier(world, usual, site);
         else
           (void)world.split(0, 0, usual, site);
       },
       {"the operation", "barrier", "split"}},
      // Whatever is compared beside the fingerprints: lists of counts, what each pair exchanges, form of the call.
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         const auto all = data.as<float>();
         const std::span<float> parts[] = {all.first(odd ? 3 : 2), all.subspan(3, odd ? 2 : 3)};
         all_reduce_coalesced(world, std::span<const std::span<float>>(parts), Sum{}, usual, site);
       },
       {"the hash of the buffers' counts"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         const std::span<float> parts[] = {data.as<float>().first(5)};
         all_reduce_coalesced(world, std::span<const std::span<float>>(parts), PreMulSum{odd ? 0.25 : 0.5}, usual,
                              site);
       },
       {"the factor of PreMulSum is ", "0.25", "0.5"}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         const auto n = static_cast<std::size_t>(world.size());
         const auto me = static_cast<std::size_t>(world.rank());
         const auto input = data.as<float>().first(data.as<float>().size() / n * n);
         const std::vector<std::size_t> sends(n, input.size() / n);
         std::vector<std::size_t> receives = sends;
         if (odd) --receives[(me + 1) % n];
         std::vector<float> output(input.size() - (odd ? 1 : 0));
         all_to_all_v(world, std::span<const float>(input), sends, std::span(output), receives, usual, site);
       },
       {" elements to rank ", ", which expects "}},
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         const auto all = data.as<float>();
         odd ? all_reduce_async(world, all, Sum{}, usual, site).wait() : all_reduce(world, all, Sum{}, usual, site);
       },
       {"that of the _async form"}},
      // The same two operations in another order (C008).
      {[=](World& world, const Data& data, bool odd, CallSite site) {
         const auto a = data.as<float>().first(4);
         const auto b = data.as<float>().last(4);
         if (odd) broadcast(world, b, 0, usual, site);
         all_reduce(world, a, Sum{}, usual, site);
         broadcast(world, b, 0, usual, site);
       },
       {"operation 1,", "all_reduce", "broadcast"}},
  };
  return all;
}

void must_be_told(const Mismatch& mismatch, const std::string& name, std::size_t count, bool registered, int odd) {
  on_ranks(ranks(), [&](int rank) {
    World world = join_again(name, rank, ranks());
    const Data data(world, count, registered);
    const auto error = error_of([&] { mismatch.call(world, data, rank == odd, rank == odd ? there : here); });
    REQUIRE(error);
    CAPTURE(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::mismatch);
    for (const auto& text : mismatch.said) CHECK(says(*error, text));
    CHECK(says(*error, here.text()));
    CHECK(says(*error, there.text()));
    CHECK(data.untouched());
    CHECK(error_of([&] { barrier(world); })->kind() == ErrorKind::poisoned);
  });
}

}  // namespace

TEST_CASE("C007 C008: calls that do not match are told on every rank, naming both values and both places") {
  int turn = 0;
  for (const Mismatch& mismatch : mismatches()) {
    CAPTURE(mismatch.said.front());
    for (const std::size_t count : {8, 20000}) {
      for (const bool registered : {false, true}) {
        CAPTURE(count);
        CAPTURE(registered);
        must_be_told(mismatch, fresh_rendezvous(), count, registered, ++turn % ranks());
      }
    }
  }
}

// C008, second form: nothing tells two equal operations apart. A mistake of the program that nobody can see; it must
// only not hang.
TEST_CASE("C008: equal operations in another order are taken for each other") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    std::vector<std::int32_t> a(4, 1);
    std::vector<std::int32_t> b(4, 10);
    all_reduce(world, std::span(rank == 0 ? a : b), Sum{});
    all_reduce(world, std::span(rank == 0 ? b : a), Sum{});
    const std::int32_t first = 1 + 10 * (ranks() - 1);
    const std::int32_t second = 10 + (ranks() - 1);
    CHECK(a == std::vector<std::int32_t>(4, rank == 0 ? first : second));
    CHECK(b == std::vector<std::int32_t>(4, rank == 0 ? second : first));
  });
}

TEST_CASE("C007: a message that is not the one expected is named with both places, and not delivered") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    std::vector<float> data(3000, static_cast<float>(rank));
    if (rank == 0) send(world, std::span<const float>(data), 1, {}, here);
    if (rank != 1) return;
    const auto error = error_of([&] { recv(world, std::span(data).first(2999), 0, {}, there); });
    REQUIRE(error);
    CAPTURE(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::mismatch);
    CHECK(error->peer() == 0);
    for (const std::string& text : {std::string("2999"), std::string("3000"), here.text(), there.text()}) {
      CHECK(says(*error, text));
    }
    CHECK(data == std::vector<float>(3000, 1.0F));
  });
}

// A send returns as soon as its message is on its way, so it is the sender's next call that tells it; one that still
// waits is told in its own.
TEST_CASE("C007: who sent a message that nobody expected is told so by its receiver, with both places") {
  on_ranks(ranks(), [](int rank) {
    for (const std::size_t count : {std::size_t{3000}, std::size_t{4} << 20}) {
      CAPTURE(count);
      World world = join_again("unexpected-" + std::to_string(count), rank, ranks());
      std::vector<float> data(count, static_cast<float>(rank));
      if (rank > 1) continue;
      const auto error = error_of([&] {
        if (rank == 1) recv(world, std::span(data).first(count - 1), 0, {}, there);
        send(world, std::span<const float>(data), 1, {}, here);
        barrier(world);
      });
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::mismatch);
      for (const std::string& text : {std::to_string(count), std::to_string(count - 1), here.text(), there.text()}) {
        CHECK(says(*error, text));
      }
      CHECK(data == std::vector<float>(count, static_cast<float>(rank)));
    }
  });
}

// They waited for one another in different communicators, and each was told of its own place only.
TEST_CASE("C007: ranks that call on different communicators are told both places") {
  for (int odd = 0; odd < ranks(); ++odd) {
    CAPTURE(odd);
    on_ranks(ranks(), [&](int rank) {
      World world = join<TestTransport>();
      World part = world.split(0, 0);
      std::vector<float> data(3000, static_cast<float>(rank));
      const std::vector<float> before = data;
      const CallOptions soon{.timeout = 500ms};
      const auto error = error_of([&] {
        rank == odd ? all_reduce(part, std::span(data), Sum{}, soon, there)
                    : all_reduce(world, std::span(data), Sum{}, soon, here);
      });
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(says(*error, here.text()));
      CHECK(says(*error, there.text()));
      CHECK((says(*error, "it waits in all_reduce (operation ") ||
             says(*error, "it last waited in all_reduce (operation ")));
      CHECK(data == before);
    });
  }
}

// Looking for the other's words over Tcp threw away what it had sent for the communicator that it waited in.
TEST_CASE("C007: a communicator goes on after one that was split from it waited in vain") {
  on_ranks(ranks(), [&](int rank) {
    World world = join<TestTransport>();
    World part = world.split(0, 0);
    std::vector<float> data(30000, static_cast<float>(rank + 1));
    if (rank == 0) {
      const auto error = error_of([&] { barrier(part, {.timeout = 300ms}, there); });
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(says(*error, there.text()));
      CHECK(says(*error, here.text()));
    }
    all_reduce(world, std::span(data), Sum{}, {.timeout = 20s}, here);
    CHECK(data == std::vector<float>(data.size(), static_cast<float>(ranks() * (ranks() + 1) / 2)));
  });
}

// A rank has no communicator that it is not a member of. What is left to do wrong is to name a rank that is none there,
// ...
TEST_CASE("ranks outside a part of the world are refused there by name, and it goes on") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    World part = world.split(rank == ranks() - 1 ? 1 : 0, 0);
    const std::string outside = std::to_string(part.size());
    std::vector<float> data(10, 1.0F);
    const std::vector<float> before = data;
    const auto refused = [&](auto call) {
      const auto error = error_of(call);
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::argument);
      CHECK(says(*error, outside));
      CHECK(says(*error, here.text()));
    };
    refused([&] { broadcast(part, std::span(data), part.size(), {}, here); });
    refused([&] { send(part, std::span<const float>(data), part.size(), {}, here); });
    refused([&] { recv(part, std::span(data), part.size(), {}, here); });
    CHECK(data == before);
    all_reduce(part, std::span(data), Sum{});
    CHECK(data[9] == static_cast<float>(part.size()));
    barrier(world);
  });
}

// ... and to call in one communicator what the others call in another. Nobody comes to where another waits: the first
// whose deadline passes names one who did not, and the others learn of it, since the one is a part of the other.
TEST_CASE("a collective that is called in different communicators ends at the deadline on every rank") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    World part = world.split(0, 0);
    std::vector<float> data(8, static_cast<float>(rank));
    CallOptions options;
    options.timeout = 500ms;
    const auto error = error_of(
        [&] { all_reduce(rank == 0 ? world : part, std::span(data), Sum{}, options, rank == 0 ? here : there); });
    REQUIRE(error);
    CAPTURE(std::string(error->what()));
    CHECK((error->kind() == ErrorKind::timeout || error->kind() == ErrorKind::poisoned));
    CHECK(says(*error, "did not take part within 0.5 s"));
    CHECK(says(*error, (rank == 0 ? here : there).text()));
    CHECK((error->peer() != rank || says(*error, "gave up")));
    CHECK(data == std::vector<float>(8, static_cast<float>(rank)));
  });
}

TEST_CASE("C002: an input that overlaps the output at a shift is refused, and the others do not wait for ever") {
  const int count = ranks();
  on_ranks(count, [&](int rank) {
    World world = join<TestTransport>();
    const auto each = std::size_t{100};
    std::vector<float> whole(each * static_cast<std::size_t>(count) + 1, 0.0F);
    const std::span<float> output(whole.data(), whole.size() - 1);
    const std::size_t own = each * static_cast<std::size_t>(rank);
    std::fill_n(whole.begin() + static_cast<std::ptrdiff_t>(own), each, static_cast<float>(rank + 1));
    all_gather(world, output.subspan(own, each), output);  // its own place is no overlap
    for (std::size_t i = 0; i < output.size(); ++i) CHECK(output[i] == static_cast<float>(i / each + 1));

    if (rank == 0) {
      const auto error =
          error_of([&] { all_gather(world, std::span<const float>(whole).subspan(own + 1, each), output); });
      REQUIRE(error);
      CHECK(error->kind() == ErrorKind::argument);
      CHECK(says(*error, "input and output overlap"));
      CHECK_FALSE(world.poisoned());
      return;  // and leaves
    }
    const auto started = Clock::now();
    const auto error = error_of([&] { all_gather(world, output.subspan(own, each), output); });
    REQUIRE(error);
    CHECK(error->peer() == 0);
    CHECK(Clock::now() - started < 10s);
  });
}

TEST_CASE("C017: all_gather of unequal lengths names the lengths on every rank; all_gather_v takes them") {
  const int count = ranks();
  if (count != 3) return;
  const std::vector<std::size_t> lengths{3, 4, 3};
  on_ranks(count, [&](int rank) {
    const std::size_t length = lengths[static_cast<std::size_t>(rank)];
    std::vector<std::int32_t> mine(length, rank);
    std::vector<std::int32_t> whole(10, -1);
    {
      World world = join<TestTransport>();
      all_gather_v(world, mine, std::span(whole), lengths);
      CHECK(whole == std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 1, 2, 2, 2});
      std::vector<std::int32_t> equal(3 * length, -1);
      const auto error = error_of([&] { all_gather(world, mine, std::span(equal)); });
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::mismatch);
      CHECK(says(*error, "the number of elements is "));
      CHECK(says(*error, "9 on rank "));
      CHECK(says(*error, "12 on rank 1"));
      CHECK(equal == std::vector<std::int32_t>(3 * length, -1));
    }
  });
}
