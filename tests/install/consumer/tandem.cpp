// SPDX-License-Identifier: Apache-2.0
// Another project's program with tensors: two ranks as threads add 1 and 2.
#include <ATen/ops/full.h>

#include <cstdio>
#include <thread>

#include "tandem/tandem.hpp"

int main() {
  auto worlds = tandem::join_threads(2);
  at::Tensor one = at::full({1}, 1.0);
  at::Tensor two = at::full({1}, 2.0);
  std::thread other([&] { tandem::all_reduce(worlds[1], two, tandem::Sum{}); });
  tandem::all_reduce(worlds[0], one, tandem::Sum{});
  other.join();
  std::printf("sum %g\n", one.item<double>());
  return one.item<float>() == 3.0F && two.item<float>() == 3.0F ? 0 : 1;
}
