// SPDX-License-Identifier: Apache-2.0
// The transport for the ranks of one host: a window of shared memory per rank that all others map, and a pair of rings
// per ordered pair of ranks. Knows no communicator, no reduction. Linux only (memfd, futex, pidfd).
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/env.hpp"
#include "tandem/core/error.hpp"
#include "tandem/core/processors.hpp"
#include "tandem/core/stream.hpp"
#include "tandem/transport/concepts.hpp"
#include "tandem/transport/detail/cross_memory.hpp"
#include "tandem/transport/detail/fork_mark.hpp"
#include "tandem/transport/detail/process.hpp"
#include "tandem/transport/detail/spsc_ring.hpp"
#include "tandem/transport/detail/waiting.hpp"
#include "tandem/transport/detail/window.hpp"
#include "tandem/transport/rendezvous.hpp"

namespace tandem {

/// Window layout, the same on every rank:  header | rings to each peer | control | heap.
/// Geometry is agreed once, at connection, and never read from shared memory again: a peer that scribbles over its
/// window can spoil data, not addresses.
class ShmRing {
 public:
  static constexpr const char* name = "ShmRing";
  static constexpr Reach reach = Reach::host;
  static constexpr std::size_t channel_capacity = detail::ring_slots;
  static constexpr bool has_windows = true;
  static constexpr bool moves_device_memory = false;

  struct Geometry {
    std::size_t heap_bytes;                         ///< virtual; pages are reserved as they are asked for
    std::size_t collective_slot_bytes = 64U << 10;  ///< of each of the 8 slots of a pair's collective ring
    std::size_t message_slot_bytes = 16U << 10;     ///< of each of the 8 slots of a pair's point-to-point ring
    friend bool operator==(const Geometry&, const Geometry&) = default;
  };

  /// Meets the other ranks at `where` (see rendezvous.hpp) and maps their windows. Collective over all ranks.
  static ShmRing connect(int rank, int size, const std::string& where, const Geometry& geometry, Deadline deadline) {
    detail::register_sleeping();
    ShmRing self(rank, size, geometry);
    auto own = std::make_shared<detail::Window>(detail::Window::create(self.layout_.total));
    own->reserve({0, self.layout_.control.begin});
    const Card card = self.card(*own);
    Introduction mine;
    mine.data.assign(reinterpret_cast<const std::byte*>(&card), reinterpret_cast<const std::byte*>(&card + 1));
    mine.descriptors.push_back(Descriptor::duplicate_of(own->descriptor()));
    mine.descriptors.push_back(detail::own_process());
    auto all = meet(where, rank, size, std::move(mine), deadline);
    // The own window first: whatever fails below, the others are told through it that this rank left.
    self.windows_.resize(static_cast<std::size_t>(size));
    self.windows_[static_cast<std::size_t>(rank)] = own;
    self.peers_.resize(static_cast<std::size_t>(size));
    self.peers_[static_cast<std::size_t>(rank)] = {::getpid(), Descriptor()};
    std::vector<Card> all_cards(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      auto& introduction = all[static_cast<std::size_t>(peer)];
      Card theirs{};
      if (introduction.data.size() != sizeof(Card) || introduction.descriptors.size() != 2) {
        throw Error(ErrorKind::environment,
                    "tandem: rank " + std::to_string(peer) + " speaks another version of ShmRing", rank, peer, "join");
      }
      std::memcpy(&theirs, introduction.data.data(), sizeof theirs);
      all_cards[static_cast<std::size_t>(peer)] = theirs;
      if (!(theirs.geometry == geometry)) {
        throw Error(
            ErrorKind::environment,
            "tandem: rank " + std::to_string(rank) + " asks for an arena of " + format_bytes(geometry.heap_bytes) +
                " and rank " + std::to_string(peer) + " for one of " + format_bytes(theirs.geometry.heap_bytes) +
                "; all ranks must pass the same join options and have the same limit of address space (ulimit -v)",
            rank, peer, "join");
      }
      self.processors_ = std::min<int>(self.processors_, theirs.processors);
      self.windows_[static_cast<std::size_t>(peer)] = std::make_shared<detail::Window>(
          detail::Window::attach(std::move(introduction.descriptors[0]), self.layout_.total));
      self.peers_[static_cast<std::size_t>(peer)] = {theirs.process, std::move(introduction.descriptors[1])};
    }
    self.open_rings();
    self.reads_others_ = self.can_read_others(all_cards);
    return self;
  }

  /// The same as join asks for it.
  static ShmRing connect(const ConnectRequest& request, Deadline deadline) {
    if (request.local_size > 1 && request.local_size < request.size) {
      throw Error(ErrorKind::environment,
                  "tandem: ShmRing connects the ranks of one host, and only " + std::to_string(request.local_size) +
                      " of " + std::to_string(request.size) +
                      " are on this one; start all ranks on one host, or use Tcp",
                  request.rank);
    }
    Geometry geometry{};
    geometry.heap_bytes = request.heap_bytes;
    return connect(request.rank, request.size, request.job, geometry, deadline);
  }

