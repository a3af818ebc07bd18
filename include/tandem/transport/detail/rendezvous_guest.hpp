// SPDX-License-Identifier: Apache-2.0
// The side of every rank but 0 in a rendezvous. Must not know what is in the introductions it takes.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
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

/// Every other rank: knocks until rank 0 answers, then listens.
class RendezvousGuest {
 public:
  RendezvousGuest(Meeting meeting, Introduction mine) : meeting_(std::move(meeting)), mine_(std::move(mine)) {
    result_.resize(static_cast<std::size_t>(meeting_.size));
    have_.resize(result_.size(), false);
  }

  std::vector<Introduction> run() {
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
      if (knock() && converse()) break;
      if (meeting_.deadline.expired()) throw too_late();
      // Ranks that start together should not all knock at the same moment again.
      const auto stagger = std::chrono::microseconds(100 * (meeting_.rank % 16));
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause + stagger, meeting_.deadline.remaining()));
    }
    result_[static_cast<std::size_t>(meeting_.rank)] = std::move(mine_);
    return std::move(result_);
  }

 private:
  /// Connects and says hello. False when nobody answers, or the wrong one.
  bool knock() {
    const SocketAddress address = rendezvous_address(meeting_.name);
    socket_ = open_rendezvous_socket();
    if (::connect(socket_.get(), address.get(), address.length) < 0) {
      if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR || errno == ECONNRESET || errno == ENOENT) {
        check_host_alive();
        return false;
      }
      throw system_failure("cannot connect to the rendezvous socket");
    }
    const ucred host = peer_credentials(socket_.get());
    foreign_ = host.uid != ::geteuid();
    host_ = host.pid;
    host_user_ = host.uid;
    if (foreign_) return false;
    return send_message(socket_.get(), meeting_.header(MessageKind::hello, meeting_.rank), mine_.data,
                        mine_.descriptors) == Transfer::done;
  }

  /// A rank 0 that ended before it answered: its successor may be on its way (a restarted job), but not for long.
  void check_host_alive() {
    if (host_ <= 0 || foreign_ || ::kill(host_, 0) == 0 || errno != ESRCH) {
      host_gone_.reset();
    } else if (!host_gone_) {
      host_gone_ = Deadline::after(std::chrono::seconds(1));
    } else if (host_gone_->expired()) {
      throw host_ended();
    }
  }

  /// True when everything has been exchanged. False when rank 0 closed before it had counted this rank.
  bool converse() {
    try {
      while (!gone_on_) {
        if (meeting_.deadline.expired()) give_up();
        std::vector<pollfd> one{{socket_.get(), POLLIN, 0}};
        poll_until(one, meeting_.deadline);
        if (!listen()) return false;
      }
      return true;
    } catch (const Error& cause) {
      // All others should hear the reason, not only that this rank went away. (After rank 0's verdict nobody listens.)
      send_message(socket_.get(), meeting_.farewell(cause), text_bytes(cause.what()));
      throw;
    }
  }

  bool listen() {
    Message message;
    for (;;) {
      switch (receive_message(socket_.get(), buffer_, message)) {
        case Transfer::later:
          return true;
        case Transfer::done:
          break;
        case Transfer::file_limit:
          throw meeting_.failure(ErrorKind::environment,
                                 "rank " + std::to_string(meeting_.rank) +
                                     " cannot take the files of the other ranks: its limit of open files is reached "
                                     "(raise it with ulimit -n)",
                                 meeting_.rank);
        case Transfer::malformed:
          throw nonsense();
        case Transfer::crowded:
        case Transfer::closed:
          if (welcome_) throw host_ended();
          return false;
      }
      take(message);
      if (gone_on_) return true;
    }
  }

  void take(Message& message) {
    const MessageHeader& said = message.header;
    if (said.version != rendezvous_version) {
      throw meeting_.failure(ErrorKind::mismatch,
                             "rank 0 (" + process_text(host_) + ") was built with version " +
                                 std::to_string(said.version) + " of the rendezvous, rank " +
                                 std::to_string(meeting_.rank) + " with version " + std::to_string(rendezvous_version) +
                                 ": build all ranks from the same tandem",
                             0);
    }
    if (said.kind == MessageKind::leave) throw meeting_.verdict(message);
    if (said.kind == MessageKind::welcome && !welcome_) {
      welcome_ = true;
      return;
    }
    const std::size_t wanted = result_.size() - 1;
    if (said.kind == MessageKind::introduction && welcome_ && said.rank >= 0 && said.rank < meeting_.size &&
        said.rank != meeting_.rank && !have_[static_cast<std::size_t>(said.rank)]) {
      have_[static_cast<std::size_t>(said.rank)] = true;
      result_[static_cast<std::size_t>(said.rank)] = {std::move(message.data), std::move(message.descriptors)};
      if (++count_ == wanted) send_message(socket_.get(), meeting_.header(MessageKind::complete, meeting_.rank));
      return;
    }
    if (said.kind != MessageKind::go || count_ != wanted) throw nonsense();
    gone_on_ = true;
  }

  /// The deadline, seen by a guest: only rank 0 knows who is missing, so it is asked to say it.
  void give_up() {
    const Error own = too_late();
    send_message(socket_.get(), meeting_.farewell(own), text_bytes(own.what()));
    const auto patience = Deadline::after(std::chrono::milliseconds(500));
    bool open = true;
    while (open && !patience.expired()) {
      std::vector<pollfd> one{{socket_.get(), POLLIN, 0}};
      poll_until(one, patience);
      open = listen();       // throws the verdict
      if (gone_on_) return;  // it came at the last moment
    }
    throw own;
  }

  Error host_ended() const {
    return meeting_.failure(ErrorKind::dead_peer, "rank 0 (" + process_text(host_) + ") ended during the rendezvous",
                            0);
  }
  Error nonsense() const {
    return meeting_.failure(ErrorKind::mismatch,
                            process_text(host_) + ", which holds the rendezvous " + quoted_name(meeting_.name) +
                                ", sent something that is no part of it",
                            0);
  }
  Error too_late() const {
    const std::string span = meeting_.span();
    if (foreign_) {
      return meeting_.failure(ErrorKind::environment,
                              "the rendezvous name " + quoted_name(meeting_.name) + " is held by " +
                                  process_text(host_) + " of user " + std::to_string(host_user_) +
                                  "; give this job another TANDEM_RENDEZVOUS",
                              0);
    }
    if (welcome_ || host_ != 0) {
      return meeting_.failure(ErrorKind::timeout,
                              "rank 0 (" + process_text(host_) + ") opened the rendezvous " +
                                  quoted_name(meeting_.name) + " but did not answer within " + span,
                              0);
    }
    return meeting_.failure(ErrorKind::timeout,
                            "rank 0 of " + std::to_string(meeting_.size) + " did not come within " + span +
                                " to the rendezvous " + quoted_name(meeting_.name) +
                                " (not started, or on another host or in another network namespace, or with another "
                                "name)",
                            0);
  }

  Meeting meeting_;
  Introduction mine_;
  Descriptor socket_;
  pid_t host_ = 0;
  uid_t host_user_ = 0;
  bool foreign_ = false;
  bool welcome_ = false;
  bool gone_on_ = false;
  std::optional<Deadline> host_gone_;
  std::vector<Introduction> result_;
  std::vector<bool> have_;
  std::size_t count_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace tandem::detail
