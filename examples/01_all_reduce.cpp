// SPDX-License-Identifier: Apache-2.0
// The collectives alone, without libtorch: four processes add up a row of numbers, and each gets the sums.
#include <cstdio>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/comm/spawn.hpp"

// What every process does. Under a launcher (torchrun, srun, mpirun) this would be main() itself.
int add_up() {
  auto world = tandem::join<tandem::ShmRing>();

  std::vector<float> row;  // rank 0: 0 1 2 3 4, rank 1: 10 11 12 13 14, ...
  for (int i = 0; i < 5; ++i) row.push_back(static_cast<float>(10 * world.rank() + i));

  tandem::all_reduce(world, std::span(row), tandem::Sum{});

  if (world.rank() == 0) {
    for (const float sum : row) std::printf("%g ", sum);
    const auto& moved = world.ledger();
    std::printf("\nrank 0 moved %llu bytes\n", static_cast<unsigned long long>(moved.measured));
  }
  return row == std::vector<float>{60, 64, 68, 72, 76} ? 0 : 1;
}

// The library prints nothing; what goes wrong (a rank that was killed, say) is told to `notice`.
int main() {
  return tandem::spawn(4, add_up, {.notice = [](const std::string& text) { std::cerr << text << std::endl; }});
}
