// SPDX-License-Identifier: Apache-2.0
// Folds awkward values through every floating functor and prints one hash of all result bits. Built once per compiler
// and set of flags: every build must agree with the oracle, and all must print the same line. With the argument
// `plain` it folds by ordinary loops instead, to show that this check can fail.
#include <array>
#include <cfenv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "fold_oracle.hpp"
#include "tandem/reduce/fold.hpp"

namespace {

using namespace tandem;
using test::Kind;

constexpr int most_sources = 9;
constexpr std::size_t counts[] = {0, 1, 2, 5, 8, 17, 31, 67, 131};
constexpr double factor = 1.0 / 3.0;

struct Call {
  int source_count;
  const void* sources[most_sources];
  int destination_count;
  void* destinations[most_sources];
  std::size_t count;
};

/// The library's public fold, its narrow kernels (which an AVX2 machine would not choose), or ordinary loops.
enum class Way { fold, narrow, plain };

template <class T, class Op>
void run(const Op& op, const Call& call, Way way) {
  std::array<const T*, most_sources> sources{};
  std::array<T*, most_sources> destinations{};
  for (int k = 0; k < call.source_count; ++k) sources[k] = static_cast<const T*>(call.sources[k]);
  for (int k = 0; k < call.destination_count; ++k) destinations[k] = static_cast<T*>(call.destinations[k]);
  if (way == Way::fold) {
    fold(op, call.source_count, sources.data(), call.source_count, destinations.data(), call.destination_count,
         call.count);
  } else {
    const detail::ExactFloats exact;
    const detail::Job<T> job{sources.data(), call.source_count, destinations.data(), call.destination_count,
                             call.count};
    detail::portable::fold_job<T, Op>(
        detail::parameters_of<T>(op, call.source_count, FoldStart::raw, FoldEnd::finished), job);
  }
}

void run_plain(Kind kind, const Call& call) {
  const auto scale = static_cast<float>(factor);
  for (std::size_t i = 0; i < call.count; ++i) {
    float acc = static_cast<const float*>(call.sources[0])[i] * (kind == Kind::pre_mul_sum ? scale : 1.0F);
    for (int k = 1; k < call.source_count; ++k) {
      const float x = static_cast<const float*>(call.sources[k])[i];
      acc = kind == Kind::pre_mul_sum ? x * scale + acc : x + acc;
    }
    if (kind == Kind::avg) acc /= static_cast<float>(call.source_count);
    for (int k = 0; k < call.destination_count; ++k) static_cast<float*>(call.destinations[k])[i] = acc;
  }
}

template <class T>
void run(Kind kind, const Call& call, Way way) {
  switch (kind) {
    case Kind::sum:
      return run<T>(Sum{}, call, way);
    case Kind::prod:
      return run<T>(Prod{}, call, way);
    case Kind::min:
      return run<T>(Min{}, call, way);
    case Kind::max:
      return run<T>(Max{}, call, way);
    case Kind::avg:
      return run<T>(Avg{}, call, way);
    case Kind::pre_mul_sum:
      return run<T>(PreMulSum<double>{factor}, call, way);
    case Kind::logical_xor:
      return run<T>(LogicalXor{}, call, way);
    default:
      break;  // the bits are not on floats, and what is true for one logical functor is for all
  }
}

struct Format {
  Dtype dtype;
  int exponent_bits, fraction_bits;
};
constexpr Kind kinds[] = {Kind::sum, Kind::prod, Kind::min, Kind::max, Kind::avg, Kind::pre_mul_sum, Kind::logical_xor};
constexpr Format formats[] = {
    {Dtype::float32, 8, 23}, {Dtype::float64, 11, 52}, {Dtype::float16, 5, 10}, {Dtype::bfloat16, 8, 7}};

std::uint64_t random_state = 88172645463325252ULL;
std::uint64_t random_bits() {  // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 2685821657736338717ULL;
}

// Integers only: the values must not depend on the flags either.
std::uint64_t awkward_value(const Format& format) {
  const std::uint64_t choice = random_bits() % 64;
  const std::uint64_t exponents = (1ULL << format.exponent_bits) - 1;
  const std::uint64_t fraction = random_bits() & ((1ULL << format.fraction_bits) - 1);
  const std::uint64_t bias = exponents / 2;
  std::uint64_t exponent = bias - 6 + random_bits() % 12;
  std::uint64_t kept = fraction;
  if (choice < 4)
    exponent = 0;  // subnormal
  else if (choice < 6)
    exponent = kept = 0;  // zero
  else if (choice < 8)
    exponent = 1;  // least normal
  else if (choice < 10)
    exponent = exponents - 1;  // greatest: sums overflow
  else if (choice == 10)
    exponent = exponents, kept = 0;  // infinity
  else if (choice == 11)
    exponent = exponents, kept = 1 | fraction;  // NaN
  else if (choice < 16)
    kept &= kept << 3;  // ties when rounded
  else if (choice < 20)
    exponent = random_bits() % exponents;
  const std::uint64_t sign = random_bits() & 1;
  return (sign << format.exponent_bits | exponent) << format.fraction_bits | kept;
}

struct Tally {
  std::uint64_t elements = 0, differing = 0, hash = 14695981039346656037ULL;
  void add(Dtype dtype, const std::byte* got, const std::byte* expected, std::size_t size) {
    ++elements;
    if (!test::same_element(dtype, got, expected)) ++differing;
    // Only the oracle's element says whether this is a NaN: a check here could be compiled away.
    const bool nan = test::is_nan_element(dtype, expected);
    for (std::size_t b = 0; b < size; ++b) {
      hash = (hash ^ (nan ? 0x7fU : std::to_integer<unsigned>(got[b]))) * 1099511628211ULL;
    }
  }
};

constexpr std::byte canary{0xa5};

void check_case(const Format& format, Kind kind, Way way, int source_count, std::size_t count, std::size_t offset,
                bool in_place, Tally& tally) {
  const std::size_t size = size_of(format.dtype);
  const std::size_t bytes = (offset + count + 1) * size;  // one element before (or not) and one after must stay
  std::array<std::vector<std::byte>, most_sources> inputs;
  std::array<std::vector<std::byte>, 2> outputs;
  Call call{source_count, {}, in_place ? source_count : 2, {}, count};
  for (int k = 0; k < source_count; ++k) {
    inputs[k].assign(bytes, canary);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t value = awkward_value(format);
      std::memcpy(inputs[k].data() + (offset + i) * size, &value, size);  // little-endian, as all targets here
    }
    call.sources[k] = inputs[k].data() + offset * size;
  }
  std::vector<std::byte> expected(count * size + 1);
  test::oracle_fold(format.dtype, kind, factor, call.sources, source_count, expected.data(), count);
  for (int k = 0; k < call.destination_count; ++k) {
    auto& target = in_place ? inputs[k] : outputs[k];
    if (!in_place) target.assign(bytes, canary);
    call.destinations[k] = target.data() + offset * size;
  }
  if (way == Way::plain)
    run_plain(kind, call);
  else if (format.dtype == Dtype::float32)
    run<float>(kind, call, way);
  else if (format.dtype == Dtype::float64)
    run<double>(kind, call, way);
  else if (format.dtype == Dtype::float16)
    run<Float16>(kind, call, way);
  else
    run<BFloat16>(kind, call, way);
  for (int k = 0; k < call.destination_count; ++k) {
    const std::byte* const got = static_cast<const std::byte*>(call.destinations[k]);
    for (std::size_t i = 0; i < count; ++i) tally.add(format.dtype, got + i * size, expected.data() + i * size, size);
    for (std::size_t b = 0; b < size; ++b) {
      if (got[count * size + b] != canary || (offset > 0 && *(got - 1 - b) != canary)) ++tally.differing;
    }
  }
}

