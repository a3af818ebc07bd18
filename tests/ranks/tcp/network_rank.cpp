// SPDX-License-Identifier: Apache-2.0
// One rank of a job on several hosts, which network.py starts: adds numbers up until told to end, prints what it saw.
//
//   network_rank [seconds]   how long to go on; 0: three rounds
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <vector>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/transport/tcp.hpp"

int main(int count, char** arguments) {
  const int seconds = count > 1 ? std::atoi(arguments[1]) : 0;
  try {
    tandem::JoinOptions options;
    if (std::getenv("TANDEM_TIMEOUT") == nullptr) options.timeout = std::chrono::seconds(20);
    auto world = tandem::join<tandem::Tcp>(options);
    std::printf("joined\n");
    std::fflush(stdout);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (int turn = 0, go_on = 1; go_on != 0; ++turn) {
      go_on = turn < 3 || std::chrono::steady_clock::now() < end ? 1 : 0;
      tandem::all_reduce(world, std::span(&go_on, 1), tandem::Min{});  // all end together
      for (const std::size_t elements : {std::size_t{3}, std::size_t{5000}, std::size_t{300007}}) {
        std::vector<float> values(elements);
        for (std::size_t i = 0; i < elements; ++i)
          values[i] = static_cast<float>(world.rank() + 1) + static_cast<float>(i % 8);
        tandem::all_reduce(world, std::span(values), tandem::Sum{});
        for (std::size_t i = 0; i < elements; ++i) {
          const auto n = static_cast<std::size_t>(world.size());
          if (values[i] != static_cast<float>(n * (n + 1) / 2 + n * (i % 8))) {
            std::printf("wrong element %zu\n", i);
            return 3;
          }
        }
      }
    }
    const auto& ledger = world.ledger();
    std::printf("rank %d of %d: right, %s\n", world.rank(), world.size(),
                ledger.balanced() ? "ledger balanced" : "ledger NOT balanced");
    return ledger.balanced() ? 0 : 4;
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
}
