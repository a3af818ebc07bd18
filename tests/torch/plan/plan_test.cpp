// SPDX-License-Identifier: Apache-2.0
// first_fault finds each fault, at compile time; and every fault has its files: this test, a program that must not
// compile, and an entry in the reference.
#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/plan/check.hpp"
#include "tandem/strategy/ddp.hpp"
#include "tandem/strategy/zero.hpp"
#include "tandem/transport/shm_ring.hpp"

namespace {

using tandem::Ddp;
using tandem::Fault;
using tandem::ShmRing;
using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

struct Net {
  at::Tensor forward(const at::Tensor&) const;
  Parameters named_parameters() const;
};
struct Overloaded {
  at::Tensor forward(const at::Tensor&) const;
  at::Tensor forward(const at::Tensor&, const at::Tensor&) const;
  Parameters named_parameters() const;
};
struct Generic {
  template <class... Inputs>
  at::Tensor forward(const Inputs&...);
  Parameters named_parameters() const;
};
struct Last final {
  at::Tensor forward(const at::Tensor&);
  Parameters named_parameters();
};
struct Pair {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor&, double);
  Parameters named_parameters();
};
/// The shape of torch::OrderedDict.
struct Item {
  const std::string& key() const;
  at::Tensor& value();
};
struct Dictionary {
  at::Tensor forward(const at::Tensor&);
  std::vector<Item> named_parameters();
};
/// The shape of torch::nn::ModuleHolder.
struct Holder {
  Net* operator->() const;
  Net& operator*() const;
  const std::shared_ptr<Net>& ptr() const;
};

struct NoForward {
  Parameters named_parameters() const;
};
struct NoParameters {
  at::Tensor forward(const at::Tensor&) const;
};
struct Nameless {
  at::Tensor forward(const at::Tensor&) const;
  std::vector<at::Tensor> named_parameters() const;
};
struct Idle {
  static constexpr int degree = 0;
  static constexpr const char* name = "Idle";
  static constexpr const char* reference = "nothing";
};
/// ShmRing, but for what it says of itself.
struct Distant : tandem::ShmRing {
  static constexpr bool has_windows = false;
};
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
static_assert(tandem::Transport<Pipes> && !tandem::WindowTransport<Pipes>);

template <class M, class S = Ddp<>, class T = ShmRing>
constexpr Fault fault = tandem::first_fault<M, S, T>();

// What is right.
static_assert(fault<Net> == Fault::none);
static_assert(fault<Net, Ddp<2>> == Fault::none);
static_assert(fault<Overloaded> == Fault::none);
static_assert(fault<Generic> == Fault::none);
static_assert(fault<Last> == Fault::none);
static_assert(fault<Pair> == Fault::none);
static_assert(fault<Dictionary> == Fault::none);
static_assert(fault<Holder> == Fault::none);
static_assert(fault<std::shared_ptr<Net>> == Fault::none);
static_assert(fault<std::unique_ptr<Net>> == Fault::none);
static_assert(tandem::Check<Net, Ddp<>, ShmRing>::sound);
static_assert(std::is_same_v<tandem::Module<Holder>, Net>);
static_assert(std::is_same_v<tandem::Output<Net>, at::Tensor>);
static_assert(std::is_same_v<tandem::Output<Overloaded>, at::Tensor>);
static_assert(std::is_same_v<tandem::Output<Pair>, std::pair<at::Tensor, at::Tensor>>);
static_assert(tandem::StrategyEngine<Ddp<>::Engine<ShmRing>, ShmRing>);

// What is wrong with the policies.
static_assert(fault<Net&> == Fault::model_not_a_value);
static_assert(fault<Net*> == Fault::model_not_a_value);
static_assert(fault<const Net> == Fault::model_not_a_value);
static_assert(fault<Net[2]> == Fault::model_not_a_value);
static_assert(fault<NoForward> == Fault::model_without_forward);
static_assert(fault<std::shared_ptr<NoForward>> == Fault::model_without_forward);
static_assert(fault<NoParameters> == Fault::model_without_named_parameters);
static_assert(fault<Nameless> == Fault::parameters_without_names);
static_assert(fault<Net, ShmRing, Ddp<>> == Fault::strategy_and_transport_swapped);
static_assert(fault<Net, int> == Fault::not_a_strategy);
static_assert(fault<Net, Net> == Fault::not_a_strategy);
static_assert(fault<Net, Idle> == Fault::strategy_without_engine);
static_assert(fault<Net, tandem::Zero<3>, Distant> == Fault::strategy_without_windows);
static_assert(fault<Net, tandem::Zero<2>, Distant> == Fault::none);
static_assert(fault<tandem::Stages<Net, Net>, tandem::Zero<3>, Distant> == Fault::none);
static_assert(fault<Net, tandem::Zero<3, tandem::reference::fsdp2>> == Fault::model_not_cut);
static_assert(fault<tandem::Stages<Net>, tandem::Zero<3, tandem::reference::fsdp2>> == Fault::none);
static_assert(tandem::Zero<1, tandem::compress::bf16, tandem::degree<3>>::degree == 3);
static_assert(tandem::Zero<1, tandem::degree<3>, tandem::compress::bf16>::degree == 3);
static_assert(fault<Net, Ddp<-1>> == Fault::negative_degree);
static_assert(fault<Net, Ddp<>, int> == Fault::not_a_transport);
static_assert(fault<Net, Ddp<>, Pipes> == Fault::transport_without_control);

