// SPDX-License-Identifier: Apache-2.0
// The verbs that torch.distributed has on lists of tensors, one for each rank: packed into one buffer or unpacked from
// it, with one more copy than the forms on one tensor. Decides nothing about algorithms.
//
// What each tensor may be, and how others are refused: see reductions.hpp. All tensors of a call have one dtype, each
// its own shape.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/transfers.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

namespace detail {

/// The tensors of a list, one for each rank, and the buffer in which they lie one after the other.
class TensorRow {
 public:
  /// `what` is "input" or "output", for errors.
  TensorRow(at::TensorList tensors, int ranks, const char* verb, const char* what) : verb_(verb), what_(what) {
    if (tensors.size() != static_cast<std::size_t>(ranks)) {
      refuse_tensor(verb, std::to_string(tensors.size()) + " " + what + "s are given for " + std::to_string(ranks) +
                              " ranks; give one for each");
    }
    for (std::size_t place = 0; place < tensors.size(); ++place) {
      views_.push_back(view_of(tensors[place], verb, name(place).c_str()));
      if (views_[place].dtype != views_[0].dtype) {
        refuse_tensor(verb, name(0) + " is " + name_of(views_[0].dtype) + " and " + name(place) + " " +
                                name_of(views_[place].dtype) + "; they must have one dtype");
      }
      counts_.push_back(views_[place].count);
      total_ += counts_[place];
    }
  }

  Dtype dtype() const noexcept { return views_[0].dtype; }
  const std::vector<std::size_t>& counts() const noexcept { return counts_; }
  at::Tensor empty_buffer(const at::Tensor& like) const {
    return like.new_empty({static_cast<std::int64_t>(total_)}, scalar_type_of(dtype()));
  }
  void require_count(std::size_t each) const {
    for (std::size_t place = 0; place < counts_.size(); ++place) {
      if (counts_[place] != each) {
        refuse_tensor(verb_, name(place) + " has " + std::to_string(counts_[place]) + " elements where " +
                                 std::to_string(each) + " are needed");
      }
    }
  }
  /// Outputs that share memory would get the last writer's elements.
  void require_apart() const {
    std::vector<std::size_t> order;
    for (std::size_t place = 0; place < views_.size(); ++place) {
      if (views_[place].count != 0) order.push_back(place);
    }
    std::ranges::sort(order, {}, [&](std::size_t place) { return begin_of(views_[place]); });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (overlap(views_[order[i - 1]], views_[order[i]])) {
        const auto [first, second] = std::minmax(order[i - 1], order[i]);
        refuse_tensor(verb_, name(first) + " and " + name(second) + " share memory; give each its own");
      }
    }
  }
  /// `input` may be the tensor at `own` itself (in place), and shares no memory with any other.
  void require_apart_from(const TensorView& input, const char* input_name, std::size_t own) const {
    for (std::size_t place = 0; place < views_.size(); ++place) {
      const bool is_own = place == own && input.data == views_[place].data;
      if (!is_own && overlap(input, views_[place])) {
        refuse_tensor(verb_, std::string(input_name) + " and " + name(place) +
                                 " share memory; they must be disjoint, or one and the same at this rank's place");
      }
    }
  }
  void require_apart_from(const TensorRow& inputs) const {
    for (std::size_t place = 0; place < inputs.views_.size(); ++place) {
      require_apart_from(inputs.views_[place], inputs.name(place).c_str(), views_.size());
    }
  }

  at::Tensor packed(const at::Tensor& like) const {
    at::Tensor buffer = empty_buffer(like);
    auto* to = static_cast<std::byte*>(buffer.data_ptr());
    for (const TensorView& view : views_) {
      if (view.count != 0) copy_bytes(to, view.data, view.bytes());
      to += view.bytes();
    }
    return buffer;
  }
  void unpack(const at::Tensor& buffer, at::TensorList tensors) const {
    const auto* from = static_cast<const std::byte*>(buffer.data_ptr());
    for (std::size_t place = 0; place < views_.size(); ++place) {
      const TensorView view = writable_view_of(tensors[place], verb_, name(place).c_str());
      if (view.count != 0) copy_bytes(view.data, from, view.bytes());
      from += view.bytes();
    }
  }

 private:
  std::string name(std::size_t place) const { return std::string(what_) + " " + std::to_string(place); }
  static std::uintptr_t begin_of(const TensorView& view) { return reinterpret_cast<std::uintptr_t>(view.data); }
  static bool overlap(const TensorView& a, const TensorView& b) {
    return a.count != 0 && b.count != 0 && begin_of(a) < begin_of(b) + b.bytes() &&
           begin_of(b) < begin_of(a) + a.bytes();
  }

  const char* verb_;
  const char* what_;
  std::vector<TensorView> views_;
  std::vector<std::size_t> counts_;
  std::size_t total_ = 0;
};

}  // namespace detail

/// outs[r] becomes rank r's `in`: all_gather_v with the counts of `outs`, which are the same on all ranks. `in` may be
/// outs[rank()] itself (in place).
template <class T>
void all_gather(Communicator<T>& comm, const at::Tensor& in, at::TensorList outs, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const detail::TensorRow row(outs, comm.size(), "all_gather", "output");
  row.require_apart();
  row.require_apart_from(view_of(in, "all_gather", "the input"), "the input", static_cast<std::size_t>(comm.rank()));
  const at::Tensor buffer = row.empty_buffer(in);
  all_gather_v(comm, in, buffer, row.counts(), options, site);
  row.unpack(buffer, outs);
}

/// On root outs[r] becomes rank r's `in`, all of one count. Elsewhere `outs` is not looked at.
template <class T>
void gather(Communicator<T>& comm, const at::Tensor& in, at::TensorList outs, int root, CallOptions options = {},
            CallSite site = CallSite::here()) {
  if (comm.rank() != root) return gather(comm, in, at::Tensor(), root, options, site);
  const TensorView from = view_of(in, "gather", "the input");
  const detail::TensorRow row(outs, comm.size(), "gather", "output");
  row.require_count(from.count);
  row.require_apart();
  row.require_apart_from(from, "the input", static_cast<std::size_t>(root));
  const at::Tensor buffer = row.empty_buffer(in);
  gather(comm, in, buffer, root, options, site);
  row.unpack(buffer, outs);
}

/// `out` becomes ins[rank()] of root, all of one count. Elsewhere `ins` is not looked at.
template <class T>
void scatter(Communicator<T>& comm, at::TensorList ins, const at::Tensor& out, int root, CallOptions options = {},
             CallSite site = CallSite::here()) {
  if (comm.rank() != root) return scatter(comm, at::Tensor(), out, root, options, site);
  const TensorView to = view_of(out, "scatter", "the output");
  const detail::TensorRow row(ins, comm.size(), "scatter", "input");
  row.require_count(to.count);
  row.require_apart_from(to, "the output", static_cast<std::size_t>(root));
  scatter(comm, row.packed(out), out, root, options, site);
}

/// outs[r] becomes ins[rank()] of rank r: all_to_all_v with their counts. Inputs and outputs share no memory.
template <class T>
void all_to_all(Communicator<T>& comm, at::TensorList ins, at::TensorList outs, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const detail::TensorRow from(ins, comm.size(), "all_to_all", "input");
  const detail::TensorRow to(outs, comm.size(), "all_to_all", "output");
  to.require_apart();
  to.require_apart_from(from);
  const at::Tensor buffer = to.empty_buffer(outs[0]);
  all_to_all_v(comm, from.packed(ins[0]), from.counts(), buffer, to.counts(), options, site);
  to.unpack(buffer, outs);
}

}  // namespace tandem
