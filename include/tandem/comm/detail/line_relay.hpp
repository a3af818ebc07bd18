// SPDX-License-Identifier: Apache-2.0
// Passes what child processes print on to this process's own stdout and stderr, whole lines with a prefix each, without
// ever blocking. Must not know when or why a child ends.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "tandem/transport/detail/descriptor.hpp"

namespace tandem::detail {

/// One of this process's own streams, with what still has to be written to it.
class Outlet {
 public:
  explicit Outlet(int stream) noexcept : stream_(stream) {}

  int stream() const noexcept { return stream_; }
  bool waiting() const noexcept { return !pending_.empty(); }
  /// Above this the children are no longer read, so that they wait for the reader as if they wrote to it themselves.
  bool full() const noexcept { return pending_.size() >= (std::size_t{1} << 20); }
  void add(std::string_view text) {
    if (!broken_) pending_ += text;
  }
  /// Writes one piece; the caller has polled. A pipe that polls writable takes PIPE_BUF (4,096) bytes without blocking.
  void write_some() {
    const ssize_t written = ::write(stream_, pending_.data(), std::min<std::size_t>(pending_.size(), 4096));
    if (written >= 0) {
      pending_.erase(0, static_cast<std::size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {  // nobody reads it any more: the ranks go on, as with /dev/null
      broken_ = true;
      pending_.clear();
    }
  }

 private:
  int stream_;
  bool broken_ = false;
  std::string pending_;
};

/// One stream of one child.
class LineRelay {
 public:
  LineRelay() = default;
  LineRelay(Descriptor source, std::string prefix) : source_(std::move(source)), prefix_(std::move(prefix)) {}

  int source() const noexcept { return source_.get(); }
  bool open() const noexcept { return static_cast<bool>(source_); }

  /// Takes what is there, at most 64 KiB, so that one talkative rank does not hold the others up. False when there was
  /// nothing. The source must not block.
  bool relay_some(Outlet& outlet) {
    std::array<char, 4096> piece{};
    for (int i = 0; i < 16; ++i) {
      const ssize_t length = ::read(source_.get(), piece.data(), piece.size());
      if (length < 0 && errno == EINTR) continue;
      if (length <= 0) {
        if (length == 0 || errno != EAGAIN) finish(outlet);
        return i > 0;
      }
      take(std::string_view(piece.data(), static_cast<std::size_t>(length)), outlet);
    }
    return true;
  }

  /// The child is gone: what is still in the pipe, and a last line without an end. Does not wait for end of file,
  /// because a process that the child left behind may hold the pipe for ever.
  void finish(Outlet& outlet) {
    if (!line_.empty()) emit(outlet);
    source_.reset();
  }

 private:
  void take(std::string_view text, Outlet& outlet) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      line_ += text.substr(0, end);
      if (end != std::string_view::npos || line_.size() > (std::size_t{1} << 16)) emit(outlet);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
  }
  void emit(Outlet& outlet) {
    outlet.add(prefix_);
    outlet.add(line_);
    outlet.add("\n");
    line_.clear();
  }

  Descriptor source_;
  std::string prefix_;
  std::string line_;
};

struct Pipe {
  Descriptor read;   // does not block
  Descriptor write;  // blocks, as programs expect of their stdout

  static Pipe open() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) < 0) throw system_failure("cannot open a pipe");
    Pipe result{Descriptor(ends[0]), Descriptor(ends[1])};
    if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0) throw system_failure("cannot set up a pipe");
    return result;
  }
};

}  // namespace tandem::detail
