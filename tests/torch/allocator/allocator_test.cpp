// SPDX-License-Identifier: Apache-2.0
// adopt_allocator: plain tensors go Direct with the same bits, memory comes and goes, many threads, a full arena, who
// outlives whom, failure and fork.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

using tandem::test::differing;

namespace {

using World = tandem::Communicator<tandem::ShmRing>;

bool in_arena(const World& world, const at::Tensor& tensor) {
  return world.arena()->contains(tensor.data_ptr(), tensor.nbytes());
}
World join_with(std::size_t arena_bytes, std::string& noticed) {
  tandem::JoinOptions options;
  options.arena_bytes = arena_bytes;
  options.notice = [&noticed](const std::string& text) { noticed += text + "\n"; };
  return tandem::join<tandem::ShmRing>(options);
}
at::Tensor drawn(int rank, std::int64_t count) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank));
  return at::randn({count}, generator);
}

/// Losses and weights of a short training.
std::vector<at::Tensor> trained(World& world, int rank, bool expect_arena) {
  tandem::Trainer<tandem::test::WordNet, tandem::Ddp<>, tandem::ShmRing> trainer(
      world, [] { return std::make_shared<tandem::test::WordNet>(); }, tandem::test::word_loss,
      [](std::vector<at::Tensor> owned) { return torch::optim::AdamW(std::move(owned), 1e-3); });
  std::vector<at::Tensor> result;
  for (int step = 0; step < 3; ++step) {
    const tandem::test::Batch batch(rank, step);
    result.push_back(at::full({1}, trainer.step(batch.tokens, batch.target)));
  }
  for (const at::Tensor& value : trainer.model().parameters()) {
    CHECK(in_arena(world, value) == expect_arena);
    result.push_back(value.detach().clone());
  }
  return result;
}

}  // namespace

TEST_CASE("plain tensors go Direct, with the bits they have without") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    const std::int64_t count = 50'021;
    const at::Tensor expected = drawn(rank, count);
    CHECK_FALSE(in_arena(world, expected));
    tandem::all_reduce(world, expected, tandem::Sum{});

    const auto memory = tandem::adopt_allocator(world);
    const at::Tensor tensor = drawn(rank, count);
    CHECK(in_arena(world, tensor));
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0);
    CHECK(at::empty({3}).storage().data_ptr().get() != nullptr);
    CHECK(at::empty({0}).numel() == 0);
    tandem::Supposing all;
    all.registration = tandem::Registration::all;
    const auto said = tandem::explain(world, tandem::Verb::all_reduce, tensor.nbytes(), all);
    const auto before = world.ledger();
    tandem::all_reduce(world, tensor, tandem::Sum{});
    CHECK((world.ledger() - before).measured == said.bytes);
    if (world.size() > 1) CHECK(said.path == tandem::Path::direct);
    CHECK(differing(tensor, expected) == 0);

    const at::Tensor forced = drawn(rank, count);
    tandem::all_reduce<tandem::Direct>(world, forced, tandem::Sum{});  // refuses what is not registered
    const at::Tensor whole = at::empty({count * world.size()});
    tandem::all_gather<tandem::Direct>(world, forced, whole);
    const at::Tensor part = at::empty({count});
    tandem::reduce_scatter<tandem::Direct>(world, whole, part, tandem::Max{});
    CHECK(differing(part, expected) == 0);
    tandem::broadcast<tandem::Direct>(world, whole, 0);

    // What libtorch does with storages: growing, sharing, copying.
    at::Tensor grown = at::arange(10, at::kFloat);
    grown.resize_({100'000});
    CHECK(in_arena(world, grown));
    CHECK(grown[9].item<float>() == 9.0F);
    const at::Tensor lazy = at::_lazy_clone(grown);
    lazy.add_(1);
    CHECK(grown[9].item<float>() == 9.0F);
    CHECK(lazy[9].item<float>() == 10.0F);
    tandem::barrier(world);
  });
}

