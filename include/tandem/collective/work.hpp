// SPDX-License-Identifier: Apache-2.0
// The handle of an operation that was begun and is not finished: moved on by whoever has a moment, waited for when its
// result is needed. Needs no thread. Knows no verb.
#pragma once

#include <algorithm>
#include <any>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/comm/detail/held_operations.hpp"

namespace tandem {

/// Move-only. Owns what the operation needs but for the memory of spans, which the caller keeps until the operation is
/// finished; forms on at::Tensor keep the tensors alive. The communicator may be moved, and outlives the work or takes
/// the operation with it.
///
/// One that goes before poll() or wait() said that it is finished is a lost wait: the peers count on this rank, and its
/// buffers may be overwritten. The destructor does not wait. It gives the communicator up, so that every rank's calls
/// throw an Error that names the operation and its call site, and tells the notice callback once; buffers in the arena
/// are private memory from then on, which no peer can reach.
class [[nodiscard]] Work {
 public:
  /// One of which nothing is left to do.
  Work() = default;
  /// For the verbs. `kept` lives until the operation is finished.
  explicit Work(std::unique_ptr<detail::HeldOperation> operation, std::any kept = {})
      : kept_(std::move(kept)), operation_(std::move(operation)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept {
    Work gone(std::move(other));  // what was here goes last, as in the destructor
    std::swap(kept_, gone.kept_);
    std::swap(operation_, gone.operation_);
    return *this;
  }

  /// Does what can be done without waiting: this rank's part, once all ranks have announced theirs. True when the
  /// result is there, and nothing is left to do. Throws Error: mismatch (on all ranks, no data touched), poisoned.
  bool poll() {
    if (operation_ == nullptr) return true;
    if (!operation_->poll()) return false;
    release();
    return true;
  }
  /// Waits until the result is there; does nothing when it is. Older operations that are pending move on first. The
  /// deadline is the timeout that the operation was begun with, counted anew from here. Throws Error: mismatch,
  /// dead_peer, timeout, poisoned; after each of them nothing is pending any more.
  void wait() { wait_at_most(std::nullopt); }
  /// The same with another deadline. A wait that ends at its deadline has failed, as every collective that does: the
  /// communicator is given up. To look without consequence: poll().
  void wait(std::chrono::nanoseconds timeout) { wait_at_most(timeout); }

 private:
  void wait_at_most(std::optional<std::chrono::nanoseconds> timeout) {
    if (operation_ == nullptr) return;
    operation_->wait(timeout);
    release();
  }
  void release() noexcept {
    operation_.reset();
    kept_.reset();
  }

  std::any kept_;  // goes after the operation, which keeps peers out of it
  std::unique_ptr<detail::HeldOperation> operation_;
};

namespace detail {

/// A verb's steps (see carry_out.hpp), taken one by one.
template <ControlTransport T, class Steps>
class PendingOperation final : public HeldOperation {
 public:
  PendingOperation(Protocol<T>& protocol, const Call& call, const CallOptions& options, Steps steps)
      : protocol_(&protocol),
        steps_(std::move(steps)),
        operation_(protocol.post(call, options, steps_.input_place(protocol), steps_.output_place(protocol))) {
    protocol.held().add(operation_.sequence, *this);
  }
  ~PendingOperation() override {
    if (protocol_ == nullptr) return;
    protocol_->held().remove(operation_.sequence);
    operation_.dropped = true;  // unless it is closed, it now says so to all ranks
  }

  bool poll() override {
    if (stage_ == Stage::finished) return true;
    require_usable();
    if (stage_ == Stage::posted && protocol_->all_posted(operation_)) {
      protocol_->compare_posts(operation_);
      take_own_part();
    }
    if (stage_ == Stage::done && protocol_->all_done(operation_)) close();
    return stage_ == Stage::finished;
  }
  void wait(std::optional<std::chrono::nanoseconds> timeout) override {
    if (stage_ == Stage::finished) return;
    require_usable();
    if (timeout) operation_.timeout = *timeout;
    operation_.deadline.reset();
    protocol_->await_posts(operation_);
    go();
    if (stage_ != Stage::done) return;
    protocol_->await_done(operation_);
    close();
  }
  void advance(const Operation& waiting) override {
    const auto own = operation_.timeout;
    operation_.timeout = std::min(own, waiting.timeout);
    operation_.deadline = own < waiting.timeout ? Deadline::after(own) : waiting.deadline;
    protocol_->compare_posts(operation_);
    go();
    operation_.timeout = own;
    operation_.deadline.reset();
  }
  void orphan() noexcept override {
    protocol_ = nullptr;
    operation_.dropped = true;
    lose();
  }

 private:
  enum class Stage { posted, by_channels, done, finished };

  void require_usable() {
    if (protocol_ != nullptr) return protocol_->require_usable(operation_.call.verb, operation_.call.site);
    throw Error(ErrorKind::poisoned,
                std::string("tandem: ") + name_of(operation_.call.verb) + " (" + operation_.call.site.text() +
                    "): its communicator went before it was finished; keep the communicator until wait() has returned",
                -1, -1, name_of(operation_.call.verb));
  }
  void go() {
    if (stage_ == Stage::posted) take_own_part();
    if (stage_ != Stage::by_channels) return;
    const auto moved = attempt([&] { return go_by_channels<Auto>(*protocol_, operation_, steps_, path_); });
    finish(path_, moved);
  }
  /// Over buffers that this rank can read, at once; what goes by channels needs both ends at work at the same time, and
  /// is left to those that wait.
  void take_own_part() {
    path_ = path_for<Auto>(*protocol_, operation_, steps_.staged_bytes(), true);
    if constexpr (T::has_windows) {
      if (reads_in_place(path_)) {
        moved_ = attempt([&] { return steps_.read_in_place(*protocol_, operation_, path_); });
        protocol_->post_done(operation_);
        protocol_->held().mark_advanced(operation_.sequence);
        stage_ = Stage::done;
        if (!steps_.waits(*protocol_, operation_)) finish(path_, moved_);
        return;
      }
    }
    stage_ = Stage::by_channels;
  }
  void close() {
    protocol_->require_attached(operation_);
    finish(path_, moved_);
  }
  void finish(Path path, std::uint64_t moved) noexcept {
    protocol_->finish(operation_, steps_.predicted(*protocol_, operation_, path), moved);
    protocol_->held().remove(operation_.sequence);
    stage_ = Stage::finished;
  }
  /// A part that was left in the middle cannot be taken again.
  template <class Part>
  std::uint64_t attempt(Part part) {
    try {
      return part();
    } catch (...) {
      lose();
      throw;
    }
  }
  void lose() noexcept { const Operation gone(std::move(operation_)); }

  Protocol<T>* protocol_;
  Steps steps_;
  Operation operation_;
  Stage stage_ = Stage::posted;
  Path path_ = Path::direct;
  std::uint64_t moved_ = 0;
};

template <ControlTransport T, class Steps>
Work begin_work(Protocol<T>& protocol, const Call& call, const CallOptions& options, Steps steps, std::any kept = {}) {
  return Work(std::make_unique<PendingOperation<T, Steps>>(protocol, call, options, std::move(steps)), std::move(kept));
}

}  // namespace detail
}  // namespace tandem
