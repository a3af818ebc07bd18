// SPDX-License-Identifier: Apache-2.0
// Zero against PyTorch's own C++ DDP, at every level: sharded state changes no bit of any weight.
#include "support/reducer_comparison.hpp"
#if defined(TANDEM_TEST_BOTH_TRANSPORTS)
#include "tandem/transport/tcp.hpp"
#endif

namespace {

using tandem::test::compare_with_reducer;
using tandem::test::Scenario;

/// The options that every level has, from PyTorch's defaults to all at once.
template <class Strategy>
void at_level(tandem::Placement placement = tandem::Placement::automatic) {
  const auto options = [&](tandem::TrainerOptions it) {
    it.placement = placement;
    return it;
  };
  compare_with_reducer<Strategy>({.steps = 8, .options = options({})});
  compare_with_reducer<Strategy>({.steps = 6, .options = options({.clip_norm = 0.7})});
  compare_with_reducer<Strategy>({.steps = 4,
                                  .micro_batches = 3,
                                  .options = options({.clip_norm = 0.7, .after_update = tandem::AfterUpdate::zero})});
  compare_with_reducer<Strategy>(
      {.options = options({.buckets = tandem::BucketCaps::list({100'000, 1'500'000, 2'000'000})}),
       .peer = {.bucket_bytes_list = {100'000, 1'500'000, 2'000'000}}});
  // Buckets in pieces of one parameter each.
  compare_with_reducer<Strategy>({.steps = 4, .options = options({.piece_bytes = 1})});
}

}  // namespace

TEST_CASE("level 1: no element differs") { at_level<tandem::Zero<1>>(); }
TEST_CASE("level 2: no element differs") { at_level<tandem::Zero<2>>(); }
TEST_CASE("level 3: no element differs") { at_level<tandem::Zero<3>>(); }
TEST_CASE("levels 1 and 2 with one copy of the parameters: no element differs") {
  at_level<tandem::Zero<1>>(tandem::Placement::shared);
  at_level<tandem::Zero<2>>(tandem::Placement::shared);
}

#if defined(TANDEM_TEST_BOTH_TRANSPORTS)
TEST_CASE("levels 1 and 2 over Tcp: no element differs") {
  const Scenario scenario{.steps = 5, .micro_batches = 2, .options = {.clip_norm = 0.7, .piece_bytes = 500'000}};
  compare_with_reducer<tandem::Zero<1>, tandem::Tcp>(scenario);
  compare_with_reducer<tandem::Zero<2>, tandem::Tcp>(scenario);
}
#endif