  /// The in-process form: `size` endpoints for threads of this process over one mapping of each window, which is what
  /// ThreadSanitizer needs in order to see both ends of a ring.
  static std::vector<ShmRing> connect_threads(int size, const Geometry& geometry) {
    detail::register_sleeping();
    std::vector<std::shared_ptr<detail::Window>> windows;
    std::vector<ShmRing> endpoints;
    for (int rank = 0; rank < size; ++rank) {
      endpoints.push_back(ShmRing(rank, size, geometry));
      windows.push_back(std::make_shared<detail::Window>(detail::Window::create(endpoints.back().layout_.total)));
      windows.back()->reserve({0, endpoints.back().layout_.control.begin});
    }
    for (auto& endpoint : endpoints) {
      endpoint.windows_ = windows;
      for (int peer = 0; peer < size; ++peer) endpoint.peers_.push_back({::getpid(), Descriptor()});
      endpoint.in_process_ = true;
      std::uint64_t seen = 0;
      const std::uint64_t mark = 1;
      endpoint.reads_others_ =
          cross_memory_is_wanted() &&
          endpoint.read_other(endpoint.rank(), &seen, reinterpret_cast<std::uintptr_t>(&mark), sizeof seen) == 0;
      endpoint.open_rings();
    }
    return endpoints;
  }

  ShmRing(ShmRing&&) noexcept = default;
  ShmRing& operator=(ShmRing&&) = delete;
  ~ShmRing() { close(); }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // --- streams -------------------------------------------------------------------------------------------------
  detail::RingWriter& outgoing(int peer, Channel channel) noexcept { return writers_[ring_index(peer, channel)]; }
  detail::RingReader& incoming(int peer, Channel channel) noexcept { return readers_[ring_index(peer, channel)]; }
  std::size_t send_some(int peer, Channel channel, std::span<const std::byte> bytes) noexcept {
    return detail::write_some(outgoing(peer, channel), bytes);
  }
  std::size_t recv_some(int peer, Channel channel, std::span<std::byte> bytes) noexcept {
    return detail::read_some(incoming(peer, channel), bytes);
  }

  // --- windows -------------------------------------------------------------------------------------------------
  std::byte* window(int peer) const noexcept { return windows_[static_cast<std::size_t>(peer)]->base(); }
  Range control() const noexcept { return layout_.control; }
  Range heap() const noexcept { return layout_.heap; }
  bool crowded() const noexcept { return size_ > processors_; }
  void reserve(Range range) { windows_[static_cast<std::size_t>(rank_)]->reserve(range); }
  void give_back(Range range) noexcept { windows_[static_cast<std::size_t>(rank_)]->give_back(range); }
  bool detach_heap(Range span, const std::vector<Range>& kept) noexcept {
    // Ranks that are threads share all their memory anyway; there is nothing to keep a straggler out of.
    return in_process_ || windows_[static_cast<std::size_t>(rank_)]->make_private(span, kept);
  }
  void publish(std::span<const int>, std::span<const std::byte>, Channel = Channel::collective) noexcept {
    // seen at once
  }
  void deliver(std::span<const int>) noexcept {}  // there as soon as they are sent
  void progress() noexcept {}
  void wake(const std::atomic<std::uint64_t>& word) noexcept {
    if (header(rank_).sleepers.load(std::memory_order_relaxed) != 0) detail::wake_all(word);
  }
  static void nap(std::chrono::nanoseconds span) noexcept { detail::nap(span); }
  void sleep(int peer, const std::atomic<std::uint64_t>& word, std::uint64_t seen,
             std::chrono::nanoseconds span) noexcept {
    detail::sleep_on(word, seen, header(peer).sleepers, span);
  }

  // --- memory outside of windows ---------------------------------------------------------------------------------
  bool reads_others() const noexcept { return reads_others_; }
  int read_other(int peer, void* to, std::uint64_t address, std::size_t bytes) const noexcept {
    return detail::read_other_process(peers_[static_cast<std::size_t>(peer)].id, to, address, bytes);
  }

  // --- life and death ------------------------------------------------------------------------------------------
  Health health(int peer) const noexcept {
    if (header(peer).closed.load(std::memory_order_acquire) != 0) return Health::left;
    const Peer& it = peers_[static_cast<std::size_t>(peer)];
    if (!it.process) return Health::alive;
    if (!detail::has_ended(it.process)) return Health::alive;
    // It may have closed between the two looks.
    return header(peer).closed.load(std::memory_order_acquire) != 0 ? Health::left : Health::dead;
  }
  std::string describe(int peer) const {
    return in_process_ ? "a thread" : "process " + std::to_string(peers_[static_cast<std::size_t>(peer)].id);
  }
  std::string ending(int) const { return "died"; }
  bool forked() const noexcept { return mark_.forked(); }

  /// Tells the peers that this rank leaves. Idempotent; the destructor calls it.
  void close() noexcept {
    if (windows_.empty() || forked()) return;
    header(rank_).closed.store(1, std::memory_order_release);
  }

