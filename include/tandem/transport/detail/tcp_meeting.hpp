// SPDX-License-Identifier: Apache-2.0
// How the ranks of a Tcp job learn each other's addresses: over the rendezvous of the host when all are on one, else
// over rank 0's port. Knows the environment's words for where that is; what is done with the addresses is tcp_mesh's.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/deadline.hpp"
#include "tandem/core/env.hpp"
#include "tandem/core/error.hpp"
#include "tandem/core/processors.hpp"
#include "tandem/transport/concepts.hpp"
#include "tandem/transport/detail/descriptor.hpp"
#include "tandem/transport/detail/process.hpp"
#include "tandem/transport/detail/tcp_mesh.hpp"
#include "tandem/transport/detail/tcp_secret.hpp"
#include "tandem/transport/detail/tcp_socket.hpp"
#include "tandem/transport/rendezvous.hpp"

namespace tandem::detail {

/// What a rank tells the others of itself. All its bytes are plain, so it is sent as it is.
struct TcpCard {
  std::int32_t process = 0;
  std::int32_t processors = 1;
  std::array<char, 64> host{};     // its name
  std::array<char, 40> machine{};  // the same for all processes of one running kernel
  TcpAddress address{};            // where it listens
};

struct TcpMeeting {
  Descriptor listening;
  std::vector<TcpCard> cards;
  std::vector<Descriptor> processes;  // by rank, where all are on this host; see process.hpp

  std::vector<TcpAddress> addresses() const {
    std::vector<TcpAddress> all;
    for (const TcpCard& card : cards) all.push_back(card.address);
    return all;
  }
  /// "process 4711 on host n2".
  std::string about(int rank) const {
    const TcpCard& card = cards[static_cast<std::size_t>(rank)];
    return "process " + std::to_string(card.process) + " on host " +
           std::string(card.host.data(), ::strnlen(card.host.data(), card.host.size()));
  }
  /// Has any host more ranks than processors?
  bool crowded() const {
    return std::any_of(cards.begin(), cards.end(), [this](const TcpCard& card) {
      return std::count_if(cards.begin(), cards.end(),
                           [&](const TcpCard& other) { return other.machine == card.machine; }) > card.processors;
    });
  }
};

/// "40000-40100" in TANDEM_TCP_PORTS: where ranks listen; any free port unless set.
inline PortRange ports_from_environment() {
  const auto text = environment("TANDEM_TCP_PORTS");
  if (!text) return {};
  unsigned first = 0;
  unsigned last = 0;
  char rest = 0;
  if (std::sscanf(text->c_str(), "%5u-%5u%c", &first, &last, &rest) != 2 || first < 1 || last > 65535 || first > last) {
    throw Error(ErrorKind::environment,
                "tandem: TANDEM_TCP_PORTS=\"" + *text + "\" is no range of ports, such as 40000-40100");
  }
  return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)};
}
/// Rank 0's port for the meeting of several hosts: TANDEM_PORT; else MASTER_PORT, but the next one under torchrun,
/// whose own store listens on MASTER_PORT.
inline std::uint16_t meeting_port() {
  if (const auto port = environment_integer("TANDEM_PORT", 1, 65535)) return static_cast<std::uint16_t>(*port);
  const bool beside_store = environment("TORCHELASTIC_RUN_ID").has_value();
  const auto port = environment_integer("MASTER_PORT", 1, beside_store ? 65534 : 65535);
  if (!port) {
    throw Error(ErrorKind::environment,
                "tandem: Tcp over several hosts needs a port of rank 0's host; set TANDEM_PORT (or MASTER_PORT)");
  }
  return static_cast<std::uint16_t>(*port + (beside_store ? 1 : 0));
}

inline TcpCard own_card() {
  TcpCard card;
  card.process = ::getpid();
  card.processors = allowed_processors();
  ::gethostname(card.host.data(), card.host.size() - 1);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(card.machine.data(), 36);
  return card;
}