TEST_CASE("a training ends with the same weights, in the arena") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    const auto expected = trained(world, rank, false);
    const auto memory = tandem::adopt_allocator(world);
    const auto weights = trained(world, rank, true);
    CHECK(differing(expected, weights) == 0);
    CHECK(memory.counts().fallbacks == 0);
    CHECK(world.ledger().balanced());
  });
}

// oneDNN takes memory raw, keeps it, and gives it back to whatever allocator is installed then.
TEST_CASE("memory taken raw comes back to whoever it was taken from, before, during and after") {
  tandem::test::on_ranks(1, [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    void* const before = c10::GetCPUAllocator()->raw_allocate(1000);
    void* during = nullptr;
    {
      auto memory = tandem::adopt_allocator(world);
      during = c10::GetCPUAllocator()->raw_allocate(1000);
      CHECK(world.arena()->contains(during, 1000));
      CHECK(memory.counts().blocks == 1);
      c10::GetCPUAllocator()->raw_deallocate(before);
      CHECK(memory.counts().blocks == 1);
    }
    void* const after = c10::GetCPUAllocator()->raw_allocate(1000);
    CHECK_FALSE(world.arena()->contains(after, 1000));
    CHECK(world.arena().use_count() > 1);
    const auto held = world.arena().use_count();
    c10::GetCPUAllocator()->raw_deallocate(during);
    CHECK(world.arena().use_count() == held - 1);  // the pool let go with its last block
    c10::GetCPUAllocator()->raw_deallocate(after);
  });
}

TEST_CASE("a handle that was moved from counts nothing and trims nothing; the new one has the pool") {
  tandem::test::on_ranks(1, [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    auto first = tandem::adopt_allocator(world);
    at::Tensor tensor = at::ones({1000});
    auto second = std::move(first);
    CHECK(second.counts().blocks == 1);
    tensor.reset();
    CHECK(second.counts().bytes_cached > 0);
    first.trim();
    CHECK(first.counts().allocations == 0);
    CHECK(first.counts().bytes_cached == 0);
    CHECK(second.counts().bytes_cached > 0);
    second.trim();
    CHECK(second.counts().bytes_cached == 0);
  });
}

TEST_CASE("many threads allocate and free at the same time") {
  tandem::test::on_ranks(1, [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    auto memory = tandem::adopt_allocator(world);
    std::vector<std::thread> threads;
    std::vector<int> wrong(4);
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        std::minstd_rand random(static_cast<unsigned>(thread + 1));
        std::vector<std::pair<at::Tensor, std::int64_t>> kept;
        for (int turn = 0; turn < 3000; ++turn) {
          const auto count = static_cast<std::int64_t>((1U << (random() % 15)) + random() % 100);
          const std::int64_t value = thread * 10'000 + turn;
          kept.emplace_back(at::full({count}, value, at::kLong), value);
          if (kept.size() < 20) continue;
          const std::size_t victim = random() % kept.size();
          const auto& [tensor, expected] = kept[victim];
          wrong[static_cast<std::size_t>(thread)] += !tensor.eq(expected).all().item<bool>();
          kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(victim));
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4));
    CHECK(memory.counts().blocks == 0);
    CHECK(memory.counts().bytes_in_use == 0);
    CHECK(memory.counts().bytes_cached > 0);
    CHECK(memory.counts().allocations > 12'000);
    memory.trim();
    CHECK(memory.counts().bytes_cached == 0);
  });
}