// What a fold must neither depend on nor change.
class HostileFloats {
 public:
  HostileFloats() {
    std::fegetenv(&saved_);
    std::fesetround(FE_UPWARD);
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040U);
#endif
  }
  ~HostileFloats() { std::fesetenv(&saved_); }
  HostileFloats(const HostileFloats&) = delete;
  HostileFloats& operator=(const HostileFloats&) = delete;
  static bool unchanged() {
#if defined(__SSE__)
    if ((__builtin_ia32_stmxcsr() & 0x8040U) != 0x8040U) return false;
#endif
    return std::fegetround() == FE_UPWARD;
  }

 private:
  std::fenv_t saved_;
};

Tally check_all(Way way) {
  Tally tally;
  for (const Format& format : formats) {
    if (way == Way::plain && format.dtype != Dtype::float32) continue;
    for (const Kind kind : kinds) {
      if (way == Way::plain && kind != Kind::sum && kind != Kind::avg && kind != Kind::pre_mul_sum) continue;
      const std::uint64_t before = tally.differing;
      for (int sources = 1; sources <= most_sources; ++sources) {
        for (const std::size_t count : counts) {
          for (const bool in_place : {false, true}) {
            for (const std::size_t offset : {std::size_t{0}, std::size_t{1}}) {
              check_case(format, kind, way, sources, count, offset, in_place, tally);
            }
          }
        }
      }
      if (tally.differing != before) {
        std::fprintf(stderr, "%s functor %d way %d: %llu differ\n", name_of(format.dtype), static_cast<int>(kind),
                     static_cast<int>(way), static_cast<unsigned long long>(tally.differing - before));
      }
    }
  }
  return tally;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  const bool plain = argc > 1 && std::string_view(argv[1]) == "plain";
  for (const bool hostile : {false, true}) {
    for (const Way way : {Way::fold, Way::narrow}) {
      if (plain && (hostile || way == Way::narrow)) continue;
      random_state = 88172645463325252ULL;
      Tally tally;
      if (hostile) {
        const HostileFloats state;
        tally = check_all(way);
        if (!HostileFloats::unchanged()) return std::puts("the fold changed the floating-point state"), 1;
      } else {
        tally = check_all(plain ? Way::plain : way);
      }
      elements += tally.elements;
      differing += tally.differing;
      std::printf("%016llx ", static_cast<unsigned long long>(tally.hash));
    }
  }
  std::printf("elements %llu differing %llu\n", static_cast<unsigned long long>(elements),
              static_cast<unsigned long long>(differing));
  return differing == 0 ? 0 : 1;
}
