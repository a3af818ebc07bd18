// SPDX-License-Identifier: Apache-2.0
// Tensors whose storage lies in the arena, so that collectives on them take the direct path. Knows no collective.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "tandem/comm/arena.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// A contiguous tensor over memory that somebody else has: it keeps `holder` as long as it or a view of it lives. Its
/// storage cannot be resized.
inline at::Tensor tensor_over(void* memory, at::IntArrayRef sizes, at::ScalarType type, std::shared_ptr<void> holder) {
  at::DataPtr pointer(
      memory, new std::shared_ptr<void>(std::move(holder)),
      [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); }, at::Device(at::kCPU));
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  // No allocator: growing would leave the memory.
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(pointer),
                                                       nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

/// An uninitialised contiguous tensor in `arena`. The tensor keeps the arena mapped: it may outlive the communicator.
/// Throws Error(argument) for sizes that cannot be, Error(system) when the arena is full.
inline at::Tensor arena_empty(const std::shared_ptr<Arena>& arena, at::IntArrayRef sizes,
                              at::ScalarType type = at::kFloat) {
  std::size_t bytes = c10::elementSize(type);
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) {
      throw Error(ErrorKind::argument, "tandem: arena_empty: no tensor has the sizes " + c10::str(sizes) +
                                           ", one of them negative or all too large");
    }
  }
  void* const memory = arena->allocate(bytes == 0 ? 1 : bytes);
  std::shared_ptr<void> held(memory, [arena](void* begin) { arena->release(begin); });
  return tensor_over(memory, sizes, type, std::move(held));
}

/// The same in the arena of the communicator's process.
template <class T>
at::Tensor arena_empty(Communicator<T>& comm, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return arena_empty(comm.arena(), sizes, type);
}

}  // namespace tandem