/// A hash of the job's name (FNV-1a): found out before secrets are compared, so that a rank of another job is told so.
inline std::uint64_t job_number(std::string_view name) noexcept {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

/// Do all ranks share this host (its network too)? Then they meet where ShmRing's meet.
inline bool on_one_host(const ConnectRequest& request) {
  if (request.local_size < request.size || environment("TANDEM_PORT")) return false;
  if (request.local_size_known) return true;
  // RANK, WORLD_SIZE and MASTER_* alone, as for torch's env://, do not say how many ranks are here. An address that
  // other hosts can reach says that some may be there.
  const std::string master = environment("MASTER_ADDR").value_or("");
  const bool here =
      master.empty() || master == "localhost" || master.starts_with("127.") || master == "::1" || master == "[::1]";
  return here || !environment("MASTER_PORT");
}

inline TcpParty party_of(const ConnectRequest& request, Deadline deadline) {
  TcpParty party;
  party.rank = request.rank;
  party.size = request.size;
  party.deadline = deadline;
  party.checked = environment_integer("TANDEM_TCP_CRC", 0, 1).value_or(0) == 1;
  party.sockets = static_cast<int>(environment_integer("TANDEM_TCP_SOCKETS", 1, 16).value_or(1));
  if (auto secret = configured_secret()) {
    party.secret = std::move(*secret);
  } else if (on_one_host(request)) {
    // Rank 0's reaches the others over the host's rendezvous, which only lets processes of the same user in.
    const auto fresh = fresh_nonce();
    party.secret.assign(fresh.begin(), fresh.end());
  } else {
    throw party.failure(
        ErrorKind::environment, -1,
        "the ranks need a secret to know each other by; set TANDEM_SECRET_FILE to a file of at least 16 "
        "random bytes with mode 0600, the same on all hosts (or TANDEM_INSECURE=1 in a network where "
        "everybody is trusted)" +
            std::string(request.local_size_known
                            ? ""
                            : "; or, when all ranks are on this host, set LOCAL_WORLD_SIZE (or TANDEM_LOCAL_SIZE) to " +
                                  std::to_string(request.size)));
  }
  if (party.secret.empty() && party.rank == 0 && request.notice) {
    request.notice(
        "tandem: TANDEM_INSECURE=1: ranks do not prove who they are; whoever reaches their ports can take part in this "
        "job");
  }
  // Names of jobs are only the same on all ranks where one launcher's process made them.
  if (on_one_host(request)) party.job = job_number(request.job);
  return party;
}

inline TcpMeeting meet_on_host(TcpParty& party, const ConnectRequest& request) {
  TcpMeeting meeting;
  meeting.listening = listen_on(TcpAddress::loopback(), ports_from_environment());
  TcpCard card = own_card();
  card.address = local_address(meeting.listening);
  Introduction mine;
  const auto bytes = std::as_bytes(std::span(&card, 1));
  mine.data.assign(bytes.begin(), bytes.end());
  if (party.rank == 0) {
    const auto secret = std::as_bytes(std::span(party.secret));
    mine.data.insert(mine.data.end(), secret.begin(), secret.end());
  }
  mine.descriptors.push_back(own_process());
  auto all = meet("tcp:" + request.job, party.rank, party.size, std::move(mine), party.deadline);
  for (int rank = 0; rank < party.size; ++rank) {
    auto& [data, descriptors] = all[static_cast<std::size_t>(rank)];
    TcpCard theirs;
    if (descriptors.size() != 1 || data.size() < sizeof theirs || (rank != 0 && data.size() != sizeof theirs)) {
      throw party.failure(ErrorKind::environment, rank,
                          "rank " + std::to_string(rank) + " speaks another version of Tcp");
    }
    std::memcpy(&theirs, data.data(), sizeof theirs);
    if (!theirs.address.plausible()) {
      throw party.failure(ErrorKind::environment, rank, "rank " + std::to_string(rank) + " gave no address");
    }
    meeting.cards.push_back(theirs);
    meeting.processes.push_back(std::move(descriptors[0]));
    if (rank == 0) {
      const auto* const secret = reinterpret_cast<const std::uint8_t*>(data.data()) + sizeof theirs;
      party.secret.assign(secret, secret + (data.size() - sizeof theirs));
    }
  }
  return meeting;
}

/// What rank 0 says to each that came. Without `words` the table follows, else as many bytes of why there is none.
struct TcpVerdict {
  std::uint32_t words = 0;
  std::int32_t peer = -1;  // to blame; -1: several, or none
  std::int32_t timed_out = 0;
};

/// Rank 0 gives the meeting up, and everybody who came is told why.
[[noreturn]] inline void call_off(const TcpParty& party, const std::vector<Descriptor>& guests, ErrorKind kind,
                                  int peer, const std::string& reason) {
  const TcpVerdict verdict{static_cast<std::uint32_t>(reason.size()), peer, kind == ErrorKind::timeout ? 1 : 0};
  for (const Descriptor& guest : guests) {
    if (!guest) continue;
    const Deadline soon = Deadline::after(std::chrono::milliseconds(200));
    send_short(guest, std::as_bytes(std::span(&verdict, 1)), soon) &&
        send_short(guest, std::as_bytes(std::span(reason)), soon);
  }
  throw party.failure(kind, peer, reason);
}
/// The same for a rank with which no words could be changed, errno telling why.
[[noreturn]] inline void call_off_for(int rank, const TcpParty& party, const std::vector<Descriptor>& guests) {
  const bool timed_out = errno == ETIMEDOUT;
  call_off(
      party, guests, timed_out ? ErrorKind::timeout : ErrorKind::dead_peer, rank,
      "rank " + std::to_string(rank) +
          (timed_out ? " came, and did not do its part of the meeting within the deadline" : " gave the meeting up"));
}

/// Rank 0 listens at MASTER_ADDR; the others connect, say where they listen, and get the table.
inline TcpMeeting meet_over_network(const TcpParty& party) {
  const auto host = environment("MASTER_ADDR");
  if (!host) {
    throw party.failure(ErrorKind::environment, 0,
                        "Tcp over several hosts meets at rank 0's host; set MASTER_ADDR to its name or address");
  }
  const std::vector<TcpAddress> masters = resolve(*host, meeting_port());
  TcpMeeting meeting;
  TcpCard card = own_card();
  meeting.cards.resize(static_cast<std::size_t>(party.size));
  const auto table = std::as_writable_bytes(std::span(meeting.cards));
  if (party.rank != 0) {
    const Descriptor socket = connect_to(party, masters, 0, -1);
    // The interface by which rank 0 is reached is the one by which the others are.
    meeting.listening = listen_on(local_address(socket), ports_from_environment());
    card.address = local_address(meeting.listening);
    // Rank 0 has the same deadline and may come with the reason a moment after it.
    const Deadline patient = Deadline::after(party.deadline.remaining() + std::chrono::seconds(1));
    TcpVerdict verdict;
    if (!send_short(socket, std::as_bytes(std::span(&card, 1)), party.deadline) ||
        !receive_exactly(socket, std::as_writable_bytes(std::span(&verdict, 1)), patient)) {
      throw party.failure(errno == ETIMEDOUT ? ErrorKind::timeout : ErrorKind::dead_peer, 0,
                          errno == ETIMEDOUT ? "rank 0 did not tell within the deadline who the others are"
                                             : "rank 0 gave the meeting up");
    }
    if (verdict.words != 0) {
      std::string reason(std::min<std::size_t>(verdict.words, 4096), '\0');
      receive_exactly(socket, std::as_writable_bytes(std::span(reason)), patient);
      throw party.failure(verdict.timed_out != 0 ? ErrorKind::timeout : ErrorKind::dead_peer,
                          verdict.peer > 0 && verdict.peer < party.size ? verdict.peer : 0, reason);
    }
    if (!receive_exactly(socket, table, patient)) {
      throw party.failure(ErrorKind::dead_peer, 0, "rank 0 gave the meeting up");
    }
  } else {
    Descriptor door;
    std::string reason;
    for (const TcpAddress& address : masters) {
      try {
        door = listen_on(address, {address.port(), address.port()});
        break;
      } catch (const Error& error) {
        reason = error.what();
      }
    }
    if (!door) throw Error(ErrorKind::environment, reason, 0, -1, "join");
    meeting.listening = listen_on(local_address(door), ports_from_environment());
    card.address = local_address(meeting.listening);
    meeting.cards[0] = card;
    std::vector<Descriptor> guests(static_cast<std::size_t>(party.size));
    int missing = party.size - 1;
    TcpAcceptor acceptor(party, door);
    const bool all = missing == 0 || acceptor.run([&](Descriptor socket, const TcpPurpose& purpose) {
      auto& place = guests[static_cast<std::size_t>(purpose.from)];
      if (purpose.channel != -1 || place) return false;
      place = std::move(socket);
      return --missing == 0;
    });
    std::string absent;
    for (int rank = 1; rank < party.size; ++rank) {
      Descriptor& guest = guests[static_cast<std::size_t>(rank)];
      TcpCard& theirs = meeting.cards[static_cast<std::size_t>(rank)];
      if (!guest) {
        absent += (absent.empty() ? "" : ", ") + std::to_string(rank);
      } else if (all && !receive_exactly(guest, std::as_writable_bytes(std::span(&theirs, 1)), party.deadline)) {
        call_off_for(rank, party, guests);
      } else if (all && !theirs.address.plausible()) {
        call_off(party, guests, ErrorKind::environment, rank, "rank " + std::to_string(rank) + " gave no address");
      }
    }
    if (!all) {
      const TcpAddress here = local_address(door);
      const std::string reason =
          "did not come within the deadline: rank " + absent + "; rank 0 listens at " + here.text() +
          (here.is_loopback()
               ? ", which only its own host reaches: set MASTER_ADDR=" + *host + " to an address that other hosts reach"
               : "") +
          (acceptor.refusals().empty() ? "" : "; " + acceptor.refusals());
      call_off(party, guests, ErrorKind::timeout, -1, reason);
    }
    for (int rank = 1; rank < party.size; ++rank) {
      const TcpVerdict none;
      const Descriptor& guest = guests[static_cast<std::size_t>(rank)];
      if (!send_short(guest, std::as_bytes(std::span(&none, 1)), party.deadline) ||
          !send_short(guest, table, party.deadline)) {
        call_off_for(rank, party, guests);
      }
    }
  }
  for (int rank = 0; rank < party.size; ++rank) {
    if (!meeting.cards[static_cast<std::size_t>(rank)].address.plausible()) {
      throw party.failure(ErrorKind::environment, rank, "rank " + std::to_string(rank) + " gave no address");
    }
  }
  return meeting;
}

inline TcpMeeting meet_for_tcp(TcpParty& party, const ConnectRequest& request) {
  return on_one_host(request) ? meet_on_host(party, request) : meet_over_network(party);
}

}  // namespace tandem::detail
