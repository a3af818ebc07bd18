// SPDX-License-Identifier: Apache-2.0
// Mesh: proofs at compile time where they can be, the sentences of its errors at run time.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "tandem/mesh/mesh.hpp"

using namespace tandem;

namespace {

struct HeadAxis {  // a user's own
  static constexpr const char* name = "head";
};

using Line = Mesh<Axis<DataAxis>>;
using Grid24 = Mesh<Axis<DataAxis, 2>, Axis<StageAxis, 4>>;
using Rest4 = Mesh<Axis<DataAxis>, Axis<StageAxis, 4>>;
using Cube = Mesh<Axis<DataAxis, 2>, Axis<HeadAxis>, Axis<StageAxis, 3>>;

/// Every rank has its own coordinates, these lead back to it, and counting ranks is counting coordinates.
template <class M>
constexpr bool is_bijection(int world_size) {
  const M mesh(world_size);
  typename M::Coordinates expected{};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.coordinates(rank) != expected || mesh.rank(expected) != rank) return false;
    for (std::size_t axis = expected.size(); axis-- > 0;) {  // the next coordinates, the last axis fastest
      if (++expected[axis] < mesh.extents()[axis]) break;
      expected[axis] = 0;
    }
  }
  return expected == typename M::Coordinates{};
}

/// The groups of an axis cut the world into parts of equal size, ordered by coordinate, and the color names them.
/// (Every member has the group's color, and each color has as many ranks as a group: so no two groups share one.)
template <class M, class Tag>
constexpr bool is_partition(int world_size) {
  const M mesh(world_size);
  const int groups = mesh.size() / mesh.template extent<Tag>();
  std::array<int, 64> ranks_of_color{};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const AxisRanks group = mesh.template ranks_along<Tag>(rank);
    const int color = mesh.template color<Tag>(rank);
    if (group.size() != mesh.template extent<Tag>() || color < 0 || color >= groups) return false;
    if (group[mesh.template coordinate<Tag>(rank)] != rank) return false;
    int position = 0;
    for (const int other : group) {
      if (other != group[position] || mesh.template coordinate<Tag>(other) != position) return false;
      if (mesh.template color<Tag>(other) != color) return false;
      ++position;
    }
    if (position != group.size()) return false;
    ++ranks_of_color[static_cast<std::size_t>(color)];
  }
  for (int color = 0; color < groups; ++color) {
    if (ranks_of_color[static_cast<std::size_t>(color)] != mesh.template extent<Tag>()) return false;
  }
  return true;
}

template <class M, class... Tags>
constexpr bool holds(int most) {
  int fitting = 0;
  for (int size = -1; size <= most; ++size) {
    if (!M::fits(size)) continue;
    ++fitting;
    if (!is_bijection<M>(size) || !(is_partition<M, Tags>(size) && ...)) return false;
  }
  return fitting > 0;
}

static_assert(holds<Line, DataAxis>(24));
static_assert(holds<Grid24, DataAxis, StageAxis>(24));
static_assert(holds<Rest4, DataAxis, StageAxis>(24));
static_assert(holds<Cube, DataAxis, HeadAxis, StageAxis>(24));
static_assert(holds<Mesh<Axis<DataAxis, 1>, Axis<HeadAxis, 1>, Axis<StageAxis>>, DataAxis, HeadAxis, StageAxis>(8));

// Ranks 0 to 3 are the stages of the first data coordinate: the outer axis varies slowest.
static_assert(Grid24(8).coordinate<DataAxis>(3) == 0 && Grid24(8).coordinate<StageAxis>(3) == 3);
static_assert(Grid24(8).coordinate<DataAxis>(4) == 1 && Grid24(8).coordinate<StageAxis>(4) == 0);
static_assert(Grid24(8).ranks_along<DataAxis>(5)[0] == 1 && Grid24(8).ranks_along<DataAxis>(5)[1] == 5);
static_assert(Grid24(8).ranks_along<StageAxis>(5)[0] == 4 && Grid24(8).ranks_along<StageAxis>(5)[3] == 7);
static_assert(Grid24(8).rank({1, 2}) == 6);

static_assert(Grid24::fits(8) && !Grid24::fits(4) && !Grid24::fits(16) && !Grid24::fits(0) && !Grid24::fits(-8));
static_assert(Rest4::fits(4) && Rest4::fits(12) && !Rest4::fits(6) && !Rest4::fits(0));
static_assert(Line::fits(1) && Line::fits(7) && !Line::fits(0));
static_assert(Rest4(12).extent<DataAxis>() == 3 && Rest4(12).extent<StageAxis>() == 4);
static_assert(Cube(12).extents() == std::array<int, 3>{2, 2, 3});
static_assert(Cube::axes == 3 && Cube::has_axis<HeadAxis> && !Grid24::has_axis<HeadAxis>);
static_assert(std::is_same_v<mesh_product<Mesh<Axis<DataAxis, 2>>, Mesh<Axis<StageAxis, 4>>>, Grid24>);
static_assert(AxisTag<HeadAxis> && !AxisTag<int> && AxisType<Axis<HeadAxis, 3>> && !AxisType<HeadAxis>);
static_assert(std::forward_iterator<AxisRanks::Iterator>);

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::argument);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("a world that does not fit is refused with its equation") {
  CHECK(refusal([] { Mesh<Axis<DataAxis, 2>, Axis<StageAxis, 3>>(8); }) ==
        "tandem: world size 8 is not 2 x 3 (data x stage)");
  CHECK(refusal([] { Rest4(6); }) == "tandem: world size 6 is not a multiple of 4 (data x stage)");
  CHECK(refusal([] { Cube(8); }) == "tandem: world size 8 is not a multiple of 2 x 3 (data x head x stage)");
  CHECK(refusal([] { Mesh<Axis<StageAxis, 4>>(3); }) == "tandem: world size 3 is not 4 (stage)");
  CHECK(refusal([] { Line(0); }) == "tandem: world size 0 is not a number of ranks");
}

TEST_CASE("ranks and coordinates outside the mesh are refused by name") {
  const Grid24 mesh(8);
  for (const int rank : {-1, 8, 1 << 30}) {
    const std::string who =
        "tandem: rank " + std::to_string(rank) + " does not lie in a mesh of 8 ranks, 2 x 4 (data x stage)";
    CHECK(refusal([&] { mesh.coordinates(rank); }) == who);
    CHECK(refusal([&] { mesh.coordinate<StageAxis>(rank); }) == who);
    CHECK(refusal([&] { mesh.ranks_along<DataAxis>(rank); }) == who);
    CHECK(refusal([&] { mesh.color<DataAxis>(rank); }) == who);
  }
  CHECK(refusal([&] {
          mesh.rank({1, 4});
        }) == "tandem: coordinate 4 does not lie on the stage axis of a mesh of 2 x 4 (data x stage)");
  CHECK(refusal([&] {
          mesh.rank({-1, 0});
        }) == "tandem: coordinate -1 does not lie on the data axis of a mesh of 2 x 4 (data x stage)");
}

TEST_CASE("a large mesh is no different") {
  const Cube mesh(6 * 1000);
  std::set<std::array<int, 3>> seen;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    seen.insert(mesh.coordinates(rank));
    REQUIRE(mesh.rank(mesh.coordinates(rank)) == rank);
  }
  CHECK(seen.size() == 6000);
  CHECK(Line(1'000'000).ranks_along<DataAxis>(77).size() == 1'000'000);
}
