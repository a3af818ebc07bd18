// SPDX-License-Identifier: Apache-2.0
// What c10d's ProcessGroupGloo.hpp needs to know of gloo in order to be included: the PyPI wheel ships that header
// but not gloo's own. Declarations only; every definition comes from libtorch_cpu. Never installed.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

// ProcessGroupGloo::setTimeout calls this member in the header; nothing else of the class is looked at.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

namespace rendezvous {
// The order of the virtual functions is that of gloo: c10d's GlooStore overrides them.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

}  // namespace gloo
