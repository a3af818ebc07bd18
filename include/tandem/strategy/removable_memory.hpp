// SPDX-License-Identifier: Apache-2.0
// The memory of a parameter that is not always there.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "tandem/tensor/torch.hpp"

namespace tandem {

namespace detail {

/// The memory of one parameter, taken away and given back in place: views of it and what autograd has saved follow.
/// While it is away, whoever reads the parameter gets an error that names it.
class RemovableMemory {
 public:
  /// `parameter` fills its storage from the beginning. It has no memory from here on.
  RemovableMemory(at::Tensor parameter, const std::string& name)
      : parameter_(std::move(parameter)), storage_(parameter_.storage()) {
    // As large as what it stands for, so that a view of it is refused when it is read, by this error.
    auto empty = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage_.nbytes(),
                                                       at::DataPtr(nullptr, at::Device(at::kCPU)), nullptr, false);
    empty->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "tandem: parameter \"" + name +
        "\" is read while other ranks have parts of it; hold Trainer::unshard() on all ranks meanwhile");
    placeholder_ = c10::Storage(std::move(empty));
    take();
  }

  /// `holder` keeps `memory` alive.
  void give(void* memory, std::size_t bytes, std::shared_ptr<void> holder) {
    auto* const implementation = storage_.unsafeGetStorageImpl();
    implementation->set_data_ptr_noswap(at::DataPtr(
        memory, new std::shared_ptr<void>(std::move(holder)),
        [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); }, at::Device(at::kCPU)));
    implementation->set_nbytes(bytes);
    parameter_.unsafeGetTensorImpl()->set_storage_keep_dtype(storage_);
  }
  void take() {
    auto* const implementation = storage_.unsafeGetStorageImpl();
    implementation->set_data_ptr_noswap(at::DataPtr(nullptr, at::Device(at::kCPU)));
    implementation->set_nbytes(static_cast<std::size_t>(0));
    parameter_.unsafeGetTensorImpl()->set_storage_keep_dtype(placeholder_);
  }

 private:
  at::Tensor parameter_;
  c10::Storage storage_;
  c10::Storage placeholder_;
};

}  // namespace detail

}  // namespace tandem
