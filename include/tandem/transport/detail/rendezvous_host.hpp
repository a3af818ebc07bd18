// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of a rendezvous. Must not know what is in the introductions it passes on.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"
#include "tandem/transport/detail/rendezvous_meeting.hpp"
#include "tandem/transport/detail/rendezvous_message.hpp"

namespace tandem::detail {

/// Rank 0: binds the name, counts the guests, passes everything on, and tells all of them whatever goes wrong.
/// One thread, one poll loop: a guest that is slow, silent or hostile holds nobody up.
class RendezvousHost {
 public:
  RendezvousHost(Meeting meeting, Introduction mine) : meeting_(std::move(meeting)) {
    seats_.resize(static_cast<std::size_t>(meeting_.size));
    seats_[0].introduction = std::move(mine);
    seats_[0].taken = true;
    seats_[0].process = ::getpid();
  }

  std::vector<Introduction> run() {
    try {
      listen();
      while (!all_complete()) turn();
      listener_.reset();  // from here on the name is free again: the next meeting may begin before this one has closed
      for (Guest& guest : guests_) {
        if (guest.rank > 0) send_message(guest.socket.get(), meeting_.header(MessageKind::go, 0));
      }
      guests_.clear();
    } catch (const Error& cause) {
      tell_all(cause);
      throw;
    }
    std::vector<Introduction> result;
    for (Seat& seat : seats_) result.push_back(std::move(seat.introduction));
    return result;
  }

 private:
  struct Seat {
    bool taken = false;
    pid_t process = 0;
    Introduction introduction;
  };
  struct Guest {
    Descriptor socket;
    pid_t process = 0;
    int rank = -1;  // until it has said hello
    int next = 0;   // the next introduction it gets
    bool blocked = false;
    bool complete = false;
    bool gone = false;
  };

  void listen() {
    const SocketAddress address = rendezvous_address(meeting_.name);
    std::optional<ucred> holder;
    for (;;) {
      Descriptor socket = open_rendezvous_socket();
      if (::bind(socket.get(), address.get(), address.length) == 0) {
        if (::listen(socket.get(), SOMAXCONN) < 0) throw system_failure("cannot listen on the rendezvous socket");
        listener_ = std::move(socket);
        return;
      }
      if (errno != EADDRINUSE) throw system_failure("cannot bind the rendezvous socket");
      // Either this job's last meeting is just closing, or another process says that it is rank 0: then that one tells.
      if (const auto answer = ask_holder(address)) holder = answer;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (meeting_.deadline.expired()) {
        throw meeting_.failure(
            ErrorKind::environment,
            "the rendezvous name " + quoted_name(meeting_.name) + " has been in use for " + meeting_.span() +
                (holder ? " by " + process_text(holder->pid) + " of user " + std::to_string(holder->uid)
                        : std::string()) +
                "; give this job another TANDEM_RENDEZVOUS",
            0);
      }
    }
  }

  /// Knocks as a second rank 0. Throws the holder's verdict, if it gives one within 50 ms.
  std::optional<ucred> ask_holder(const SocketAddress& address) {
    const auto pause = Deadline::after(std::chrono::milliseconds(50));
    Descriptor socket = open_rendezvous_socket();
    if (::connect(socket.get(), address.get(), address.length) < 0) return std::nullopt;
    const ucred holder = peer_credentials(socket.get());
    if (holder.uid != ::geteuid()) return holder;
    if (send_message(socket.get(), meeting_.header(MessageKind::hello, 0)) != Transfer::done) return holder;
    while (!pause.expired()) {
      std::vector<pollfd> one{{socket.get(), POLLIN, 0}};
      poll_until(one, pause);
      Message message;
      const Transfer got = receive_message(socket.get(), buffer_, message);
      if (got == Transfer::later) continue;
      if (got == Transfer::done && message.header.kind == MessageKind::leave) throw meeting_.verdict(message);
      return holder;
    }
    return holder;
  }

