// SPDX-License-Identifier: Apache-2.0
// The messages of one peer, sorted by communicator: they share a channel, and each communicator receives its own in the
// order sent. Bytes that nobody has asked for yet are kept here, so two ranks that both send first, or that take what
// was sent in another order of communicators, do not wait for each other. Knows envelopes, no channel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "tandem/comm/envelope.hpp"

namespace tandem {

class Inbox {
 public:
  /// Takes bytes off the front of the channel: headers, and data that is kept. Returns how many; stops before data of
  /// `wanted`, which its receiver can take from the channel itself (see due()).
  std::size_t sort(std::span<const std::byte> bytes, std::uint32_t wanted) {
    std::size_t used = 0;
    while (used < bytes.size() && due(wanted) == 0) used += sort_some(bytes.subspan(used));
    return used;
  }
  /// The same for all there is.
  void sort_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) bytes = bytes.subspan(sort_some(bytes));
  }
  /// How many bytes at the front of the channel are data of this communicator, all before them being taken.
  std::uint64_t due(std::uint32_t communicator) const noexcept {
    return of_ == communicator && kept(communicator) == 0 ? left_ : 0;
  }
  /// Its receiver took as many of them.
  void passed(std::size_t bytes) noexcept { left_ -= bytes; }

  /// Moves out at most to.size() bytes that are kept for a communicator, oldest first, headers included; returns how
  /// many.
  std::size_t take(std::uint32_t communicator, std::span<std::byte> to) noexcept {
    const auto pile = find(communicator);
    if (pile == piles_.end()) return 0;
    const std::size_t count = std::min(to.size(), pile->size());
    if (count != 0) std::memcpy(to.data(), pile->bytes.data() + pile->read, count);
    pile->read += count;
    pile->tidy();
    return count;
  }
  /// Bytes that are kept for a communicator.
  std::size_t kept(std::uint32_t communicator) const noexcept {
    const auto pile = find(communicator);
    return pile == piles_.end() ? 0 : pile->size();
  }
  /// Nobody will ask for messages of this communicator any more.
  void forget(std::uint32_t communicator) noexcept {
    std::erase_if(piles_, [&](const Pile& pile) { return pile.communicator == communicator; });
  }

 private:
  struct Pile {
    std::uint32_t communicator;
    std::vector<std::byte> bytes{};
    std::size_t read = 0;

    std::size_t size() const noexcept { return bytes.size() - read; }
    void put(std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
    void tidy() noexcept {
      if (size() == 0) {
        bytes.clear();
        if (bytes.capacity() > large) std::vector<std::byte>().swap(bytes);  // left by two ranks that sent first
        read = 0;
      } else if (read >= large && read * 2 >= bytes.size()) {
        bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(read));
        read = 0;
      }
    }
    static constexpr std::size_t large = 1U << 20;
  };

  /// Part of a header, or data up to the end of its message; at least a byte.
  std::size_t sort_some(std::span<const std::byte> bytes) {
    if (left_ != 0) {
      const auto part = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size())));
      pile(of_).put(part);
      left_ -= part.size();
      return part.size();
    }
    const std::size_t part = std::min(sizeof header_ - header_bytes_, bytes.size());
    std::memcpy(reinterpret_cast<std::byte*>(&header_) + header_bytes_, bytes.data(), part);
    header_bytes_ += part;
    if (header_bytes_ == sizeof header_) {
      header_bytes_ = 0;
      of_ = header_.fingerprint.communicator;
      left_ = header_.data_bytes();
      pile(of_).put(std::as_bytes(std::span(&header_, 1)));
    }
    return part;
  }
  Pile& pile(std::uint32_t communicator) {
    const auto found = find(communicator);
    if (found != piles_.end()) return *found;
    piles_.push_back({communicator});
    return piles_.back();
  }
  std::vector<Pile>::iterator find(std::uint32_t communicator) noexcept {
    return std::ranges::find(piles_, communicator, &Pile::communicator);
  }
  std::vector<Pile>::const_iterator find(std::uint32_t communicator) const noexcept {
    return std::ranges::find(piles_, communicator, &Pile::communicator);
  }

  std::vector<Pile> piles_;  // one for each communicator that ever got a message: few
  detail::Envelope header_;
  std::size_t header_bytes_ = 0;  // of the next header, already there
  std::uint32_t of_ = 0;          // whose data is at the front of the channel,
  std::uint64_t left_ = 0;        // and how much of it
};

}  // namespace tandem
