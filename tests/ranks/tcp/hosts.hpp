// SPDX-License-Identifier: Apache-2.0
// Where the processes of a Tcp test are: all on this host's loopback or, where network.py has made hosts for the test
// (network namespaces), each on the one that it is told to enter.
#pragma once

#include <fcntl.h>
#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tandem/transport/detail/descriptor.hpp"
#include "tandem/transport/detail/tcp_socket.hpp"

namespace tandem::test {

class Hosts {
 public:
  enum Place : std::size_t { first, second, third };

  /// TANDEM_TEST_HOSTS="NAMESPACE ADDRESS NAMESPACE ADDRESS ..."; loopback unless it is set.
  Hosts() {
    const char* const text = std::getenv("TANDEM_TEST_HOSTS");
    std::istringstream words(text != nullptr ? text : "");
    for (Host host; words >> host.name >> host.address;) hosts_.push_back(host);
  }
  bool apart() const noexcept { return !hosts_.empty(); }
  detail::TcpAddress address(Place place, int port) const {
    const std::string host = apart() ? hosts_.at(place).address : "127.0.0.1";
    return detail::resolve(host, static_cast<std::uint16_t>(port)).front();
  }
  /// From now on this process is there.
  void enter(Place place) const {
    if (!apart()) return;
    const Descriptor space(::open(("/run/netns/" + hosts_.at(place).name).c_str(), O_RDONLY | O_CLOEXEC));
    if (!space || ::setns(space.get(), CLONE_NEWNET) != 0) throw std::runtime_error("setns");
  }

 private:
  struct Host {
    std::string name, address;
  };
  std::vector<Host> hosts_;
};

/// Those of this run of the test.
inline const Hosts hosts;

}  // namespace tandem::test