  bool all_here() const {
    return std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.taken; });
  }
  bool all_complete() const {
    return all_here() && std::all_of(guests_.begin(), guests_.end(),
                                     [](const Guest& guest) { return guest.rank < 0 || guest.complete; });
  }

  void turn() {
    if (meeting_.deadline.expired()) throw too_late();
    bool crowded = false;
    if (all_here()) {
      for (Guest& guest : guests_) crowded = pass_on(guest) || crowded;
    }
    wait(crowded ? Deadline::after(
                       std::min<std::chrono::nanoseconds>(meeting_.deadline.remaining(), std::chrono::milliseconds(2)))
                 : meeting_.deadline);
    for (Guest& guest : guests_) {
      if (guest.gone || !readable_.contains(guest.socket.get())) continue;
      for (Message message; !guest.gone && listen_to(guest, message);) answer(guest, message);
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.gone; });
  }

  Error too_late() const {
    std::string missing;
    int first = -1;
    int count = 0;
    for (int rank = 0; rank < meeting_.size; ++rank) {
      if (seats_[static_cast<std::size_t>(rank)].taken) continue;
      if (count++ == 0) first = rank;
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (count == 0) {
      const auto slow = std::find_if(guests_.begin(), guests_.end(),
                                     [](const Guest& guest) { return guest.rank > 0 && !guest.complete; });
      const bool found = slow != guests_.end();
      return meeting_.failure(ErrorKind::timeout,
                              (found ? "rank " + std::to_string(slow->rank) + " (" + process_text(slow->process) +
                                           ") came but did not go on within "
                                     : "all ranks came, but not all could go on within ") +
                                  meeting_.span(),
                              found ? slow->rank : -1);
    }
    return meeting_.failure(ErrorKind::timeout,
                            (count == 1 ? "rank " : "ranks ") + missing + " of " + std::to_string(meeting_.size) +
                                " did not come within " + meeting_.span() + " to the rendezvous " +
                                quoted_name(meeting_.name) +
                                " (not started, or on another host or in another network "
                                "namespace, or with another name)",
                            first);
  }

  /// Sends a guest the introductions it lacks. True when the kernel asks for a moment of patience.
  bool pass_on(Guest& guest) {
    guest.blocked = false;
    while (guest.rank > 0 && guest.next < meeting_.size) {
      const Introduction& one = seats_[static_cast<std::size_t>(guest.next)].introduction;
      if (guest.next != guest.rank) {
        const Transfer sent = send_message(guest.socket.get(), meeting_.header(MessageKind::introduction, guest.next),
                                           one.data, one.descriptors);
        if (sent == Transfer::crowded) return true;
        guest.blocked = sent == Transfer::later;
        if (sent != Transfer::done) return false;  // closed: the next read says why
      }
      ++guest.next;
    }
    return false;
  }

  /// Waits, lets newcomers in, and notes in `readable_` whose sockets have something.
  void wait(Deadline until) {
    std::vector<pollfd> sockets;
    sockets.push_back({listener_.get(), static_cast<short>(accepting_ ? POLLIN : 0), 0});
    for (const Guest& guest : guests_) {
      sockets.push_back({guest.socket.get(), static_cast<short>(POLLIN | (guest.blocked ? POLLOUT : 0)), 0});
    }
    poll_until(sockets, accepting_ ? until
                                   : Deadline::after(std::min<std::chrono::nanoseconds>(
                                         until.remaining(), std::chrono::milliseconds(20))));
    accepting_ = true;
    readable_.clear();
    for (std::size_t i = 1; i < sockets.size(); ++i) {
      if ((sockets[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) readable_.insert(sockets[i].fd);
    }
    if ((sockets[0].revents & POLLIN) != 0) let_in();
  }

  void let_in() {
    for (;;) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN) return;
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
          accepting_ = false;  // look at the others first, and again in a moment
          drop_oldest_silent();
          return;
        }
        throw system_failure("cannot accept on the rendezvous socket");
      }
      const ucred credentials = peer_credentials(socket.get());
      if (credentials.uid != ::geteuid()) continue;  // a stranger: dropped without a word
      const auto silent = std::count_if(guests_.begin(), guests_.end(), [](const Guest& g) { return g.rank < 0; });
      if (silent > 2 * meeting_.size + 64) drop_oldest_silent();
      Guest guest;
      guest.process = credentials.pid;
      readable_.insert(socket.get());  // it mostly has said hello already
      guest.socket = std::move(socket);
      guests_.push_back(std::move(guest));
    }
  }

  void drop_oldest_silent() {
    const auto oldest = std::find_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return guest.rank < 0; });
    if (oldest != guests_.end()) guests_.erase(oldest);
  }

  /// Takes one message of a guest. False when there is none; a guest that is not one of us is dropped, and one that has
  /// said hello and breaks off ends the meeting.
  bool listen_to(Guest& guest, Message& message) {
    const Transfer got = receive_message(guest.socket.get(), buffer_, message);
    if (got == Transfer::later) return false;
    if (got == Transfer::done) return true;
    guest.gone = true;
    if (got == Transfer::file_limit) {
      bool room =
          false;  // made by letting those go who have said nothing; this one comes again, for it was not welcomed
      for (Guest& other : guests_) {
        if (guest.rank >= 0 || other.rank >= 0 || &other == &guest) continue;
        other.gone = true;
        room = true;
      }
      if (room) return false;
      throw meeting_.failure(ErrorKind::environment,
                             "rank 0 cannot take the files of " + process_text(guest.process) +
                                 ": its limit of open files is reached (raise it with ulimit -n)",
                             0);
    }
    if (guest.rank < 0) return false;
    throw meeting_.failure(
        ErrorKind::dead_peer,
        "rank " + std::to_string(guest.rank) + " (" + process_text(guest.process) + ") ended during the rendezvous",
        guest.rank);
  }

  void answer(Guest& guest, Message& message) {
    const MessageHeader& said = message.header;
    if (said.version != rendezvous_version) {
      guest.rank = meeting_.size;  // nobody's number: it is told, and counts for no rank
      throw meeting_.failure(ErrorKind::mismatch,
                             process_text(guest.process) + " was built with version " + std::to_string(said.version) +
                                 " of the rendezvous, rank 0 with version " + std::to_string(rendezvous_version) +
                                 ": build all ranks from the same tandem");
    }
    if (guest.rank < 0) {
      if (said.kind == MessageKind::hello && said.rank >= 0 && said.rank < said.size) return seat(guest, message);
      guest.gone = true;  // not one of us
      return;
    }
    if (said.kind == MessageKind::complete && guest.next == meeting_.size) {
      guest.complete = true;
    } else if (said.kind == MessageKind::leave) {
      if (said.error_kind == static_cast<int>(ErrorKind::timeout)) throw too_late();  // it cannot know who is missing
      throw meeting_.verdict(message);
    } else {
      throw meeting_.failure(ErrorKind::mismatch,
                             "rank " + std::to_string(guest.rank) + " (" + process_text(guest.process) +
                                 ") sent something that is no part of the rendezvous",
                             guest.rank);
    }
  }

  void seat(Guest& guest, Message& message) {
    guest.rank = message.header.rank;
    const std::string who = "rank " + std::to_string(guest.rank) + " (" + process_text(guest.process) + ")";
    if (message.header.size != meeting_.size) {
      throw meeting_.failure(ErrorKind::mismatch,
                             who + " says that the world has " + std::to_string(message.header.size) +
                                 " ranks, rank 0 (" + process_text(seats_[0].process) + ") says " +
                                 std::to_string(meeting_.size),
                             guest.rank);
    }
    Seat& seat = seats_[static_cast<std::size_t>(guest.rank)];
    if (seat.taken) {
      throw meeting_.failure(ErrorKind::mismatch,
                             process_text(seat.process) + " and " + process_text(guest.process) +
                                 " both say that they are rank " + std::to_string(guest.rank) + " of " +
                                 std::to_string(meeting_.size),
                             guest.rank);
    }
    seat.taken = true;
    seat.process = guest.process;
    seat.introduction = {std::move(message.data), std::move(message.descriptors)};
    send_message(guest.socket.get(), meeting_.header(MessageKind::welcome, 0));  // closed: the next read says so
  }

  /// Tells the guests why it failed, first those who have come; those who are on their way have a second to hear it
  /// too, instead of waiting for a rank 0 that is gone. Who was told and knocks again is in the next meeting already:
  /// it gets no answer, and finds the name free in a moment.
  void tell_all(const Error& cause) noexcept {
    try {
      std::set<int> told{0};
      const auto tell = [&](Guest& guest) {
        if (!guest.gone) send_message(guest.socket.get(), meeting_.farewell(cause), text_bytes(cause.what()));
        if (guest.rank < meeting_.size) told.insert(guest.rank);
        guest.socket.reset();
      };
      for (Guest& guest : guests_) {
        if (guest.rank >= 0) tell(guest);
      }
      std::erase_if(guests_, [](const Guest& guest) { return guest.rank >= 0; });
      const auto until = Deadline::after(std::chrono::milliseconds(cause.kind() == ErrorKind::timeout ? 0 : 1000));
      while (listener_ && static_cast<int>(told.size()) < meeting_.size && !until.expired()) {
        wait(until);
        for (Guest& guest : guests_) {
          Message message;
          const Transfer got = receive_message(guest.socket.get(), buffer_, message);
          if (got == Transfer::later) continue;
          guest.rank = std::max(0, message.header.rank);
          guest.gone = got != Transfer::done || told.contains(guest.rank);
          tell(guest);
        }
        std::erase_if(guests_, [](const Guest& guest) { return guest.rank >= 0; });
      }
    } catch (...) {  // the first cause is what the caller needs; a rank that could not be told sees the socket close
    }
    listener_.reset();
    guests_.clear();
  }

  Meeting meeting_;
  Descriptor listener_;
  bool accepting_ = true;
  std::vector<Seat> seats_;
  std::vector<Guest> guests_;
  std::set<int> readable_;
  std::vector<std::byte> buffer_;
};

}  // namespace tandem::detail
