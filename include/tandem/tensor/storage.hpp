// SPDX-License-Identifier: Apache-2.0
// Tensors whose storage lies in the arena, so that collectives on them take the direct path. Knows no collective.
#pragma once

#include <cstddef>
#include <memory>

#include "tandem/comm/arena.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// An uninitialised contiguous tensor in `arena`. The tensor keeps the arena mapped: it may outlive the communicator.
/// Throws Error(argument) for sizes that cannot be, Error(system) when the arena is full.
inline at::Tensor arena_empty(const std::shared_ptr<Arena>& arena, at::IntArrayRef sizes,
                              at::ScalarType type = at::kFloat) {
  struct Owner {
    std::shared_ptr<Arena> arena;
    void* memory;
  };
  std::size_t bytes = c10::elementSize(type);
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) {
      throw Error(ErrorKind::argument, "tandem: arena_empty: no tensor has the sizes " + c10::str(sizes) +
                                           ", one of them negative or all too large");
    }
  }
  auto owner = std::make_unique<Owner>(Owner{arena, arena->allocate(bytes == 0 ? 1 : bytes)});
  void* const memory = owner->memory;
  at::DataPtr pointer(
      memory, owner.release(),
      [](void* context) {
        const std::unique_ptr<Owner> held(static_cast<Owner*>(context));
        held->arena->release(held->memory);
      },
      at::Device(at::kCPU));
  // No allocator: the storage cannot be resized, because growing would leave the arena.
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(pointer),
                                                       nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

/// The same in the arena of the communicator's process.
template <class T>
at::Tensor arena_empty(Communicator<T>& comm, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return arena_empty(comm.arena(), sizes, type);
}

}  // namespace tandem
