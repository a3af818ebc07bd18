// SPDX-License-Identifier: Apache-2.0
// Ranks laid out along named axes: rank <-> coordinates, and which ranks share an axis. Arithmetic only, all of it
// usable at compile time; must not know communicators, which take (color, key) from here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "tandem/core/error.hpp"
#include "tandem/mesh/axis.hpp"

namespace tandem {

/// The ranks along one axis through one rank, in the order of their coordinates; a range of int, without memory.
class AxisRanks {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    using pointer = const int*;
    using reference = int;

    constexpr Iterator() noexcept = default;
    constexpr Iterator(int rank, int stride) noexcept : rank_(rank), stride_(stride) {}
    constexpr int operator*() const noexcept { return rank_; }
    constexpr Iterator& operator++() noexcept {
      rank_ += stride_;
      return *this;
    }
    constexpr Iterator operator++(int) noexcept {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    friend constexpr bool operator==(const Iterator&, const Iterator&) = default;

   private:
    int rank_ = 0;
    int stride_ = 1;
  };

  constexpr AxisRanks(int first, int stride, int count) noexcept : first_(first), stride_(stride), count_(count) {}

  constexpr int size() const noexcept { return count_; }
  constexpr int operator[](int position) const noexcept { return first_ + position * stride_; }
  constexpr Iterator begin() const noexcept { return {first_, stride_}; }
  constexpr Iterator end() const noexcept { return {first_ + count_ * stride_, stride_}; }

 private:
  int first_;
  int stride_;
  int count_;
};

/// A mesh of a whole world: `Mesh<Axis<DataAxis, 2>, Axis<StageAxis, 4>> mesh(8)`. The first axis varies slowest, so
/// that the ranks of the last one are neighbours: ranks 0 to 3 are the four stages of the first copy of the data.
template <AxisType... Axes>
class Mesh {
  static constexpr std::size_t count = sizeof...(Axes);
  static constexpr std::array<std::string_view, count> names{Axes::tag::name...};
  static constexpr std::array<int, count> declared{Axes::extent...};

  static constexpr int leftovers() {
    int found = 0;
    for (const int extent : declared) found += extent == leftover ? 1 : 0;
    return found;
  }
  template <class Tag>
  static constexpr int uses() {
    return (0 + ... + (std::is_same_v<Tag, typename Axes::tag> ? 1 : 0));
  }
  /// The product of the declared extents, or -1 when it does not fit a rank number.
  static constexpr int declared_product() {
    std::int64_t product = 1;
    for (const int extent : declared) {
      if (extent != leftover) product *= extent;
      if (product > std::numeric_limits<int>::max()) return -1;
    }
    return static_cast<int>(product);
  }

  /// A variable, not a function, because a proof over many ranks would evaluate it for each of them.
  template <class Tag>
  static constexpr std::size_t index = [] {
    constexpr std::array<bool, count> match{std::is_same_v<Tag, typename Axes::tag>...};
    std::size_t found = 0;
    while (!match[found]) ++found;
    return found;
  }();

  static_assert(count > 0, "tandem: a mesh has no axis; give it at least one, such as Axis<DataAxis>");
  static_assert(((uses<typename Axes::tag>() == 1) && ...),
                "tandem: an axis stands twice in a mesh; give every axis a tag of its own");
  static_assert(leftovers() <= 1,
                "tandem: two axes of a mesh take what the world size leaves over; give all but one an extent");
  static_assert(declared_product() > 0, "tandem: the extents of a mesh multiply to more ranks than can be; lower them");

 public:
  static constexpr int axes = static_cast<int>(count);
  using Coordinates = std::array<int, count>;  ///< in the order of the axes

  template <class Tag>
  static constexpr bool has_axis = uses<Tag>() == 1;

  /// Whether a world of this size can be laid out so.
  static constexpr bool fits(int world_size) noexcept {
    if (world_size < 1) return false;
    return leftovers() == 1 ? world_size % declared_product() == 0 : world_size == declared_product();
  }

  /// Throws Error(argument) with the equation that does not hold: "world size 8 is not 2 x 3 (data x stage)".
  explicit constexpr Mesh(int world_size) : size_(world_size) {
    if (!fits(world_size)) refuse(world_size);
    int stride = 1;
    for (std::size_t axis = count; axis-- > 0;) {
      extents_[axis] = declared[axis] == leftover ? world_size / declared_product() : declared[axis];
      strides_[axis] = stride;
      stride *= extents_[axis];
    }
  }

