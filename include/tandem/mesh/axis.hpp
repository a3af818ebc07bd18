// SPDX-License-Identifier: Apache-2.0
// One named direction of a mesh of ranks and how many ranks lie along it. Knows nothing of what they do with each
// other.
#pragma once

#include <concepts>
#include <string_view>

namespace tandem {

/// An axis of this extent takes what the world size leaves over, as a dynamic extent of std::mdspan does. (An extent of
/// zero ranks means nothing else, so the number is free for it.)
inline constexpr int leftover = 0;

/// Names an axis, in types and in messages: an empty type with a `name`. Users add their own.
template <class T>
concept AxisTag = requires {
  { T::name } -> std::convertible_to<std::string_view>;
};

/// Ranks that see different data and hold the same model, or shards of it.
struct DataAxis {
  static constexpr const char* name = "data";
};
/// Ranks that hold successive stages of one model.
struct StageAxis {
  static constexpr const char* name = "stage";
};

template <AxisTag Tag, int Extent = leftover>
struct Axis {
  static_assert(Extent >= 0, "tandem: an axis has a negative extent; give it a number of ranks, or tandem::leftover");
  using tag = Tag;
  static constexpr int extent = Extent;
};

namespace detail {

template <class T>
inline constexpr bool is_axis = false;
template <class Tag, int Extent>
inline constexpr bool is_axis<Axis<Tag, Extent>> = true;

}  // namespace detail

/// An Axis<Tag, Extent>: a mesh is a list of these and of nothing else.
template <class T>
concept AxisType = detail::is_axis<T>;

}  // namespace tandem
