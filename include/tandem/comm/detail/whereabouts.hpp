// SPDX-License-Identifier: Apache-2.0
// Where a rank is that one waits for in vain: it may itself be waiting, in another communicator. Ranks say so where all
// of the job can read it. Knows the words and their place, blames nobody.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tandem/comm/board.hpp"
#include "tandem/comm/host_memory.hpp"
#include "tandem/comm/operation.hpp"
#include "tandem/core/clock.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem::detail {

/// One communicator's view. Peers are endpoint numbers.
template <ControlTransport T>
class Whereabouts {
 public:
  /// `host` must outlive this.
  Whereabouts(HostMemory<T>& host, std::uint32_t id) : host_(host), id_(id) {
    for (int peer = 0; peer < host.endpoint().size(); ++peer) {
      if (peer != host.endpoint().rank()) peers_.push_back(peer);
    }
  }

  /// This rank waits in `operation`, and goes on saying so each time it is called, but not more often than every 20 ms:
  /// over a network it is a message to each rank. A job with one communicator needs no words: the blocks of that one
  /// have them.
  void say(const Operation& operation) {
    if (!host_.has_several_blocks()) return;
    const auto now = Clock::now();
    const bool other = said_of_ != operation.ticket;
    if (!other && now - said_at_ < std::chrono::milliseconds(20)) return;
    said_of_ = operation.ticket;
    said_at_ = now;
    Block& own = host_.first_block(host_.endpoint().rank());
    if (other) {
      const std::string text = std::string(name_of(operation.call.verb)) + " (operation " +
                               std::to_string(operation.sequence) + ", " + operation.call.site.text() +
                               ") of communicator " + std::to_string(id_);
      std::array<char, Block::word_count * sizeof(std::uint64_t)> padded{};
      std::memcpy(padded.data(), text.data(), std::min(text.size(), padded.size() - 1));
      for (std::size_t i = 0; i < Block::word_count; ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, padded.data() + i * sizeof word, sizeof word);
        own.waits_in[i].store(word, std::memory_order_relaxed);
      }
      publish(&own.waits_in, sizeof own.waits_in);
    }
    own.waits_beats.fetch_add(1, std::memory_order_release);
    publish(&own.waits_beats, sizeof own.waits_beats);
  }

  /// How often each rank of the job has said so, by endpoint number.
  std::vector<std::uint64_t> beats() const {
    std::vector<std::uint64_t> all;
    for (int peer = 0; peer < host_.endpoint().size(); ++peer) {
      all.push_back(host_.first_block(peer).waits_beats.load(std::memory_order_acquire));
    }
    return all;
  }
  /// "; it waits in barrier (operation 3, train.cpp:9 (main)) of communicator 1", or another verb than "waits" for one
  /// that has left, if `peer` has said so since `before`; else nothing.
  std::string of(int peer, const std::vector<std::uint64_t>& before, const char* verb) {
    host_.endpoint().health(peer);  // takes in what has arrived
    const Block& theirs = host_.first_block(peer);
    if (theirs.waits_beats.load(std::memory_order_acquire) == before[static_cast<std::size_t>(peer)]) return "";
    std::array<char, Block::word_count * sizeof(std::uint64_t)> text{};
    for (std::size_t i = 0; i < Block::word_count; ++i) {
      const std::uint64_t word = theirs.waits_in[i].load(std::memory_order_relaxed);
      std::memcpy(text.data() + i * sizeof word, &word, sizeof word);
    }
    text.back() = '\0';
    return std::string("; it ") + verb + " in " + text.data();
  }

 private:
  /// Not among the data of collectives, which nobody reads who waits elsewhere.
  void publish(const void* begin, std::size_t bytes) noexcept {
    host_.endpoint().publish(peers_, {static_cast<const std::byte*>(begin), bytes}, Channel::point_to_point);
  }

  HostMemory<T>& host_;
  std::uint32_t id_;
  std::vector<int> peers_;
  std::uint64_t said_of_ = UINT64_MAX;  // ticket of an operation
  Clock::time_point said_at_{};
};

}  // namespace tandem::detail
