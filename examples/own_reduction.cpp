// SPDX-License-Identifier: Apache-2.0
// A reduction of your own over a struct of your own: of each hour, the highest temperature and where it was measured.
#include <array>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <span>
#include <string>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/comm/spawn.hpp"

// Anything that may be copied byte by byte can travel.
struct Reading {
  float degrees;
  int station;
};

// Called with one rank's reading and what has been reduced so far, in a fixed order. Equal temperatures go to the lower
// station, so that the answer does not depend on that order.
struct Hottest {
  Reading operator()(Reading one, Reading so_far) const {
    if (one.degrees == so_far.degrees) return one.station < so_far.station ? one : so_far;
    return one.degrees > so_far.degrees ? one : so_far;
  }
};

int compare() {
  auto world = tandem::join<tandem::ShmRing>();

  // Every rank is a station: the first is warm at night, the second at noon, the third never.
  constexpr std::array<std::array<float, 4>, 3> measured{{{14, 15, 16, 15}, {8, 15, 27, 20}, {5, 6, 7, 6}}};
  std::array<Reading, 4> day{};
  for (std::size_t hour = 0; hour < day.size(); ++hour) {
    day[hour] = {measured[static_cast<std::size_t>(world.rank())][hour], world.rank()};
  }

  tandem::all_reduce(world, std::span<Reading>(day), Hottest{});

  bool right = true;
  constexpr std::array<Reading, 4> expected{{{14, 0}, {15, 0}, {27, 1}, {20, 1}}};
  for (std::size_t hour = 0; hour < day.size(); ++hour) {
    const auto& [degrees, station] = day[hour];
    if (world.rank() == 0) std::printf("%02zu:00  %g degrees at station %d\n", 6 * hour, degrees, station);
    right = right && degrees == expected[hour].degrees && station == expected[hour].station;
  }
  return right ? 0 : 1;
}

int main() {
  return tandem::spawn(3, compare, {.notice = [](const std::string& text) { std::cerr << text << std::endl; }});
}
