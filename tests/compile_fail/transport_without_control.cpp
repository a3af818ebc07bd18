// SPDX-License-Identifier: Apache-2.0
// A transport that only moves bytes.
// expect: tandem: the transport moves bytes but cannot keep its ranks in step
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/strategy/ddp.hpp"
#include "tandem/trainer/trainer.hpp"
#include "tandem/transport/shm_ring.hpp"

struct Net {
  at::Tensor weight;
  at::Tensor forward(const at::Tensor& x) const { return x.mul(weight); }
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const { return {{"weight", weight}}; }
};
/// ShmRing's channels, and no memory in which ranks announce what they do.
struct Pipes {
  static constexpr const char* name = "Pipes";
  static constexpr tandem::Reach reach = tandem::Reach::host;
  static constexpr std::size_t channel_capacity = 1;
  static constexpr bool has_windows = false;
  static constexpr bool moves_device_memory = false;
  struct Outgoing {
    std::span<std::byte> reserve();
    void commit(std::size_t);
  };
  struct Incoming {
    std::span<const std::byte> peek();
    void consume(std::size_t);
  };
  int rank() const;
  int size() const;
  std::size_t send_some(int, tandem::Channel, std::span<const std::byte>);
  std::size_t recv_some(int, tandem::Channel, std::span<std::byte>);
  Outgoing outgoing(int, tandem::Channel);
  Incoming incoming(int, tandem::Channel);
  bool forked() const;
  tandem::Health health(int) const;
  std::string describe(int) const;
  void close();
};
static_assert(tandem::Transport<Pipes>);

#ifdef TANDEM_SHOULD_FAIL
using Policies = tandem::Trainer<Net, tandem::Ddp<>, Pipes>;
#else
using Policies = tandem::Trainer<Net, tandem::Ddp<>, tandem::ShmRing>;
#endif

void touch(Policies& trainer) { (void)trainer; }
