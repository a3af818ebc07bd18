// SPDX-License-Identifier: Apache-2.0
// Do all ranks say the same? Compares lists of facts over the ranks and throws the same sentence on every rank, naming
// the first difference. Knows nothing of models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"

namespace tandem::detail {

/// "parameter 3" and "\"head.weight\" float32 [4, 5]".
struct Fact {
  std::string subject;
  std::string value;
};

template <class T>
std::string share_text(Communicator<T>& comm, std::string text, int root) {
  std::uint64_t length = text.size();
  broadcast(comm, std::span<std::uint64_t>(&length, 1), root);
  text.resize(length);
  broadcast(comm, std::span<char>(text), root);
  return text;
}

/// Collective. Throws Error(mismatch) on all ranks, with the lowest rank that differs from rank 0, when facts differ.
template <class T>
void require_agreement(Communicator<T>& comm, const std::vector<Fact>& mine, const std::string& remedy) {
  std::string text;
  for (const Fact& fact : mine) text += fact.subject + '\0' + fact.value + '\0';
  const std::string root_text = share_text(comm, text, 0);

  std::vector<Fact> root;
  for (std::size_t at = 0; at < root_text.size();) {
    const std::size_t middle = root_text.find('\0', at);
    const std::size_t end = root_text.find('\0', middle + 1);
    root.push_back({root_text.substr(at, middle - at), root_text.substr(middle + 1, end - middle - 1)});
    at = end + 1;
  }
  std::string difference;
  for (std::size_t i = 0; difference.empty() && i < std::max(mine.size(), root.size()); ++i) {
    const bool here = i < mine.size();
    const bool there = i < root.size();
    if (here && there && mine[i].subject == root[i].subject && mine[i].value == root[i].value) continue;
    // One list is longer, or another subject follows: the shorter kind has run out.
    const std::string subject =
        here && (!there || mine[i].subject < root[i].subject) ? mine[i].subject : root[i].subject;
    const auto value = [&](bool exists, const std::vector<Fact>& facts) {
      return exists && facts[i].subject == subject ? facts[i].value : std::string("missing");
    };
    difference = "tandem: " + subject + " is " + value(there, root) + " on rank 0 and " + value(here, mine) +
                 " on rank " + std::to_string(comm.rank()) + "; " + remedy;
  }

  const std::uint8_t differs = difference.empty() ? 0 : 1;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(comm.size()));
  all_gather(comm, std::span<const std::uint8_t>(&differs, 1), std::span<std::uint8_t>(all));
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] == 0) continue;
    throw Error(ErrorKind::mismatch, share_text(comm, difference, rank), comm.rank(), rank == comm.rank() ? 0 : rank);
  }
}

}  // namespace tandem::detail
