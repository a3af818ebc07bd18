// SPDX-License-Identifier: Apache-2.0
// The flight recorders of this process's communicators, in a list that a signal handler can walk at any moment. Knows
// what is in the list, not what is done with it.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tandem/comm/poison.hpp"
#include "tandem/comm/recorder.hpp"

namespace tandem::detail {

class ListedRecorder;

/// One per process. Who adds or takes out holds `changing`; who walks holds `walked`, and the walk sees a list that is
/// whole at every moment, because each change is one store. Who takes out waits until nobody walks before the entry's
/// memory goes. All of it sequentially consistent: the store that takes an entry out comes before the look at `walked`,
/// and setting `walked` comes before the first load of the list, so one of the two sees the other.
struct RecorderList {
  std::mutex changing;
  std::atomic<ListedRecorder*> first{nullptr};
  std::atomic<bool> walked{false};
  std::atomic<pid_t> process{0};  // whose list it is: a forked child has a copy that is not its own

  bool own() const noexcept { return process.load() == ::getpid(); }
  /// With `changing` held: what a parent left here is not this process's.
  void take_over() noexcept {
    if (own()) return;
    first.store(nullptr);
    walked.store(false);
    process.store(::getpid());
  }
};
inline RecorderList recorder_list;

/// A communicator's place in the list, as long as this object lives. What it refers to must outlive it.
class ListedRecorder {
 public:
  ListedRecorder(const Recorder& recorder, const Poison& poison, const std::vector<int>& members, std::uint32_t id,
                 int rank)
      : recorder(recorder), poison(poison), members(members), id(id), rank(rank) {
    const std::lock_guard lock(recorder_list.changing);
    recorder_list.take_over();
    next.store(recorder_list.first.load());
    recorder_list.first.store(this);
  }
  ListedRecorder(const ListedRecorder&) = delete;
  ListedRecorder& operator=(const ListedRecorder&) = delete;
  ~ListedRecorder() {
    if (!recorder_list.own()) return;
    const std::lock_guard lock(recorder_list.changing);
    std::atomic<ListedRecorder*>* link = &recorder_list.first;
    while (link->load() != nullptr && link->load() != this) link = &link->load()->next;
    if (link->load() == nullptr) return;  // a parent's, in a child that has joined anew
    link->store(next.load());
    while (recorder_list.walked.load()) ::sched_yield();
  }

  const Recorder& recorder;
  const Poison& poison;
  const std::vector<int>& members;  // endpoint numbers, by rank
  const std::uint32_t id;
  const int rank;
  std::atomic<ListedRecorder*> next{nullptr};
};

}  // namespace tandem::detail
