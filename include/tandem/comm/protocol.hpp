// SPDX-License-Identifier: Apache-2.0
// How the ranks of one communicator keep in step: announce an operation, wait until all have, compare, tell when done,
// and fail together. Used by the collectives; knows no reduction and no algorithm.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/board.hpp"
#include "tandem/comm/bounce.hpp"
#include "tandem/comm/buffers.hpp"
#include "tandem/comm/detail/dump.hpp"
#include "tandem/comm/detail/explanation.hpp"
#include "tandem/comm/detail/held_operations.hpp"
#include "tandem/comm/detail/recorder_list.hpp"
#include "tandem/comm/detail/watch.hpp"
#include "tandem/comm/fingerprint.hpp"
#include "tandem/comm/host_memory.hpp"
#include "tandem/comm/ledger.hpp"
#include "tandem/comm/operation.hpp"
#include "tandem/comm/poison.hpp"
#include "tandem/comm/recorder.hpp"
#include "tandem/comm/staging.hpp"
#include "tandem/core/backoff.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"

namespace tandem::detail {

template <ControlTransport T>
class Protocol {
 public:
  Protocol(std::shared_ptr<HostMemory<T>> host, std::vector<int> members, int rank, std::uint32_t id,
           const std::vector<BlockPlace>& places, std::chrono::nanoseconds timeout, bool crowded,
           std::function<void(const std::string&)> notice)
      : host_(std::move(host)),
        members_(std::move(members)),
        places_(places),
        rank_(rank),
        id_(id),
        timeout_(timeout),
        crowded_(crowded),
        notice_(std::move(notice)),
        buffers_(host_->endpoint(), host_->arena(), blocks_, members_),
        staging_(host_->endpoint(), blocks_, others_, rank),
        bounce_(host_->endpoint(), blocks_, rank),
        watch_{host_->endpoint(), blocks_, places_, members_, others_, rank, {*host_, id}},
        sent_(members_.size()),
        taken_(members_.size()),
        poison_(std::make_shared<Poison>(members_, [this](const Error& cause) {
          own().publish_failure(cause);
          show(&own().failed, sizeof(Block::failed) + Block::failure_bytes);
          endpoint().wake(own().failed);
        })) {
    for (std::size_t member = 0; member < members_.size(); ++member) {
      if (static_cast<int>(member) != rank_) others_.push_back(members_[member]);
      blocks_.push_back(&host_->block(members_[member], places_[member].offset));
    }
    own().reads_others = buffers_.reads_others() ? 1 : 0;
  }
  Protocol(const Protocol&) = delete;
  Protocol& operator=(const Protocol&) = delete;
  ~Protocol() {
    held_.orphan_all();
    if (endpoint().forked()) return;
    poison_->mute();
    std::vector<std::pair<int, BlockPlace>> others;
    for (int member = 0; member < size(); ++member)
      if (member != rank_) others.emplace_back(endpoint_of(member), places_[static_cast<std::size_t>(member)]);
    if (!poison_->is_set()) endpoint().deliver(others_);
    host_->retire(id_, places_[static_cast<std::size_t>(rank_)], std::move(others));
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  std::uint32_t id() const noexcept { return id_; }
  T& endpoint() noexcept { return host_->endpoint(); }
  HostMemory<T>& host() noexcept { return *host_; }
  const std::shared_ptr<HostMemory<T>>& shared_host() const noexcept { return host_; }
  Ledger& ledger() noexcept { return ledger_; }
  const Recorder& recorder() const noexcept { return recorder_; }
  std::uint64_t newest() const noexcept { return sequence_; }
  const std::shared_ptr<Poison>& poison() const noexcept { return poison_; }
  std::chrono::nanoseconds timeout() const noexcept { return timeout_; }
  /// Do ranks outnumber processors (the same answer on all of them)? Then every synchronisation costs a change of
  /// process, and waiting yields at once.
  bool crowded() const noexcept { return crowded_; }
  int pauses() const noexcept { return crowded_ ? 0 : 50; }
  const std::function<void(const std::string&)>& notice() const noexcept { return notice_; }
  int endpoint_of(int member) const noexcept { return members_[static_cast<std::size_t>(member)]; }

  /// Throws when this communicator cannot be used (any more) for that call. Every operation begins with it.
  void require_usable(Verb verb, const CallSite& site) {
    if (endpoint().forked()) refuse_fork(rank_);
    if (poison_->is_set()) refuse_poisoned(verb, site, rank_, size(), poison_->cause());
  }

  // --- announce -------------------------------------------------------------------------------------------------
  /// Throws Error(argument) when the oldest pending operation is too far behind for another to be begun.
  void require_room(Verb verb) const {
    if (!held_.empty() && sequence_ + 1 - held_.oldest() >= Block::max_pending) [[unlikely]] {
      refuse_for_lack_of_room(verb, rank_, held_.oldest());
    }
  }
  /// Announces `call` on this rank's next line. `payload` (at most 8 bytes) rides in the line.
  Operation post(const Call& call, const CallOptions& options, std::uint64_t input, std::uint64_t output,
                 std::span<const std::byte> payload = {}) {
    require_room(call.verb);
    ++sequence_;
    Operation operation(call, sequence_, recorder_.begin(sequence_, call), timeout_of(options), this, abandon);
    Line& line = own().line(sequence_);
    line.input = input;
    line.output = output;
    line.fingerprint = Fingerprint::of(call, id_);
    if (!payload.empty()) std::memcpy(line.payload, payload.data(), payload.size());
    line.sequence.store(sequence_, std::memory_order_release);
    show(&line, offsetof(Line, done));
    endpoint().wake(line.sequence);
    return operation;
  }
  /// Have all ranks announced this operation? Never waits. Compares nothing.
  bool all_posted(const Operation& it) const noexcept { return all_reached(it, &Line::sequence); }
  /// Waits until all ranks have announced this operation, then compares what they say; throws on every rank alike when
  /// they disagree. Nothing of anybody's data has been touched by then.
  /// Held operations that are older go first: all ranks have announced them too, and what goes by channels must go in
  /// the same order on all ranks, whatever the order in which their programs finish.
  void await_posts(Operation& operation) {
    if (!held_.empty()) held_.advance_before(operation);
    compare_posts(operation);
  }
  /// For operations whose data may travel with their posts: where a message takes its time, a rank begins to send at
  /// once, and awaits and compares the posts of all before it takes the first of what comes (require_agreement), at the
  /// latest before it returns. Held operations go first there too: see await_posts.
  void begin(Operation& operation) {
    operation.compared = T::has_windows;
    if constexpr (T::has_windows)
      await_posts(operation);
    else if (!held_.empty())
      held_.advance_before(operation);
  }
  void require_agreement(Operation& operation) {
    if (operation.compared) return;
    compare_posts(operation);
    operation.compared = true;
  }
  /// The same without a look at older operations.
  void compare_posts(Operation& operation) {
    for (int member = 0; member < size(); ++member) {
      if (member == rank_) continue;
      await_word(operation, member, line_of(operation, member).sequence, operation.sequence);
    }
    compare(operation);
  }
  /// Where the members' buffers lie, and how this rank reaches them.
  const Buffers<T>& buffers() const noexcept { return buffers_; }
  /// Copies bytes at a place of a member that is readable; fails the operation when it is not after all.
  void load(Operation& operation, int member, std::uint64_t place, std::uint64_t offset, void* to, std::size_t bytes) {
    const int fault = buffers_.load(member, place, offset, to, bytes);
    // Who gives up says so before its caller may use its memory for something else: what was read may be that.
    if (fault == 0 && (Place::in_window(place) || block(member).failed.load(std::memory_order_acquire) == 0)) [[likely]]
      return;
    for (int look = 0; look < 10; ++look) {  // who gave up, or died, has the better words; the latter takes a moment
      check(operation, member, [] { return false; });
      if (fault != EFAULT) break;
      endpoint().nap(std::chrono::milliseconds(5));
    }
    const Trouble trouble = unreadable(member, fault);
    fail(operation, trouble.kind, trouble.peer, trouble.what);
  }
  const Line& line_of(const Operation& operation, int member) const noexcept {
    return blocks_[static_cast<std::size_t>(member)]->lines[operation.sequence % Block::line_count];
  }

  // --- finish ---------------------------------------------------------------------------------------------------
  /// Tells the others that this rank's part of the operation is in place.
  void post_done(const Operation& operation) noexcept { post_word(operation, &Line::done); }
  /// The same of half of it, where the other half needs what others have done first.
  void post_half(const Operation& operation) noexcept { post_word(operation, &Line::half); }
  void await_half(Operation& operation, int member) {
    await_word(operation, member, line_of(operation, member).half, operation.sequence);
  }
  void await_done(Operation& operation) {
    for (int member = 0; member < size(); ++member) {
      if (member != rank_) await_word(operation, member, line_of(operation, member).done, operation.sequence);
    }
    require_attached(operation);
  }
  /// After others have stored to this rank's buffers: are these still the memory that others reach? Not when another
  /// communicator of this process failed in the meantime.
  void require_attached(Operation& operation) {
    if (!host_->arena()->detached() || !buffers_.is_stored_to(operation, rank_)) [[likely]]
      return;
    require_usable(operation.call.verb, operation.call.site);
    fail(operation, ErrorKind::poisoned, rank_,
         "rank " + std::to_string(rank_) + " gave its registered memory up when another communicator failed");
  }
  bool all_done(const Operation& it) const noexcept { return all_reached(it, &Line::done); }
  /// An operation between two ranks: announced to nobody, numbered by its caller.
  Operation message(const Call& call, const CallOptions& options, std::uint64_t number) {
    return Operation(call, number, recorder_.begin(number, call), timeout_of(options), this, abandon);
  }
  /// How many messages this rank has sent to, and taken from, each other rank here.
  std::uint64_t& sent_to(int member) noexcept { return sent_[static_cast<std::size_t>(member)]; }
  std::uint64_t& taken_from(int member) noexcept { return taken_[static_cast<std::size_t>(member)]; }
  /// Those that stay unfinished while others are begun.
  HeldOperations& held() noexcept { return held_; }

  /// Closes the books on an operation that succeeded.
  void finish(Operation& operation, std::uint64_t predicted, std::uint64_t measured) noexcept {
    finish_record(operation);
    ++ledger_.operations;
    ledger_.predicted += predicted;
    ledger_.measured += measured;
  }

  /// Of an operation that the flight recorder has as two, the half that is not in the books.
  void record_waits(const Operation& record, int member) noexcept { recorder_.waits(record.ticket, member); }
  void finish_record(Operation& record) noexcept {
    record.close();
    recorder_.finish(record.ticket);
  }

  // --- small messages -------------------------------------------------------------------------------------------
  /// This rank's staging buffer for its next small message, Block::eager_bytes long. Called alike on all ranks, also by
  /// those that do not fill it: the turns must not drift apart.
  std::byte* stage(Verb verb) {
    require_room(verb);  // a refused operation must not take a turn
    return staging_.next();
  }
  /// What goes on with the buffers of that turn.
  Staging<T>& staging() noexcept { return staging_; }

  /// Through which longer ones pass, where memory is shared.
  Bounce<T>& bounce() noexcept { return bounce_; }

  // --- waiting --------------------------------------------------------------------------------------------------
  /// Waits until `word`, which `member` writes, has reached `number`.
  void await_word(Operation& operation, int member, const std::atomic<std::uint64_t>& word, std::uint64_t number) {
    if (word.load(std::memory_order_acquire) >= number) return;
    Backoff backoff(pauses());
    while (true) {
      endpoint().progress();
      const std::uint64_t seen = word.load(std::memory_order_acquire);
      if (seen >= number) return;
      if (!backoff.wait()) continue;
      check(operation, member, [&] { return word.load(std::memory_order_acquire) >= number; });
      if (word.load(std::memory_order_acquire) != seen) continue;
      endpoint().sleep(endpoint_of(member), word, seen, until_next_look(operation));
    }
  }
  /// One turn of a loop that waits for something on a channel, mainly for `member`. Short at first, asleep later;
  /// throws when a rank failed or the deadline passed. `ready` tells whether the loop could go on after all.
  template <class Ready>
  void await_channel(Operation& operation, int member, Backoff& backoff, Ready ready) {
    if (!backoff.wait()) return;
    check(operation, member, ready);
    if (!ready()) endpoint().nap(until_next_look(operation, std::chrono::microseconds(200)));
  }

  // --- failing --------------------------------------------------------------------------------------------------
  /// Gives this communicator up: tells the peers, keeps stragglers out of this process's memory, remembers the cause.
  void give_up(const Error& cause) {
    const bool one_rank_failed = cause.kind() == ErrorKind::dead_peer || cause.kind() == ErrorKind::timeout;
    const bool known = cause.peer() >= 0 && cause.peer() < size();
    if (poison_->set(cause, one_rank_failed && known ? std::optional(endpoint_of(cause.peer())) : std::nullopt)) {
      if (!host_->arena()->detach() && notice_) {
        notice_("memory is too short to part from what the failed ranks can reach: do not use registered buffers");
      }
      dump_after_failure();
    }
  }
  /// Fails this operation: gives the communicator up and throws.
  [[noreturn]] void fail(Operation& operation, ErrorKind kind, int peer, const std::string& what) {
    const Error error = error_in(operation, rank_, size(), kind, peer, what);
    operation.close();
    recorder_.fail(operation.ticket);
    give_up(error);
    throw error;
  }
  /// The same where the ranks' calls do not fit together: every rank that finds out names its own place and `member`'s.
  [[noreturn]] void fail_apart(Operation& operation, int member, const std::string& what) {
    explain_site(endpoint(), others_, own(), operation.sequence, operation.call);
    const auto place =
        explained_site(endpoint(), endpoint_of(member), block(member), operation.sequence, operation.timeout);
    fail(operation, ErrorKind::mismatch, member, what + "; rank " + std::to_string(member) + " calls " + place);
  }

 private:
  /// Operation::Abandon.
  static void abandon(void* protocol, const Operation& operation) noexcept {
    auto& self = *static_cast<Protocol*>(protocol);
    if (self.endpoint().forked()) return;
    self.recorder_.fail(operation.ticket);
    if (self.poison_->is_set()) return;
    try {
      const Error cause = error_in(operation, self.rank_, self.size(), ErrorKind::poisoned, self.rank_,
                                   operation.dropped ? "dropped without wait()" : "an exception left it unfinished");
      self.give_up(cause);
      if (operation.dropped && self.notice_) self.notice_(cause.what());
    } catch (...) {  // no memory for the words: the deadline will tell the others
    }
  }
  void post_word(const Operation& operation, std::atomic<std::uint64_t> Line::*word) noexcept {
    std::atomic<std::uint64_t>& it = own().line(operation.sequence).*word;
    it.store(operation.sequence, std::memory_order_release);
    show(&it, sizeof it);
    endpoint().wake(it);
  }
  bool all_reached(const Operation& operation, std::atomic<std::uint64_t> Line::*word) const noexcept {
    host_->endpoint().progress();
    for (const Block* block : blocks_) {
      const Line& line = block->lines[operation.sequence % Block::line_count];
      if ((line.*word).load(std::memory_order_acquire) < operation.sequence) return false;
    }
    return true;
  }
  /// Lets the other members see bytes of the own block.
  void show(const void* begin, std::size_t bytes) noexcept {
    endpoint().publish(others_, {static_cast<const std::byte*>(begin), bytes});
  }
  Block& own() const noexcept { return *blocks_[static_cast<std::size_t>(rank_)]; }
  Block& block(int member) const noexcept { return *blocks_[static_cast<std::size_t>(member)]; }

  void compare(Operation& operation) {
    for (int member = 0; member < size(); ++member) compare_with(operation, member);
  }
  void compare_with(Operation& operation, int member) {
    const Fingerprint& mine = line_of(operation, rank_).fingerprint;
    const Fingerprint& theirs = line_of(operation, member).fingerprint;
    if (!mine.agrees(theirs)) [[unlikely]] {
      fail_apart(
          operation, member,
          "ranks do not call the same operation: " + difference(mine, rank_, theirs, member, operation.call.factor));
    }
    if (mine.site != theirs.site && notice_ && !site_noticed_) [[unlikely]] {
      site_noticed_ = true;
      notice_(site_notice(operation.call, operation.sequence, rank_, member));
    }
  }
  /// Throws when there is no hope for an operation in which this rank waits for `member`; see Watch.
  template <class Ready>
  void check(Operation& operation, int member, Ready ready) {
    recorder_.waits(operation.ticket, member);
    if (const auto trouble = watch_.look(operation, member, ready)) {
      // Others may still ask where this rank, which did not get to compare, has called from.
      if (!operation.compared) explain_site(endpoint(), others_, own(), operation.sequence, operation.call);
      fail(operation, trouble->kind, trouble->peer, trouble->what);
    }
    if (poison_->is_set()) require_usable(operation.call.verb, operation.call.site);
    // A rank that called something else sends no data, and waits for this one's words.
    for (int other = 0; other < size() && !operation.compared; ++other) {
      if (line_of(operation, other).sequence.load(std::memory_order_acquire) == operation.sequence) {
        compare_with(operation, other);
      }
    }
  }
  std::chrono::nanoseconds timeout_of(const CallOptions& options) const noexcept {
    return options.timeout.value_or(timeout_);
  }

  std::shared_ptr<HostMemory<T>> host_;
  std::vector<int> members_;  // endpoint numbers, by rank
  std::vector<int> others_;   // all but the own
  std::vector<BlockPlace> places_;
  std::vector<Block*> blocks_;
  int rank_;
  std::uint32_t id_;
  std::uint64_t sequence_ = 0;
  HeldOperations held_;
  std::chrono::nanoseconds timeout_;
  bool crowded_;
  bool site_noticed_ = false;
  std::function<void(const std::string&)> notice_;
  Buffers<T> buffers_;
  Staging<T> staging_;
  Bounce<T> bounce_;
  Watch<T> watch_;
  std::vector<std::uint64_t> sent_;  // messages, by member
  std::vector<std::uint64_t> taken_;
  std::shared_ptr<Poison> poison_;
  Ledger ledger_;
  Recorder recorder_;
  ListedRecorder listed_{recorder_, *poison_, members_, id_, rank_};
};

}  // namespace tandem::detail