 private:
  struct Header {
    alignas(line_pair_bytes) std::atomic<std::uint32_t> closed;
    alignas(line_pair_bytes) std::atomic<std::uint32_t> sleepers;  // peers asleep on a word that this rank writes
    alignas(line_pair_bytes) std::uint64_t mark;                   // see Card
  };
  struct Card {  // what a rank tells the others of itself
    Geometry geometry;
    std::int32_t process;
    std::int32_t processors;
    std::uint64_t mark;     // random; a copy lies in the window
    std::uint64_t mark_at;  // the address of that in the rank's own process
  };
  struct Peer {
    std::int32_t id = 0;
    Descriptor process;  // pidfd made by the peer itself, so a reused process number cannot deceive
  };
  struct Layout {
    std::size_t collective_ring, message_ring, total;
    Range control, heap;
  };
  /// Enough for the flag blocks (155 KiB each) of four hundred communicators; virtual until used.
  static constexpr std::size_t control_bytes = 64U << 20;

  ShmRing(int rank, int size, const Geometry& geometry) : rank_(rank), size_(size), geometry_(geometry) {
    layout_.collective_ring = round_up(detail::ring_footprint(geometry.collective_slot_bytes), page_bytes);
    layout_.message_ring = round_up(detail::ring_footprint(geometry.message_slot_bytes), page_bytes);
    const std::size_t rings = static_cast<std::size_t>(size - 1) * (layout_.collective_ring + layout_.message_ring);
    const std::size_t control = page_bytes + rings;
    layout_.control = {control, control + control_bytes};
    layout_.heap = {layout_.control.end, layout_.control.end + round_up(geometry.heap_bytes, page_bytes)};
    // Windows are often mapped one behind the other. Addresses a large power of two apart compete for one way of the
    // first-level cache on Zen, which made Direct four times slower; so the distance is none.
    layout_.total = round_up(layout_.heap.end, std::size_t{1} << 20) + 17 * page_bytes;
  }

  Card card(const detail::Window& own) const {
    Card card{};
    card.geometry = geometry_;
    card.process = ::getpid();
    card.processors = allowed_processors();
    if (::getrandom(&card.mark, sizeof card.mark, GRND_NONBLOCK) != sizeof card.mark) card.mark = 0;
    auto& header = *reinterpret_cast<Header*>(own.base());
    header.mark = card.mark;
    card.mark_at = reinterpret_cast<std::uintptr_t>(&header.mark);
    return card;
  }
  static_assert(sizeof(Header) <= page_bytes);

  /// TANDEM_CMA=0 leaves memory that is in no window to channels.
  static bool cross_memory_is_wanted() { return environment_integer("TANDEM_CMA", 0, 1).value_or(1) == 1; }
  /// By trying: it depends on users, capabilities, name spaces and the host's settings.
  bool can_read_others(const std::vector<Card>& cards) const {
    if (!cross_memory_is_wanted()) return false;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const Card& card = cards[static_cast<std::size_t>(peer)];
      std::uint64_t seen = 0;
      if (card.mark == 0 || read_other(peer, &seen, card.mark_at, sizeof seen) != 0 || seen != card.mark) return false;
    }
    return true;
  }

  Header& header(int peer) const noexcept { return *reinterpret_cast<Header*>(window(peer)); }
  static constexpr std::size_t ring_index(int peer, Channel channel) noexcept {
    return 2 * static_cast<std::size_t>(peer) + static_cast<std::size_t>(channel);
  }
  /// The ring from `from` to `to` lies in the window of `from`.
  std::byte* ring_memory(int from, int to, Channel channel) const noexcept {
    const auto place = static_cast<std::size_t>(to < from ? to : to - 1);
    return window(from) + page_bytes + place * (layout_.collective_ring + layout_.message_ring) +
           (channel == Channel::collective ? 0 : layout_.collective_ring);
  }
  void open_rings() {
    writers_.resize(2 * static_cast<std::size_t>(size_));
    readers_.resize(2 * static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      for (const Channel channel : {Channel::collective, Channel::point_to_point}) {
        const std::size_t slot =
            channel == Channel::collective ? geometry_.collective_slot_bytes : geometry_.message_slot_bytes;
        writers_[ring_index(peer, channel)] = detail::RingWriter(ring_memory(rank_, peer, channel), slot);
        readers_[ring_index(peer, channel)] = detail::RingReader(ring_memory(peer, rank_, channel), slot);
      }
    }
  }

  int rank_;
  int size_;
  Geometry geometry_;
  Layout layout_{};
  int processors_ = allowed_processors();
  bool in_process_ = false;
  bool reads_others_ = false;
  detail::ForkMark mark_;
  std::vector<std::shared_ptr<detail::Window>> windows_;  // by endpoint number
  std::vector<Peer> peers_;
  std::vector<detail::RingWriter> writers_;
  std::vector<detail::RingReader> readers_;
};

static_assert(WindowTransport<ShmRing>);

}  // namespace tandem