TEST_CASE("when the arena is full the previous allocator serves, counted, and noticed once") {
  tandem::test::on_ranks(1, [](int) {
    std::string noticed;
    auto world = join_with(std::size_t{16} << 20, noticed);
    auto memory = tandem::adopt_allocator(world);
    const std::int64_t mebi = 1 << 18;  // floats
    {
      std::vector<at::Tensor> small;  // as much as there is, in blocks too small for what follows
      for (int i = 0; i < 14; ++i) small.push_back(at::ones({mebi}));
      CHECK(memory.counts().fallbacks == 0);
    }
    CHECK(memory.counts().bytes_cached > (std::size_t{13} << 20));
    const at::Tensor large = at::ones({12 * mebi});  // only when these went back
    CHECK(in_arena(world, large));
    CHECK(memory.counts().bytes_cached == 0);
    CHECK(noticed.empty());
    const at::Tensor beyond = at::ones({12 * mebi});
    CHECK_FALSE(in_arena(world, beyond));
    const at::Tensor again = at::ones({12 * mebi});
    CHECK(beyond.eq(again).all().item<bool>());
    CHECK(memory.counts().fallbacks == 2);
    CHECK(noticed.find("the arena is full") != std::string::npos);
    CHECK(noticed.find("the arena is full") == noticed.rfind("the arena is full"));
    CHECK(in_arena(world, at::ones({10})));
  });
}

TEST_CASE("tensors outlive the handle and the communicator; handles may be nested and go in any order") {
  tandem::test::on_ranks(1, [](int) {
    at::Tensor kept;
    {
      auto world = tandem::join<tandem::ShmRing>();
      auto outer = std::make_optional(tandem::adopt_allocator(world));
      kept = at::full({1000}, 3.0F);
      CHECK(in_arena(world, kept));
      auto other = tandem::join_threads(1);
      auto inner = std::make_optional(tandem::adopt_allocator(other[0]));
      CHECK(in_arena(other[0], at::ones({5})));
      outer.reset();
      CHECK(in_arena(other[0], at::ones({5})));
      CHECK(in_arena(world, kept));
      inner.reset();
      const at::Tensor plain = at::ones({5});
      CHECK_FALSE(in_arena(world, plain));
      CHECK_FALSE(in_arena(other[0], plain));
      const auto third = tandem::adopt_allocator(world);
      CHECK(in_arena(world, at::ones({5})));
    }
    kept.resize_({200'000});  // by the allocator that made it, which serves no more
    CHECK(kept[999].item<float>() == 3.0F);
    kept.fill_(4);
    CHECK(kept.eq(4).all().item<bool>());
    kept.reset();
    CHECK(at::ones({5}).sum().item<float>() == 5.0F);
  });
}

TEST_CASE(
    "after a failure tensors keep their content and new ones are private; a process that joins again adopts again") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    std::optional<tandem::AdoptedAllocator> first;
    at::Tensor kept;
    {
      auto world = tandem::join<tandem::ShmRing>();
      first.emplace(tandem::adopt_allocator(world));
      kept = drawn(rank, 300'000);
      const at::Tensor small = at::full({7}, 2.0F);
      world.poison(tandem::Error(tandem::ErrorKind::poisoned, "tandem: enough", rank, rank));
      CHECK_FALSE(in_arena(world, kept));
      const at::Tensor fresh = at::full({300'000}, 9.0F);
      CHECK(first->counts().fallbacks > 0);
      CHECK(small.eq(2).all().item<bool>());
      CHECK(fresh.eq(9).all().item<bool>());
    }
    CHECK(differing(kept, drawn(rank, 300'000)) == 0);
    auto again = tandem::join<tandem::ShmRing>();
    const auto second = tandem::adopt_allocator(again);
    first.reset();
    const at::Tensor tensor = drawn(rank, 50'000);
    tandem::all_reduce<tandem::Direct>(again, tensor, tandem::Sum{});
    tandem::all_reduce(again, kept, tandem::Max{});
    tandem::barrier(again);
  });
}

TEST_CASE("a child that fork() made has tensors of its own") {
  tandem::test::on_ranks(1, [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    const auto memory = tandem::adopt_allocator(world);
    auto parents = std::make_unique<at::Tensor>(at::ones({1000}));
    at::ones({1000});  // leaves a block in the free list
    const pid_t child = ::fork();
    if (child == 0) {
      const at::Tensor own = at::full({1000}, 2.0F);
      const bool right = own.sum().item<float>() == 2000.0F;
      parents.reset();
      ::_exit(right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(parents->sum().item<float>() == 1000.0F);
  });
}