// What is wrong with the arguments.
struct Sgd {
  void step();
};
using Loss = at::Tensor (*)(const at::Tensor& output, const at::Tensor& target);
using Recipe = Sgd (*)(std::vector<at::Tensor> parameters);
using NamedRecipe = std::unique_ptr<Sgd> (*)(std::vector<tandem::OwnedParameter> parameters);

template <class Given, class L = Loss, class R = Recipe>
constexpr Fault argument_fault = tandem::first_argument_fault<Net, Given, L, R>();
static_assert(argument_fault<Net> == Fault::none);
static_assert(argument_fault<const Net&> == Fault::none);
static_assert(argument_fault<std::shared_ptr<Net>> == Fault::none);
static_assert(argument_fault<Holder> == Fault::none);
static_assert(argument_fault<Net (*)()> == Fault::none);
static_assert(argument_fault<std::shared_ptr<Net> (*)()> == Fault::none);
static_assert(argument_fault<Net, Loss, NamedRecipe> == Fault::none);
static_assert(argument_fault<Parameters> == Fault::model_not_given);
static_assert(argument_fault<int (*)()> == Fault::model_not_given);
static_assert(argument_fault<Net (*)(int)> == Fault::model_not_given);
static_assert(argument_fault<Net, at::Tensor (*)(at::Tensor)> == Fault::loss_without_scalar);
static_assert(argument_fault<Net, void (*)(at::Tensor, at::Tensor)> == Fault::loss_without_scalar);
static_assert(argument_fault<Net, Loss, Sgd> == Fault::recipe_not_callable);
static_assert(argument_fault<Net, Loss, Sgd (*)()> == Fault::recipe_not_callable);
static_assert(argument_fault<Net, Loss, void (*)(std::vector<at::Tensor>)> == Fault::optimizer_without_step);
static_assert(argument_fault<Net, Loss, int (*)(std::vector<at::Tensor>)> == Fault::optimizer_without_step);
static_assert(tandem::first_input_fault<Net, at::Tensor>() == Fault::none);
static_assert(tandem::first_input_fault<Overloaded, at::Tensor, at::Tensor>() == Fault::none);
static_assert(tandem::first_input_fault<Net>() == Fault::inputs_without_forward);
static_assert(tandem::first_input_fault<Net, at::Tensor, at::Tensor>() == Fault::inputs_without_forward);

std::string text_of(const std::string& path) {
  std::ifstream file(std::string(TANDEM_SOURCE_FOLDER "/") + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE("every fault has a sentence of its own: what is wrong; what to change") {
  std::set<std::string> sentences;
  for (const Fault fault : tandem::all_faults) {
    const std::string sentence = tandem::sentence_of(fault);
    CHECK_MESSAGE(sentence.find("tandem: ") == 0, sentence);
    CHECK_MESSAGE(sentence.find("; ") != std::string::npos, sentence);
    sentences.insert(sentence);
  }
  CHECK(sentences.size() == tandem::all_faults.size());
  CHECK(std::string(tandem::name_of(Fault::none)) == "none");
}

TEST_CASE("every fault has a static test, a program that must not compile, and an entry in the reference") {
  const std::string reference = text_of("docs/reference/faults.md");
  const std::string tests = text_of("tests/torch/plan/plan_test.cpp");
  CHECK(tandem::all_faults.size() == 17);
  for (const Fault fault : tandem::all_faults) {
    const std::string name = tandem::name_of(fault);
    const std::string sentence = tandem::sentence_of(fault);
    const std::string wrong = sentence.substr(0, sentence.find("; "));
    CHECK_MESSAGE(tests.find("== Fault::" + name + ")") != std::string::npos, name);
    const std::string program = text_of("tests/compile_fail/" + name + ".cpp");
    const std::size_t expect = program.find("// expect: ");
    REQUIRE_MESSAGE(expect != std::string::npos, name);
    const std::string expected = program.substr(expect + 11, program.find('\n', expect) - expect - 11);
    CHECK_MESSAGE(sentence.find(expected) == 0, name);
    CHECK_MESSAGE(reference.find("\n## " + name + "\n") != std::string::npos, name);
    CHECK_MESSAGE(reference.find("> " + sentence + "\n") != std::string::npos, name);
  }
  std::size_t entries = 0;
  for (std::size_t at = reference.find("\n## "); at != std::string::npos; at = reference.find("\n## ", at + 1))
    ++entries;
  CHECK(entries == tandem::all_faults.size());
}
