// SPDX-License-Identifier: Apache-2.0
// Packets on the rendezvous socket of a host, as any process of the same user might send them, open files and all:
// taken or refused by their header alone, never with more than was sent, and no descriptor is left open.
#include "tandem/transport/detail/rendezvous_message.hpp"

#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "fuzz/require.hpp"
#include "tandem/transport/detail/rendezvous_meeting.hpp"

using namespace tandem;
using namespace tandem::detail;
using tandem::test::require;

namespace {

using Bytes = std::vector<std::byte>;

struct Pair {
  Descriptor near;
  Descriptor far;
  Pair() {
    std::array<int, 2> ends{};
    require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0, "socketpair");
    near = Descriptor(ends[0]);
    far = Descriptor(ends[1]);
  }
};

/// One packet as it is, with `count` descriptors, however little that makes sense.
bool send_raw(const Descriptor& socket, std::span<const std::byte> bytes, std::size_t count) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 32)> control{};
  if (count != 0) {
    packet.msg_control = control.data();
    packet.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* const rights = CMSG_FIRSTHDR(&packet);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
    for (std::size_t i = 0; i < count; ++i) {
      const int number = socket.get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &number, sizeof number);
    }
  }
  return ::sendmsg(socket.get(), &packet, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/// The number that the next descriptor would get: goes up for each one that is left open.
int next_number(const Descriptor& any) {
  const Descriptor probe(::dup(any.get()));
  return probe.get();
}

Transfer expected(std::span<const std::byte> bytes, std::size_t descriptors) {
  if (bytes.empty()) return Transfer::closed;
  if (bytes.size() < sizeof(MessageHeader) || bytes.size() > sizeof(MessageHeader) + rendezvous_most_bytes) {
    return Transfer::malformed;
  }
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != rendezvous_magic) return Transfer::malformed;
  if (header.version != rendezvous_version) return Transfer::done;
  if (header.bytes != bytes.size() - sizeof header || header.descriptors > rendezvous_most_descriptors) {
    return Transfer::malformed;
  }
  // More than there is room for: the kernel cuts them off and says so.
  const std::size_t taken = std::min(descriptors, rendezvous_most_descriptors);
  if (header.descriptors == taken) return Transfer::done;
  return taken < descriptors ? Transfer::file_limit : Transfer::malformed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Pair pair;
  static const Pair mirror;
  static std::vector<std::byte> scratch;
  FuzzedDataProvider input(data, size);
  const auto descriptors = input.ConsumeIntegralInRange<std::size_t>(0, 20);
  MessageHeader header;
  header.kind = static_cast<MessageKind>(input.ConsumeIntegral<std::uint32_t>());
  header.rank = input.ConsumeIntegral<std::int32_t>();
  header.size = input.ConsumeIntegral<std::int32_t>();
  header.error_kind = input.ConsumeIntegral<std::int32_t>();
  header.peer = input.ConsumeIntegral<std::int32_t>();
  header.magic ^= input.ConsumeIntegralInRange<int>(0, 9) == 0 ? input.ConsumeIntegral<std::uint64_t>() : 0;
  header.version ^= input.ConsumeIntegralInRange<int>(0, 9) == 0 ? input.ConsumeIntegral<std::uint32_t>() : 0;
  header.descriptors = static_cast<std::uint32_t>(descriptors);
  if (input.ConsumeIntegralInRange<int>(0, 5) == 0) header.descriptors = input.ConsumeIntegral<std::uint32_t>();
  const bool wrong_length = input.ConsumeIntegralInRange<int>(0, 5) == 0;
  const auto length = input.ConsumeIntegral<std::uint32_t>();
  const bool large = input.ConsumeIntegralInRange<int>(0, 20) == 0;
  const std::size_t large_bytes = rendezvous_most_bytes - 2 + input.ConsumeIntegralInRange<std::size_t>(0, 4);
  const bool cut = input.ConsumeIntegralInRange<int>(0, 9) == 0;
  Bytes payload;
  for (const std::uint8_t byte : input.ConsumeRemainingBytes<std::uint8_t>()) payload.push_back(std::byte{byte});
  if (large) payload.resize(large_bytes);
  header.bytes = wrong_length ? length : static_cast<std::uint32_t>(payload.size());
  Bytes packet(sizeof header);
  std::memcpy(packet.data(), &header, sizeof header);
  packet.insert(packet.end(), payload.begin(), payload.end());
  if (cut) packet.resize(length % (packet.size() + 1));

  const int before = next_number(pair.near);
  if (!send_raw(pair.near, packet, descriptors)) return 0;
  {
    Message message;
    const Transfer transfer = receive_message(pair.far.get(), scratch, message);
    require(transfer == expected(packet, descriptors), "a packet is taken or refused by its header");
    require(message.data.size() <= rendezvous_most_bytes, "no more bytes than may be");
    require(message.descriptors.size() <= rendezvous_most_descriptors, "no more descriptors than may be");
    if (transfer == Transfer::done && message.header.version == rendezvous_version) {
      // What was taken is what was sent: said again, it is the same packet.
      require(send_message(mirror.near.get(), message.header, message.data, message.descriptors) == Transfer::done,
              "what was taken can be sent");
      Bytes again(packet.size() + 1);
      const ssize_t count = ::recv(mirror.far.get(), again.data(), again.size(), MSG_DONTWAIT);
      require(count == static_cast<ssize_t>(packet.size()), "as many bytes");
      again.resize(packet.size());
      require(again == packet, "the same bytes");
      const Meeting meeting{"a job", 0, 2};
      require(meeting.verdict(message).rank() == 0, "a farewell of any kind becomes an Error of this rank");
    }
  }
  require(next_number(pair.near) == before, "no descriptor is left open");
  return 0;
}
