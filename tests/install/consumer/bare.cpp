// SPDX-License-Identifier: Apache-2.0
// Another project's program above the waterline: two ranks as threads add 1 and 2.
#include <array>
#include <cstdio>
#include <span>
#include <thread>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/join.hpp"

int main() {
  auto worlds = tandem::join_threads(2);
  std::array<float, 2> values{1.0F, 2.0F};
  std::thread other([&] { tandem::all_reduce(worlds[1], std::span(values).subspan(1, 1), tandem::Sum{}); });
  tandem::all_reduce(worlds[0], std::span(values).subspan(0, 1), tandem::Sum{});
  other.join();
  std::printf("sum %g\n", static_cast<double>(values[0]));
  return values[0] == 3.0F && values[1] == 3.0F ? 0 : 1;
}
