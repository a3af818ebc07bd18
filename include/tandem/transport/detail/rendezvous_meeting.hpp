// SPDX-License-Identifier: Apache-2.0
// What both sides of a rendezvous share: what is exchanged, who this rank is, and the sentences of its failures.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tandem/core/clock.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"
#include "tandem/transport/detail/rendezvous_message.hpp"

namespace tandem {

/// What one rank gives all others: at most 64 KiB and 16 descriptors.
struct Introduction {
  std::vector<std::byte> data;
  std::vector<Descriptor> descriptors;
};

inline constexpr int rendezvous_most_ranks = 1024;

namespace detail {

/// A job's name in a message: printable, and not longer than a line.
inline std::string quoted_name(const std::string& name) {
  std::string text = "\"";
  for (const char c : name.substr(0, 80)) text += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  return text + (name.size() > 80 ? "...\"" : "\"");
}

inline std::string process_text(pid_t process) {  // 0: in a process namespace that this one cannot see
  return process > 0 ? "process " + std::to_string(process) : "a process of another container";
}

/// Common to both sides: who I am, and what I say when I give up.
struct Meeting {
  std::string name;
  int rank = 0;
  int size = 1;
  Deadline deadline = Deadline::never();
  Clock::time_point begin = Clock::now();

  std::string span() const { return format_seconds(Clock::now() - begin); }

  Error failure(ErrorKind kind, const std::string& text, int peer = -1) const {
    return Error(kind, "tandem: join: " + text, rank, peer, "join");
  }
  MessageHeader header(MessageKind kind, int about) const {
    MessageHeader result;
    result.kind = kind;
    result.rank = about;
    result.size = size;
    return result;
  }
  MessageHeader farewell(const Error& cause) const {
    MessageHeader result = header(MessageKind::leave, rank);
    result.error_kind = static_cast<std::int32_t>(cause.kind());
    result.peer = cause.peer();
    return result;
  }
  Error verdict(const Message& message) const {  // the other side's reason, as this rank's Error
    const int kind = message.header.error_kind;
    const bool known = kind >= 0 && kind <= static_cast<int>(ErrorKind::system);
    return Error(known ? static_cast<ErrorKind>(kind) : ErrorKind::system,
                 std::string(reinterpret_cast<const char*>(message.data.data()), message.data.size()), rank,
                 message.header.peer, "join");
  }
};

}  // namespace detail

}  // namespace tandem
