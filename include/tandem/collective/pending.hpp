// SPDX-License-Identifier: Apache-2.0
// An all-reduce in two phases, for overlap without a thread: begun when its data is ready, moved on by whoever has a
// moment, finished when the result is needed.
#pragma once

#include <span>
#include <utility>

#include "tandem/collective/all_reduce.hpp"

namespace tandem {

/// An all-reduce that has been announced. Move-only; the buffer must live, and the communicator stay where it is, until
/// finish() has returned. One that is dropped unfinished gives the communicator up, since peers wait for this rank.
template <ControlTransport T, Element E, class Op>
class [[nodiscard]] PendingAllReduce {
 public:
  PendingAllReduce(detail::Protocol<T>& protocol, const Call& call, const CallOptions& options, std::span<E> data,
                   const Op& op, const ChunkTable& table)
      : protocol_(&protocol), data_(data), op_(op), table_(table) {
    const std::uint64_t place = protocol.host().arena()->offset_of(data.data(), data.size_bytes());
    operation_ = protocol.post(call, options, place, place);
    protocol.hold(operation_, this, advance);
  }
  PendingAllReduce(PendingAllReduce&& other) noexcept
      : protocol_(std::exchange(other.protocol_, nullptr)),
        data_(other.data_),
        op_(other.op_),
        table_(other.table_),
        operation_(std::move(other.operation_)),
        stage_(other.stage_),
        moved_(other.moved_) {
    if (protocol_ != nullptr) protocol_->held().owner_moved(operation_.sequence, this);
  }
  PendingAllReduce& operator=(PendingAllReduce&&) = delete;
  ~PendingAllReduce() {
    if (protocol_ == nullptr) return;
    protocol_->held().remove(operation_.sequence);
    if (stage_ == Stage::finished || protocol_->poison()->is_set() || protocol_->endpoint().forked()) return;
    protocol_->give_up(Error(ErrorKind::poisoned,
                             "tandem: rank " + std::to_string(protocol_->rank()) + " dropped all_reduce (operation " +
                                 std::to_string(operation_.sequence) + ", " + operation_.call.site.text() +
                                 ") without finishing it",
                             protocol_->rank(), protocol_->rank(), "all_reduce"));
  }

  /// Does what can be done without waiting: folds this rank's part once all ranks have announced theirs. True when
  /// nothing is left to do. Throws as finish() does, when ranks disagree.
  bool poll() {
    if (stage_ == Stage::finished) return true;
    protocol_->require_usable();
    if (stage_ == Stage::posted && protocol_->all_posted(operation_)) fold_if_direct();
    if (stage_ == Stage::folded && protocol_->all_done(operation_)) close();
    return stage_ == Stage::finished;
  }
  /// Waits until the result is in the buffer. Older operations that are pending move on first.
  void finish() {
    if (stage_ == Stage::finished) return;
    protocol_->require_usable();
    protocol_->await_posts(operation_);
    advance(this);
    if (stage_ == Stage::folded) {
      protocol_->await_done(operation_);
      close();
    }
  }

 private:
  enum class Stage { posted, by_channels, folded, finished };

  /// As far as it goes without waiting for the others' results, except that by channels there is no such point.
  static void advance(void* pending) {
    auto& self = *static_cast<PendingAllReduce*>(pending);
    if (self.stage_ == Stage::posted) self.fold_if_direct();
    if (self.stage_ == Stage::by_channels) {
      detail::all_reduce_by_channels<Auto, T, E>(*self.protocol_, self.operation_, self.op_, self.table_,
                                                 self.data_.data(), self.data_.data());
      self.settle();
    }
  }
  void fold_if_direct() {
    protocol_->compare_posts(operation_);
    if (protocol_->size() > 1 && !protocol_->all_registered(operation_)) {
      stage_ = Stage::by_channels;  // needs both ends at work at the same time: left to finish()
      return;
    }
    if (protocol_->size() == 1) {
      const E* const source = data_.data();
      E* const destination = data_.data();
      fold(op_, 1, &source, 1, &destination, 1, data_.size());
    } else {
      moved_ = detail::fold_owned<T, E>(*protocol_, operation_, op_, table_);
    }
    protocol_->post_done(operation_);
    protocol_->held().mark_advanced(operation_.sequence);
    stage_ = Stage::folded;
  }
  void close() {
    if (protocol_->size() > 1) protocol_->require_attached(operation_);
    const Range owned = owned_range(table_.count(), sizeof(E), protocol_->size(), protocol_->rank());
    protocol_->finish(operation_, predict::direct_all_reduce(owned.size() * sizeof(E), protocol_->size()), moved_);
    settle();
  }
  void settle() noexcept {
    protocol_->held().remove(operation_.sequence);
    stage_ = Stage::finished;
  }

  detail::Protocol<T>* protocol_;
  std::span<E> data_;
  Op op_;
  ChunkTable table_;
  detail::Operation operation_;
  Stage stage_ = Stage::posted;
  std::uint64_t moved_ = 0;
};

/// Announces an in-place all-reduce of `data` and returns at once. All ranks begin theirs in the same order and finish
/// them in any; at most 31 operations may follow the oldest unfinished one. Registered buffers make progress in poll(),
/// others in finish() and in any later collective of this communicator that waits. (Another communicator's collectives
/// and messages do not help: finish before you wait there for a rank that may still be finishing here.) Same result,
/// bytes and errors as all_reduce(comm, data, op).
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
PendingAllReduce<T, E, Op> begin_all_reduce(Communicator<T>& comm, std::span<E> data, const Op& op,
                                            const CallOptions& options = {}, CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable();
  const Call call = detail::describe_reduction<E, Order>(Verb::all_reduce, data.size(), Auto::number, op, -1, site);
  return PendingAllReduce<T, E, Op>(protocol, call, options, data, op,
                                    Order::table(data.size(), sizeof(E), comm.size()));
}

}  // namespace tandem
