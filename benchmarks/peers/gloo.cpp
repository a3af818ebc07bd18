// SPDX-License-Identifier: Apache-2.0
// gloo's calls through c10d. Tensors are views of the harness's buffers; making them is not timed.
#include "peers/gloo.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <utility>
#include <vector>

#include "tandem/tensor/scalar_type.hpp"

namespace tandem::bench {

struct Gloo::Group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  int rank = 0;
};

Gloo::Gloo(int rank, int ranks, const std::string& store_file) : group_(std::make_unique<Group>()) {
  at::set_num_threads(1);
  auto store = c10::make_intrusive<c10d::FileStore>(store_file, ranks);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
  group_->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options);
  group_->rank = rank;
  group_->gloo->barrier()->wait();
}

Gloo::~Gloo() = default;

std::function<void()> Gloo::operation(const Case& which, std::byte* input, std::byte* output) {
  if (which.dtype == Dtype::opaque) return {};
  auto* const gloo = group_->gloo.get();
  const int rank = group_->rank;
  const auto view = [&](std::byte* data, std::size_t count) {
    return at::from_blob(data, {static_cast<std::int64_t>(count)},
                         at::TensorOptions().dtype(scalar_type_of(which.dtype)));
  };
  const std::size_t slice = which.count / static_cast<std::size_t>(which.ranks);
  switch (which.verb) {
    case Verb::all_reduce:
      return [gloo, tensors = std::vector<at::Tensor>{view(input, which.count)}]() mutable {
        gloo->allreduce(tensors)->wait();
      };
    case Verb::reduce_scatter:
      return [gloo, in = view(input, which.count), out = view(output, slice)]() mutable {
        gloo->_reduce_scatter_base(out, in)->wait();
      };
    case Verb::all_gather:
      return [gloo, in = view(input, slice), out = view(output, which.count)]() mutable {
        gloo->_allgather_base(out, in)->wait();
      };
    case Verb::broadcast:
      return [gloo, tensors = std::vector<at::Tensor>{view(input, which.count)}]() mutable {
        gloo->broadcast(tensors)->wait();
      };
    case Verb::all_to_all:
      return [gloo, in = view(input, which.count), out = view(output, which.count)]() mutable {
        std::vector<std::int64_t> alike;  // empty: equal slices
        gloo->alltoall_base(out, in, alike, alike)->wait();
      };
    case Verb::send:
      return [gloo, rank, tensors = std::vector<at::Tensor>{view(input, which.count)}]() mutable {
        if (rank % 2 == 0)
          gloo->send(tensors, rank + 1, 0)->wait();
        else
          gloo->recv(tensors, rank - 1, 0)->wait();
      };
    case Verb::barrier:
      return [gloo] { gloo->barrier()->wait(); };
  }
  return {};
}

}  // namespace tandem::bench
