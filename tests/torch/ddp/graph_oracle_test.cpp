// SPDX-License-Identifier: Apache-2.0
// What only some backwards reach, and gradients that travel in 16 bits, against PyTorch's own C++ DDP with the options
// and hooks of the same names.
#include "support/reducer_comparison.hpp"

namespace {

using namespace tandem;
using test::compare_with_reducer;
using test::Scenario;

template <class Strategy, class Model>
void with(const Scenario& scenario) {
  compare_with_reducer<Strategy, ShmRing, Model>(scenario);
}

template <class Strategy>
void with_changing_graph() {
  const TrainerOptions options{.clip_norm = 0.7, .unused = unused_parameters::find};
  with<Strategy, test::BranchNet>({.steps = 5, .options = options, .peer = {.find_unused = true}});
  TrainerOptions in_pieces = options;
  in_pieces.piece_bytes = 1;
  with<Strategy, test::BranchNet>(
      {.steps = 3, .micro_batches = 2, .options = in_pieces, .peer = {.find_unused = true}});
}

template <class Strategy>
void with_static_graph() {
  with<Strategy, test::FixedBranchNet>({.steps = 5,
                                        .options = {.clip_norm = 0.7, .static_graph = true, .piece_bytes = 1},
                                        .peer = {.static_graph = true}});
}

}  // namespace

TEST_CASE("C055: unused_parameters::find, no element differs") {
  with_changing_graph<Ddp<>>();
  with_changing_graph<Zero<2>>();
}
TEST_CASE("C055: unused parameters keep the gradients they have, as in PyTorch") {
  const TrainerOptions zeros{.after_update = AfterUpdate::zero, .unused = unused_parameters::find};
  with<Ddp<>, test::BranchNet>({.steps = 4, .options = zeros, .peer = {.find_unused = true}});
  const TrainerOptions keep{.after_update = AfterUpdate::keep, .unused = unused_parameters::find};
  with<Ddp<>, test::BranchNet>({.steps = 4, .options = keep, .peer = {.find_unused = true}});
}
TEST_CASE("unused_parameters::find with buckets of one size, no element differs") {
  with<Ddp<>, test::BranchNet>({.steps = 3,
                                .options = {.buckets = BucketCaps::every(300'000), .unused = unused_parameters::find},
                                .peer = {.bucket_bytes = 300'000, .find_unused = true}});
}
TEST_CASE("static_graph, no element differs") {
  with_static_graph<Ddp<>>();
  with_static_graph<Zero<1>>();
  with_static_graph<Zero<3>>();
}
TEST_CASE("static_graph where every parameter is used, no element differs") {
  with<Ddp<>, test::WordNet>({.steps = 4, .options = {.static_graph = true}, .peer = {.static_graph = true}});
}
TEST_CASE("bf16_compress_hook, no element differs") {
  Scenario scenario{.steps = 4, .options = {.clip_norm = 0.7}, .peer = {.compress = at::kBFloat16}};
  with<Ddp<0, compress::bf16>, test::WordNet>(scenario);
  with<Zero<1, compress::bf16>, test::WordNet>(scenario);
  scenario.options.piece_bytes = 100'000;
  with<Zero<2, compress::bf16>, test::WordNet>(scenario);
}
TEST_CASE("fp16_compress_hook, no element differs") {
  const Scenario scenario{.steps = 4, .options = {.clip_norm = 0.7, .piece_bytes = 1}, .peer = {.compress = at::kHalf}};
  with<Ddp<0, compress::fp16>, test::WordNet>(scenario);
  with<Zero<3, compress::fp16>, test::WordNet>(scenario);
}
