// SPDX-License-Identifier: Apache-2.0
// PyTorch's own data parallelism as a test oracle and benchmark peer: c10d::ProcessGroupGloo over loopback and
// c10d::Reducer, set up as torch.nn.parallel.DistributedDataParallel sets them up. Knows nothing of tandem.
//
// Include it with tests/support/gloo_stub on the include path; link libtorch_cpu and libc10. Fork every rank before
// the first libtorch call of the parent: gloo and ATen start threads that do not survive a fork.
#pragma once

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO  // ProcessGroupGloo.hpp is empty without it
#endif

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace tandem_oracle {

/// An empty file in the temporary folder where the ranks of one job meet; removed with the object. Made by the parent
/// before it forks; only the process that made it removes it.
class StoreFile {
 public:
  StoreFile() : owner_(::getpid()) {
    const char* const folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr && *folder != '\0' ? folder : "/tmp") + "/tandem_oracle_XXXXXX";
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor < 0) throw std::runtime_error("cannot make a file for c10d::FileStore: " + path_);
    ::close(descriptor);
  }
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  ~StoreFile() {
    if (::getpid() == owner_) ::unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }

 private:
  ::pid_t owner_;
  std::string path_;
};

/// torch.distributed's default group over gloo on the loopback interface.
class GlooGroup {
 public:
  GlooGroup(const std::string& store_path, int rank, int size,
            std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : size_(size) {
    auto store = c10::make_intrusive<c10d::FileStore>(store_path, size);
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                       c10::intrusive_ptr<c10d::Backend>(gloo_));
    group_->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    group_->setGroupName("0");
  }

  int size() const { return size_; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  /// The backend itself: collectives without the dispatcher in between, as a benchmark wants them.
  c10d::ProcessGroupGloo& gloo() const { return *gloo_; }

  void all_reduce(at::Tensor tensor, c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM) {
    c10d::AllreduceOptions options;
    options.reduceOp = reduction;
    std::vector<at::Tensor> tensors{std::move(tensor)};
    gloo_->allreduce(tensors, options)->wait();
  }
  void broadcast(at::Tensor tensor, int root) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{std::move(tensor)};
    gloo_->broadcast(tensors, options)->wait();
  }
  /// Equal sizes only: gloo's own rule.
  void all_gather(at::Tensor output, at::Tensor input) {
    std::vector<std::vector<at::Tensor>> outputs{output.chunk(size_)};
    std::vector<at::Tensor> inputs{std::move(input)};
    gloo_->allgather(outputs, inputs)->wait();
  }
  void barrier() { group_->barrier()->wait(); }

 private:
  int size_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

struct ReducerOptions {
  /// DDP's bucket_cap_mb in bytes; 0 means the default (1 MiB for the first bucket, 25 MiB for the others).
  std::int64_t bucket_bytes = 0;
  /// DDP's bucket_cap_mb_list in bytes; used instead when it is not empty.
  std::vector<std::int64_t> bucket_bytes_list{};
  bool gradient_as_bucket_view = false;
  bool find_unused = false;
  bool static_graph = false;
  /// Half or BFloat16: with the communication hook fp16_compress_hook or bf16_compress_hook.
  std::optional<at::ScalarType> compress{};
};

/// torch.distributed.algorithms.ddp_comm_hooks.default_hooks._compress_hook.
class CompressHook : public c10d::CommHookInterface {
 public:
  CompressHook(c10::intrusive_ptr<c10d::ProcessGroup> group, at::ScalarType type)
      : group_(std::move(group)), type_(type) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    at::Tensor compressed = bucket.getBufferRef().to(type_);
    compressed.div_(group_->getSize());
    std::vector<at::Tensor> tensors{compressed};
    auto future = group_->allreduce(tensors)->getFuture();
    return future->then(
        [buffer = bucket.getBufferRef(), compressed](c10::ivalue::Future& done) {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          at::Tensor(buffer).copy_(compressed);
          return c10::IValue(buffer);
        },
        c10::TensorType::get());
  }
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::ScalarType type_;
};

/// c10d::Reducer with the arguments DistributedDataParallel.__init__ gives it. One step is: before_forward(), forward,
/// before_backward(), backward, after_backward(). Leave these calls out for a local (no_sync) backward.
class ReducerOracle {
 public:
  ReducerOracle(const GlooGroup& group, const std::vector<at::Tensor>& parameters, const ReducerOptions& options = {}) {
    constexpr std::int64_t first_default = 1 << 20;
    constexpr std::int64_t rest_default = 25 << 20;
    const auto& list = options.bucket_bytes_list;
    std::vector<std::size_t> limits{std::numeric_limits<std::int64_t>::max()};
    if (!list.empty())
      limits.assign(list.begin(), list.end());
    else if (options.find_unused && !options.static_graph && options.bucket_bytes > 0)
      limits = {static_cast<std::size_t>(options.bucket_bytes)};
    else if (options.find_unused && !options.static_graph)
      limits = {first_default, rest_default};
    auto [buckets, bucket_limits] =
        c10d::compute_bucket_assignment_by_size(parameters, limits, std::vector<bool>(parameters.size(), false));
    std::reverse(buckets.begin(), buckets.end());
    const std::int64_t rest = !list.empty() ? *std::max_element(list.begin(), list.end())
                                            : (options.bucket_bytes > 0 ? options.bucket_bytes : rest_default);
    const std::int64_t first = options.bucket_bytes == 0 && list.empty() ? first_default : rest;
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters, buckets, group.group(), std::vector<bool>(parameters.size(), false), rest, options.find_unused,
        options.gradient_as_bucket_view, std::unordered_map<std::size_t, std::string>{}, first,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, list);
    logger_ = std::make_shared<c10d::Logger>(reducer_);  // find_unused_parameters reports to it, and must have it
    reducer_->set_logger(logger_);
    if (options.static_graph) reducer_->set_static_graph();
    if (options.compress) {
      reducer_->register_comm_hook(std::make_unique<CompressHook>(group.group(), *options.compress));
    }
    find_unused_ = options.find_unused && !options.static_graph;
    delays_ = options.static_graph;
  }

  /// True when the buckets were laid out anew, which happens once, before the second step.
  bool before_forward() {
    reducer_->prepare_for_forward();
    return reducer_->rebuild_buckets();
  }
  void before_backward(const at::Tensor& output = {}) {
    std::vector<at::Tensor> outputs;
    if (find_unused_) outputs.push_back(output);
    reducer_->prepare_for_backward(outputs);
  }
  /// The first backward of a static graph reduces nothing by itself.
  void after_backward() {
    if (delays_) reducer_->delay_all_reduce();
    delays_ = false;
  }
  c10d::Reducer& reducer() { return *reducer_; }

 private:
  bool find_unused_ = false;
  bool delays_ = false;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

}  // namespace tandem_oracle
