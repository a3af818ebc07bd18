// SPDX-License-Identifier: Apache-2.0
// Processes that are none of the job's ranks connect, send rubbish, lie, or hold the name: the job meets all the same,
// or says what stands in its way.
#include <sys/resource.h>

#include <random>

#include "meeting.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

Descriptor connect_to(const std::string& name) {
  const auto address = detail::rendezvous_address(name);
  for (int attempt = 0; attempt < 2000; ++attempt) {
    Descriptor socket = detail::open_rendezvous_socket();
    if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
    pause_for(0.002);
  }
  return {};
}

void send_bytes(const Descriptor& socket, const void* data, std::size_t bytes) {
  [[maybe_unused]] const ssize_t sent = ::send(socket.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// Two ranks meet; between the first and the second `stranger` does what it likes with the name.
void meet_despite(const std::function<void(const std::string&)>& stranger) {
  const std::string name = fresh_rendezvous();
  on_ranks(3, [&](int process) {
    if (process == 2) return stranger(name);
    if (process == 1) pause_for(0.3);
    Stopwatch watch;
    check_introductions(meet(name, process, 2, introduction(process, 50, 2), soon(20)), 2, 50, 2);
    CHECK(watch.seconds() < 8);
  });
}

}  // namespace

TEST_CASE("a stranger that says nothing, or not our words, is ignored") {
  meet_despite([](const std::string& name) {
    const Descriptor silent = connect_to(name);
    std::vector<Descriptor> keep;
    const std::string http = "GET / HTTP/1.0\r\n\r\n";
    const std::vector<char> large(100'000, 'x');
    keep.push_back(connect_to(name));
    send_bytes(keep.back(), http.data(), http.size());
    keep.push_back(connect_to(name));
    send_bytes(keep.back(), large.data(), large.size());
    keep.push_back(connect_to(name));
    send_bytes(keep.back(), large.data(), 0);
    keep.push_back(connect_to(name));
    detail::MessageHeader header;
    header.rank = 1;
    header.size = 2;
    send_bytes(keep.back(), &header, sizeof(header) - 1);
    pause_for(0.6);
  });
}

TEST_CASE("lengths that lie are refused, whatever they claim") {
  meet_despite([](const std::string& name) {
    std::vector<Descriptor> keep;
    for (const std::uint32_t lie : {1u, 65'536u, 0x7fff'ffffu, 0xffff'ffffu}) {
      for (const bool of_descriptors : {false, true}) {
        detail::MessageHeader header;
        header.rank = 1;
        header.size = 2;
        (of_descriptors ? header.descriptors : header.bytes) = lie;
        keep.push_back(connect_to(name));
        send_bytes(keep.back(), &header, sizeof(header));
      }
    }
    for (const auto& [rank, size] : {std::pair{2, 2}, {-1, 2}, {-5, -2}, {0, 0}}) {
      const detail::Meeting liar{name, rank, size, Deadline::never()};
      keep.push_back(connect_to(name));
      detail::send_message(keep.back().get(), liar.header(detail::MessageKind::hello, rank));
    }
    pause_for(0.6);
  });
}

TEST_CASE("descriptors that nobody announced are closed") {
  const std::string name = fresh_rendezvous();
  on_ranks(3, [&](int process) {
    if (process == 2) {
      for (int i = 0; i < 50; ++i) {
        const Descriptor socket = connect_to(name);
        if (!socket) return;
        detail::MessageHeader header;
        header.magic = 1;
        const Introduction mine = introduction(7, 0, 16);
        detail::send_message(socket.get(), header, {}, mine.descriptors);
      }
      return;
    }
    if (process == 1) pause_for(0.4);
    const int before = open_files();
    check_introductions(meet(name, process, 2, introduction(process, 1, 1), soon(20)), 2, 1, 1);
    CHECK(open_files() == before);
  });
}

TEST_CASE("hundreds of silent connections hold nobody up") {
  meet_despite([](const std::string& name) {
    std::vector<Descriptor> keep;
    for (int i = 0; i < 400; ++i) {
      Descriptor socket = detail::open_rendezvous_socket();
      const auto address = detail::rendezvous_address(name);
      if (::connect(socket.get(), address.get(), address.length) < 0) pause_for(0.002);
      keep.push_back(std::move(socket));
    }
    pause_for(0.6);
  });
}

TEST_CASE("silent connections do not use up rank 0's files") {
  const std::string name = fresh_rendezvous();
  on_ranks(3, [&](int process) {
    if (process == 2) {
      std::vector<Descriptor> keep;
      for (int i = 0; i < 60; ++i) keep.push_back(connect_to(name));
      pause_for(0.6);
      return;
    }
    if (process == 0) {
      const auto now = static_cast<rlim_t>(open_files());
      const rlimit limit{now + 30, now + 30};
      REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    if (process == 1) pause_for(0.3);
    check_introductions(meet(name, process, 2, introduction(process, 50, 2), soon(10)), 2, 50, 2);
  });
}

TEST_CASE("random bytes around a true hello never crash or hang rank 0") {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    const std::string name = fresh_rendezvous();
    const auto endings = run_ranks(2, [&](int process) {
      if (process == 0) {
        // Whatever comes, it ends: nobody here ever is rank 1, or one of the lies names it, or the deadline does.
        for (Stopwatch watch; watch.seconds() < 1.0;) {
          const auto error = failed_meeting(name, 0, 3, 0.02);
          REQUIRE(error);
        }
        return;
      }
      std::mt19937 random(seed);
      Stopwatch watch;
      while (watch.seconds() < 1.0) {
        Descriptor socket = detail::open_rendezvous_socket();
        const auto address = detail::rendezvous_address(name);
        if (::connect(socket.get(), address.get(), address.length) < 0) {
          pause_for(0.0002);
          continue;
        }
        for (int message = 0; message < 3; ++message) {
          std::array<unsigned char, 64> bytes{};
          detail::MessageHeader header;
          header.kind = static_cast<detail::MessageKind>(1 + random() % 7);
          header.rank = static_cast<std::int32_t>(random() % 4);
          header.size = 3;
          header.bytes = random() % 2 != 0 ? 24 : 0;
          std::memcpy(bytes.data(), &header, sizeof(header));
          for (unsigned change = random() % 4; change > 0; --change) {
            bytes[random() % bytes.size()] = static_cast<unsigned char>(random());
          }
          send_bytes(socket, bytes.data(), header.bytes != 0 ? bytes.size() : sizeof(header));
        }
      }
    });
    CHECK(endings[0].clean());
    CHECK(endings[1].clean());
  }
}

TEST_CASE("a process of another user is dropped without a word") {
  if (::geteuid() != 0) {
    MESSAGE("left out here: only root may become another user");
    return;
  }
  const std::string name = fresh_rendezvous();
  const auto address = detail::rendezvous_address(name);  // root's name for it
  on_ranks(3, [&](int process) {
    if (process == 2) {
      REQUIRE(::setresuid(65534, 65534, 65534) == 0);
      Descriptor socket;
      for (int attempt = 0; attempt < 1000; ++attempt) {
        socket = detail::open_rendezvous_socket();
        if (::connect(socket.get(), address.get(), address.length) == 0) break;
        pause_for(0.002);
      }
      const detail::Meeting intruder{name, 1, 2, Deadline::never()};
      detail::send_message(socket.get(), intruder.header(detail::MessageKind::hello, 1));
      std::vector<pollfd> one{{socket.get(), POLLIN, 0}};
      detail::poll_until(one, soon(5));
      std::vector<std::byte> buffer;
      detail::Message message;
      CHECK(detail::receive_message(socket.get(), buffer, message) == detail::Transfer::closed);
      return;
    }
    if (process == 1) pause_for(0.3);
    check_introductions(meet(name, process, 2, introduction(process, 50, 2), soon(20)), 2, 50, 2);
  });
}

TEST_CASE("C025: a name held by another user is explained on every rank") {
  if (::geteuid() != 0) {
    MESSAGE("left out here: only root may become another user");
    return;
  }
  const std::string name = fresh_rendezvous();
  const auto address = detail::rendezvous_address(name);
  on_ranks(3, [&](int process) {
    if (process == 2) {
      REQUIRE(::setresuid(65534, 65534, 65534) == 0);
      const Descriptor socket = detail::open_rendezvous_socket();
      REQUIRE(::bind(socket.get(), address.get(), address.length) == 0);
      REQUIRE(::listen(socket.get(), 8) == 0);
      pause_for(1.4);
      return;
    }
    pause_for(0.3);
    const auto error = failed_meeting(name, process, 2, 0.7);
    REQUIRE(error);
    INFO(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::environment);
    CHECK(contains(error->what(), "of user 65534"));
    CHECK(contains(error->what(), "TANDEM_RENDEZVOUS"));
  });
}

TEST_CASE("a name held by a program that is no rendezvous is explained, and taken when it becomes free") {
  for (const bool freed : {false, true}) {
    CAPTURE(freed);
    const std::string name = fresh_rendezvous();
    const auto address = detail::rendezvous_address(name);
    on_ranks(3, [&](int process) {
      if (process == 2) {
        const Descriptor socket = detail::open_rendezvous_socket();
        REQUIRE(::bind(socket.get(), address.get(), address.length) == 0);
        REQUIRE(::listen(socket.get(), 8) == 0);
        pause_for(freed ? 0.5 : 1.3);
        return;
      }
      pause_for(0.2);
      if (freed) {
        check_introductions(meet(name, process, 2, introduction(process, 50, 2), soon(20)), 2, 50, 2);
        return;
      }
      const auto error = failed_meeting(name, process, 2, 0.7);
      REQUIRE(error);
      INFO(std::string(error->what()));
      CHECK(error->kind() == (process == 0 ? ErrorKind::environment : ErrorKind::timeout));
      CHECK(contains(error->what(), process == 0 ? "has been in use" : "did not answer"));
    });
  }
}

TEST_CASE("a rank of another version of the library is refused by number, on all ranks") {
  const std::string name = fresh_rendezvous();
  on_ranks(2, [&](int process) {
    if (process == 1) {
      const Descriptor socket = connect_to(name);
      detail::MessageHeader header;
      header.version = 999;
      header.rank = 1;
      header.size = 2;
      send_bytes(socket, &header, sizeof(header));
      std::vector<pollfd> one{{socket.get(), POLLIN, 0}};
      detail::poll_until(one, soon(5));
      std::vector<std::byte> buffer;
      detail::Message message;
      REQUIRE(detail::receive_message(socket.get(), buffer, message) == detail::Transfer::done);
      CHECK(message.header.kind == detail::MessageKind::leave);
      return;
    }
    const auto error = failed_meeting(name, 0, 2, 20);
    REQUIRE(error);
    INFO(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::mismatch);
    CHECK(contains(error->what(), "version 999"));
  });
}
