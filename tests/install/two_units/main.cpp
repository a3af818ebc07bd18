// SPDX-License-Identifier: Apache-2.0
// Uses a communicator that the shared library made, in both files; catches an error that crossed the border.
#include <cstdio>

#include "every_header.hpp"

tandem::Communicator<tandem::ShmRing> plugin_join();
bool plugin_catches();
void plugin_throw();
float second_sum(tandem::Communicator<tandem::ShmRing>& world, float value);

int main() {
  auto world = plugin_join();
  float value = 2.0F;
  tandem::all_reduce(world, std::span<float>(&value, 1), tandem::Sum{});
  if (value != 2.0F || second_sum(world, 3.0F) != 3.0F || world.ledger().operations != 2 || !plugin_catches()) return 1;
  try {
    plugin_throw();
  } catch (const tandem::Error&) {
    std::printf("one world of %d\n", world.size());
    return 0;
  }
  return 1;
}