  constexpr int size() const noexcept { return size_; }
  constexpr const Coordinates& extents() const noexcept { return extents_; }

  template <class Tag>
  requires has_axis<Tag>
  constexpr int extent() const noexcept { return extents_[index<Tag>]; }

  /// Where a rank of the world lies on an axis.
  template <class Tag>
  requires has_axis<Tag>
  constexpr int coordinate(int rank) const {
    check_rank(rank);
    return on_axis(rank, index<Tag>);
  }
  constexpr Coordinates coordinates(int rank) const {
    check_rank(rank);
    Coordinates result{};
    for (std::size_t axis = 0; axis < count; ++axis) result[axis] = on_axis(rank, axis);
    return result;
  }
  /// The inverse of coordinates().
  constexpr int rank(const Coordinates& at) const {
    int result = 0;
    for (std::size_t axis = 0; axis < count; ++axis) {
      if (at[axis] < 0 || at[axis] >= extents_[axis]) refuse_coordinate(axis, at[axis]);
      result += at[axis] * strides_[axis];
    }
    return result;
  }

  /// The ranks that differ from this one at most in their coordinate on the axis: itself among them.
  template <class Tag>
  requires has_axis<Tag>
  constexpr AxisRanks ranks_along(int rank) const {
    return {rank - coordinate<Tag>(rank) * strides_[index<Tag>], strides_[index<Tag>], extent<Tag>()};
  }
  /// A number that the ranks of ranks_along share, and no others: with the coordinate as the key this is what splits a
  /// communicator into the groups of the axis. Groups count from 0, in the order of their first ranks.
  template <class Tag>
  requires has_axis<Tag>
  constexpr int color(int rank) const {
    check_rank(rank);
    const int stride = strides_[index<Tag>];
    return rank / (stride * extent<Tag>()) * stride + rank % stride;
  }

  /// "2 x 4 (data x stage)"
  std::string text() const {
    std::string numbers;
    std::string words;
    for (std::size_t axis = 0; axis < count; ++axis) {
      numbers += (axis != 0 ? " x " : "") + std::to_string(extents_[axis]);
      words += (axis != 0 ? " x " : "") + std::string(names[axis]);
    }
    return numbers + " (" + words + ")";
  }

  friend constexpr bool operator==(const Mesh&, const Mesh&) = default;

 private:
  constexpr int on_axis(int rank, std::size_t axis) const noexcept { return rank / strides_[axis] % extents_[axis]; }

  constexpr void check_rank(int rank) const {
    if (rank < 0 || rank >= size_) refuse_rank(rank);
  }
  [[noreturn]] void refuse_rank(int rank) const {
    throw Error(ErrorKind::argument, "tandem: rank " + std::to_string(rank) + " does not lie in a mesh of " +
                                         std::to_string(size_) + " ranks, " + text());
  }
  [[noreturn]] void refuse_coordinate(std::size_t axis, int coordinate) const {
    throw Error(ErrorKind::argument, "tandem: coordinate " + std::to_string(coordinate) + " does not lie on the " +
                                         std::string(names[axis]) + " axis of a mesh of " + text());
  }
  [[noreturn]] static void refuse(int world_size) {
    if (world_size < 1) {
      throw Error(ErrorKind::argument,
                  "tandem: world size " + std::to_string(world_size) + " is not a number of ranks");
    }
    std::string numbers;
    std::string words;
    for (std::size_t axis = 0; axis < count; ++axis) {
      words += (axis != 0 ? " x " : "") + std::string(names[axis]);
      if (declared[axis] != leftover) numbers += (numbers.empty() ? "" : " x ") + std::to_string(declared[axis]);
    }
    throw Error(ErrorKind::argument, "tandem: world size " + std::to_string(world_size) + " is not " +
                                         (leftovers() == 1 ? "a multiple of " : "") +
                                         (numbers.empty() ? "1" : numbers) + " (" + words + ")");
  }

  int size_;
  Coordinates extents_{};
  Coordinates strides_{};
};

namespace detail {

template <class Outer, class Inner>
struct MeshProduct;
template <class... Outer, class... Inner>
struct MeshProduct<Mesh<Outer...>, Mesh<Inner...>> {
  using type = Mesh<Outer..., Inner...>;
};

}  // namespace detail

/// A copy of the inner mesh at every place of the outer one; the inner one's ranks are neighbours.
template <class Outer, class Inner>
using mesh_product = typename detail::MeshProduct<Outer, Inner>::type;

}  // namespace tandem
