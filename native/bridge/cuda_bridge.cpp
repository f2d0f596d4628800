// The CUDA half of the bridge: PyTorch's CUDA allocator, on the core's pools.
//
// A subclass of the exported class behind torch.cuda.memory.CUDAPluggableAllocator. A
// plain pluggable allocator throws on statistics, snapshots and cacheInfo, which
// existing jobs call (torch.cuda.max_memory_allocated, cudnn.benchmark), and turns a
// failure into a null pointer, which PyTorch uses as memory.
//
// Upstream contracts, by header; a build fits only the torch it was compiled against,
// because the order of the virtual functions is part of the ABI:
//   torch/csrc/cuda/CUDAPluggableAllocator.h   every `override` below; its own raw_delete
//                              knows only blocks of its own malloc(), so allocate, raw_*
//                              and raw_deleter must be overridden together
//   c10/cuda/CUDACachingAllocator.h   who calls them: CUDAAllocator's pure virtuals, in
//                              the same order. Exceptions pass through the callers, which
//                              hold no lock: those derived from c10::Error reach Python as
//                              RuntimeError, c10::OutOfMemoryError as
//                              torch.OutOfMemoryError. A null pointer is never checked for.
//   c10/core/CachingDeviceAllocator.h   DeviceStats, SegmentInfo: fields differ between
//                              versions, so they are set by name and the rest stays zero
//   c10/core/Allocator.h       DataPtr with data == context ("simple"); SetAllocator
//   ATen/cuda/CUDAGeneratorImpl.h   set_current_seed() and set_offset() also clear a flag;
//                              reset_rnn_state() sets it and says whether it was clear, and a
//                              forward pass of an RNN of cuDNN that finds it so draws its
//                              dropout's state anew. set_philox_offset_per_thread() leaves it
//   ATen/native/cudnn/Conv_v8.cpp   a workspace that is refused is no error: another algorithm is
//                              taken, and kept to
//
// Locks: the mutex here guards what a job may change at any time (observers, limits,
// starting points of counters, private pools) and is never held while the core, an
// observer or a filter is called.

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <link.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bridge.h"
#include "draws.h"

namespace dtr_bridge {

namespace {

namespace pluggable = torch::cuda::CUDAPluggableAllocator;
namespace caching = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr auto cuda_type = static_cast<uint8_t>(c10::DeviceType::CUDA);
constexpr int most_devices = C10_COMPILE_TIME_MAX_GPUS;

// Null if the core manages no such device.
dtr_pool* find_pool(int device) {
  if (device < 0 || device >= most_devices) return nullptr;
  return core->pool_of(core->engine, cuda_type, static_cast<int8_t>(device));
}

dtr_pool* pool_of(int device) {
  dtr_pool* pool = find_pool(device);
  TORCH_CHECK(pool, "dtr_alloc: device cuda:", device,
              " has no memory pool; it was not visible when dtr_alloc was enabled");
  return pool;
}

// The pool that an address is from, or null.
dtr_pool* pool_with(const void* address) {
  for (int device = 0; device < most_devices; ++device) {
    dtr_pool* pool = find_pool(device);
    if (pool && core->pool_contains(pool, address)) return pool;
  }
  return nullptr;
}

dtr_pool_stats stats_of(dtr_pool* pool) {
  dtr_pool_stats stats;
  core->pool_get_stats(pool, &stats);
  return stats;
}

void check(int32_t status) {
  if (status == DTR_OK) return;
  const std::string message = core->last_error();
  TORCH_CHECK_WITH(OutOfMemoryError, status != DTR_OUT_OF_MEMORY, message);
  TORCH_CHECK(false, message);
}

uint64_t number(cudaStream_t stream) { return reinterpret_cast<uint64_t>(stream); }

uint64_t current_stream(uint8_t, int8_t device) {
  return number(c10::cuda::getCurrentCUDAStream(device).stream());
}

c10::DeviceIndex current_device() {
  c10::DeviceIndex device = -1;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

// See D6 of draws.h.
void set_philox(const at::Generator& generator, const PhiloxState& at) {
  auto* philox = generator.get<at::CUDAGeneratorImpl>();
  if (philox->current_seed() != at.seed) {
    const bool begins_anew = philox->reset_rnn_state();
    philox->set_current_seed(at.seed);
    if (!begins_anew) philox->reset_rnn_state();
  }
  philox->set_philox_offset_per_thread(at.offset);
}

// Who asks for memory. Tensors' requests come from other libraries of PyTorch (at::detail::
// empty_generic in libtorch_cpu.so); those from libtorch_cuda.so itself, but for a few functions, are
// for workspaces of cuDNN, cuBLAS, CUB and Thrust. W1: a tensor's request counts as a workspace's
// never; a workspace's may count as a tensor's.
class Requesters {
 public:
  Requesters() {
    begin_ = reinterpret_cast<uintptr_t>(&pluggable::getCurrentAllocator);
    dl_iterate_phdr(&find, this);
  }

  bool is_workspace(const void* caller) const {
    const auto at = reinterpret_cast<uintptr_t>(caller);
    return begin_ <= at && at < end_ && !serves_tensors(caller);
  }

 private:
  // Of the library that holds the address begin_.
  static int find(dl_phdr_info* info, size_t, void* context) {
    auto& found = *static_cast<Requesters*>(context);
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD) continue;
      begin = std::min<uintptr_t>(begin, info->dlpi_addr + segment.p_vaddr);
      end = std::max<uintptr_t>(end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
    }
    if (found.begin_ < begin || end <= found.begin_) return 0;
    found.begin_ = begin;
    found.end_ = end;
    return 1;
  }

  // at::native::resize_bytes_cuda, and what AOTInductor's code calls. A look at the symbols of the
  // library takes some 100 us, and it has few callers.
  static bool serves_tensors(const void* caller) {
    thread_local std::unordered_map<const void*, bool> known;
    const auto [at, is_new] = known.emplace(caller, false);
    if (!is_new) return at->second;
    Dl_info info{};
    const bool is_named = dladdr(caller, &info) != 0 && info.dli_sname != nullptr;
    const std::string_view name = is_named ? info.dli_sname : "";
    return at->second = name.find("resize_bytes_cuda") != name.npos || name.find("aoti_torch") == 0;
  }

  uintptr_t begin_ = 0, end_ = 0;  // of libtorch_cuda.so
};

std::vector<dtr_block> blocks_of(dtr_pool* pool) {
  std::vector<dtr_block> blocks;
  // Other threads may make blocks between the calls.
  for (uint64_t count = 64; count > blocks.size();) {
    blocks.resize(count + count / 8);
    check(core->pool_snapshot(pool, blocks.data(), blocks.size(), &count));
    if (count <= blocks.size()) {
      blocks.resize(count);
      break;
    }
  }
  return blocks;
}

void* start_of(const dtr_block& block) { return reinterpret_cast<void*>(block.address); }

// The deleter of memory beyond the budget.
bool try_free_beyond(void* address) {
  for (int device = 0; device < most_devices; ++device)
    if (dtr_pool* pool = find_pool(device))
      if (core->pool_free_beyond(pool, address) == DTR_OK) return true;
  return false;
}
void free_beyond(void* address) {
  if (!try_free_beyond(address))
    std::fprintf(stderr, "dtr_alloc: memory not returned: %s\n", core->last_error());
}

class CudaAllocator final : public pluggable::CUDAPluggableAllocator {
 public:
  // The functions serve the base's non-virtual malloc(), which nothing here calls.
  explicit CudaAllocator(bool serves_beyond)
      : CUDAPluggableAllocator(
            [this](size_t size, int device, cudaStream_t stream) {
              return memory(size, static_cast<c10::DeviceIndex>(device), stream, 0);
            },
            [](void* address, size_t, int, cudaStream_t) { free_block(address); }),
        serves_beyond_(serves_beyond) {}

  // ---- memory ----

  // Work on the current stream will use it. The caller may hold the GIL.
  c10::DataPtr allocate(size_t size) override {
    const c10::DeviceIndex device = current_device();
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
    const uint64_t arena = arena_for(device, stream);
    bool beyond = false;
    if (void* address =
            workspace(size, device, stream, arena, __builtin_return_address(0), &beyond))
      return {address, address, beyond ? &free_beyond : &free_block,
              c10::Device(c10::DeviceType::CUDA, device)};
    void* address = memory(size, device, stream, arena);
    return {address, address, arena ? &free_of_arena : &free_block,
            c10::Device(c10::DeviceType::CUDA, device)};
  }

  // It frees any block of ours. CUDA graph trees look whether the memory of a private pool has it.
  c10::DeleterFnPtr raw_deleter() const override { return &free_of_arena; }

  void* raw_alloc(size_t size) override {
    return raw_memory(size, c10::cuda::getCurrentCUDAStream(current_device()),
                      __builtin_return_address(0));
  }

  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    return raw_memory(size, stream, __builtin_return_address(0));
  }

  // For addresses that a job passes in (torch.cuda.caching_allocator_delete): a wrong one
  // is an error, not a hole in somebody else's memory.
  void raw_delete(void* address) override {
    if (!address) return;
    dtr_pool* pool = pool_with(address);
    if (!pool && try_free_beyond(address)) return;
    TORCH_CHECK(pool && core->pool_block_start(pool, address) == address, "dtr_alloc: ", address,
                " is not the start of a block in use");
    free_block(address);
  }

  // The start of the block around an address, and its size if the caller wants it. The host
  // takes what is returned as the base of an IPC handle without looking.
  void* getBaseAllocation(void* address, size_t* size) override {
    dtr_pool* pool = pool_with(address);
    void* start = pool ? core->pool_block_start(pool, address) : nullptr;
    TORCH_CHECK(start, "dtr_alloc: ", address, " is not in a block in use");
    if (size) *size = core->pool_block_bytes(pool, start);
    return start;
  }

  // The host passes whatever DataPtr the tensor has: that of an empty or a foreign storage
  // has no block of ours to mark, as PyTorch's own allocator skips it.
  using CUDAPluggableAllocator::recordStream;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    const c10::DeleterFnPtr deleter = pointer.get_deleter();
    if (!pointer.get() || (deleter != &free_block && deleter != &free_of_arena)) return;
    core->record_stream(core->engine, pointer.get(), number(stream.stream()));
  }

  // Gives what is free back to the driver; what a private pool keeps stays its own.
  void emptyCache(c10::cuda::MempoolId_t) override {
    for (int device = 0; device < most_devices; ++device)
      if (dtr_pool* pool = find_pool(device)) check(core->pool_trim(pool, nullptr));
  }

  // A peer copy needs no access of one device to the other's memory.
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                          cudaStream_t stream, bool) override {
    if (to_device == from_device)
      return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
  }

  // After this call kernels of one device use memory of another, as in copies that are no plain ones.
  // The host asks once for two devices, and only if they are connected.
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override {
    check(core->pool_add_peer(pool_of(other), device));
  }

  // ---- limits ----

  // A job's own limit (torch.cuda.set_per_process_memory_fraction) can narrow the budget,
  // not widen it. Throws, and changes nothing, if what cannot be evicted does not fit.
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "dtr_alloc: the memory fraction is ", fraction,
                "; allowed: 0 to 1");
    dtr_pool* pool = pool_of(device);
    const dtr_pool_stats stats = stats_of(pool);
    uint64_t budget = stats.budget_bytes;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const Limit& limit = limits_[device];
      if (limit.narrowed == budget) budget = limit.before;
    }
    const auto wished = static_cast<uint64_t>(fraction * static_cast<double>(stats.total_bytes));
    const uint64_t narrowed = std::min(budget, wished);
    check(core->pool_set_budget(pool, narrowed));
    const std::lock_guard<std::mutex> lock(mutex_);
    limits_[device] = {budget, narrowed};
  }

  double getMemoryFraction(c10::DeviceIndex device) override {
    const dtr_pool_stats stats = stats_of(pool_of(device));
    if (stats.total_bytes == 0 || stats.budget_bytes >= stats.total_bytes) return 1;
    return static_cast<double>(stats.budget_bytes) / static_cast<double>(stats.total_bytes);
  }

  // cuDNN's benchmark mode sizes its workspaces by this.
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    const dtr_pool_stats stats = stats_of(pool_of(device));
    *largest = stats.total_bytes ? std::min(stats.largest_free_bytes, stats.total_bytes)
                                 : stats.largest_free_bytes;
  }

  // ---- statistics ----

  // Only the totals: the heap has no small and large pool. An evicted tensor counts as freed.
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const dtr_pool_stats now = stats_of(pool_of(device));
    dtr_pool_stats from{};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      from = counted_from_[device];
    }
    constexpr auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    // ever and ever_before: all that was ever added, now and when counting began.
    const auto fill = [](c10::CachingAllocator::StatArray& stat, uint64_t current, uint64_t peak,
                         uint64_t ever, uint64_t ever_before, uint64_t current_before) {
      stat[total].current = static_cast<int64_t>(current);
      stat[total].peak = static_cast<int64_t>(peak);
      stat[total].allocated = static_cast<int64_t>(ever - ever_before);
      stat[total].freed = static_cast<int64_t>((ever - current) - (ever_before - current_before));
    };
    DeviceStats stats;
    fill(stats.allocated_bytes, now.allocated_bytes, now.peak_allocated_bytes,
         now.ever_allocated_bytes, from.ever_allocated_bytes, from.allocated_bytes);
    stats.active_bytes = stats.allocated_bytes;
    fill(stats.requested_bytes, now.requested_bytes, now.peak_requested_bytes,
         now.ever_requested_bytes, from.ever_requested_bytes, from.requested_bytes);
    fill(stats.reserved_bytes, now.reserved_bytes, now.peak_reserved_bytes,
         now.mapped_chunks * now.chunk_bytes, from.mapped_chunks * now.chunk_bytes,
         from.reserved_bytes);
    fill(stats.allocation, now.live_blocks, now.peak_live_blocks, now.allocations, from.allocations,
         from.live_blocks);
    stats.active = stats.allocation;
    fill(stats.segment, now.reserved_bytes / now.chunk_bytes,
         now.peak_reserved_bytes / now.chunk_bytes, now.mapped_chunks, from.mapped_chunks,
         from.reserved_bytes / now.chunk_bytes);
    const uint64_t unused = now.reserved_bytes - std::min(now.reserved_bytes, now.allocated_bytes);
    stats.inactive_split_bytes[total].current = static_cast<int64_t>(unused);
    stats.inactive_split_bytes[total].peak = static_cast<int64_t>(now.peak_unused_bytes);
    stats.num_alloc_retries = static_cast<int64_t>(now.remaps - from.remaps);
    stats.num_ooms = static_cast<int64_t>(now.out_of_memory_errors - from.out_of_memory_errors);
    stats.num_device_alloc = static_cast<int64_t>(now.mapped_chunks - from.mapped_chunks);
    stats.num_device_free = static_cast<int64_t>(now.unmapped_chunks - from.unmapped_chunks);
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const dtr_pool_stats now = stats_of(pool_of(device));
    const std::lock_guard<std::mutex> lock(mutex_);
    counted_from_[device] = now;
  }

  void resetPeakStats(c10::DeviceIndex device) override { core->pool_reset_peak(pool_of(device)); }

  // Runs of blocks as segments. A free block of a chunk or more may have no memory behind
  // it, so it ends a run and is not shown. mempool: {0, 0} for all, private pools or not.
  caching::SnapshotInfo snapshot(c10::cuda::MempoolId_t mempool, bool) override {
    caching::SnapshotInfo info{};
    info.config_metadata.expandable_segments = true;
    for (int device = 0; device < most_devices; ++device) {
      dtr_pool* pool = find_pool(device);
      if (!pool) continue;
      // The host's Python reads one list of events for each device.
      info.device_traces.resize(static_cast<size_t>(device) + 1);
      add_segments(device, pool, mempool, &info.segments);
    }
    return info;
  }

  // The base's answers throw, and the host asks before it does anything else.
  bool isHistoryEnabled() override { return false; }

  // Switching it off is no request for it.
  void recordHistory(bool enabled, caching::CreateContextFn, size_t, caching::RecordContext, bool,
                     const std::vector<std::string>&) override {
    TORCH_CHECK(
        !enabled,
        "dtr_alloc: memory history (torch.cuda.memory._record_memory_history) is not "
        "recorded under a budget; torch.cuda.memory_snapshot() shows the present state, and "
        "DTR_ALLOC_TRACE=oom:FILE keeps the last events before an out-of-memory error");
  }

  // An observer may take the GIL: it is called with no lock held.
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    observers_.push_back(std::move(observer));
  }

  // Overrides where the base has it (from 2.12 or 2.13 on; the parameter is the same type),
  // and is unused elsewhere; hence no `override`. We refuse nothing beforehand, so there is
  // nothing to tell.
  void attachOomRejectionObserver(caching::OutOfMemoryObserver) {}

  // ---- private pools: of captured graphs, and torch.cuda.MemPool ----
  //
  // Their memory must stay where it is while a graph may be replayed: each is an arena of
  // the device's heap, within the budget, and what is in it is never evicted. A pool is
  // counted as PyTorch counts it: capture_begin and use_mem_pool begin, MemPool creates,
  // and each releases once.

  void beginAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override {
    const uint64_t arena = add_use(device, id);
    const std::lock_guard<std::mutex> lock(mutex_);
    routes_.push_back({device, id, arena, std::move(filter)});
    routed_ = true;
  }

  void endAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override {
    Route ended;  // its filter is destroyed without the mutex
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::ranges::find_if(
        routes_, [&](const Route& route) { return route.device == device && route.id == id; });
    if (at == routes_.end()) return;
    ended = std::move(*at);
    routes_.erase(at);
    routed_ = !routes_.empty();
  }

  void releasePool(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override {
    uint64_t arena = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      PrivatePool& pool = private_pool(device, id);
      if (--pool.uses > 0) return;
      arena = pool.arena;
      private_pools_.erase({device, id});
    }
    check(core->pool_arena_close(pool_of(device), arena));
  }

  // CUDA graph trees record one graph after another into a pool, also after a replay, which leaves
  // other blocks in use than the allocator knows: they have it as it was when the graph was recorded.
  // Nobody else allocates there meanwhile.

  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                              c10::cuda::MempoolId_t id) override {
    auto state = std::make_shared<Checkpoint>();
    state->id = id;
    state->blocks = live_blocks(device, id);
    return state;
  }

  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    const auto* wanted = dynamic_cast<const Checkpoint*>(state.get());
    TORCH_CHECK(wanted, "dtr_alloc: this checkpoint of a memory pool is another allocator's");
    caching::CheckpointDelta delta;
    const uint64_t arena = arena_of(device, wanted->id);
    for (const dtr_block& block : live_blocks(device, wanted->id)) {
      delta.ptrs_freed.push_back(start_of(block));
      free_of_arena(start_of(block));
    }
    for (const dtr_block& block : wanted->blocks) {
      void* address = start_of(block);
      check(core->pool_arena_allocate_at(pool_of(device), arena, address, block.requested_bytes,
                                         block.stream));
      delta.dataptrs_allocd.emplace_back(address, address, &free_of_arena,
                                         c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  }

  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::cuda::MempoolId_t id,
                                const std::unordered_set<void*>& expected) override {
    const std::vector<dtr_block> blocks = live_blocks(device, id);
    return blocks.size() == expected.size() &&
           std::ranges::all_of(blocks, [&](const dtr_block& block) {
             return expected.count(start_of(block)) != 0;
           });
  }

  int getPoolUseCount(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = private_pools_.find({device, id});
    return found == private_pools_.end() ? 0 : found->second.uses;
  }

  void createOrIncrefPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id,
                          std::shared_ptr<caching::CUDAAllocator> other) override {
    TORCH_CHECK(!other,
                "dtr_alloc: torch.cuda.MemPool with an allocator of its own would take memory "
                "beside the budget; allowed: torch.cuda.MemPool()");
    add_use(device, id);
  }

  void setUseOnOOM(c10::DeviceIndex, c10::cuda::MempoolId_t, bool use_on_oom) override {
    TORCH_CHECK(!use_on_oom,
                "dtr_alloc: torch.cuda.MemPool(use_on_oom=True) is not supported: nobody but its "
                "own gets memory of a private pool; allowed: False");
  }

  void setNoSplit(c10::DeviceIndex, c10::cuda::MempoolId_t) override {
    TORCH_CHECK(false,
                "dtr_alloc: torch.cuda.MemPool(no_split=True) is not supported: there are no "
                "segments to split; allowed: False");
  }

  // The driver exports no memory that is mapped as ours is, and who reads a tensor in another
  // process cannot be made to wait for its content (dtr_alloc/torch/unsupported.py).
  caching::ShareableHandle shareIpcHandle(void*) override { refuse_sharing(); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { refuse_sharing(); }

  std::string name() override { return "dtr_alloc"; }

  // Usable from the start. PyTorch swaps no allocator that says so, before the first use of the
  // device as well, when it would take another one in our place without a word.
  bool initialized() override { return true; }

 private:
  struct Limit {
    uint64_t before = 0;  // the budget, had the job not set a fraction
    uint64_t narrowed = 0;
  };

  [[noreturn]] static void refuse_sharing() {
    C10_THROW_ERROR(Error,
                    "dtr_alloc: tensors on the GPU cannot be shared with other processes under a "
                    "budget; send CPU tensors (tensor.cpu())");
  }

  using PoolKey = std::pair<c10::DeviceIndex, c10::cuda::MempoolId_t>;
  struct PrivatePool {
    uint64_t arena = 0;
    int uses = 0;
  };
  // The blocks in use of a private pool.
  struct Checkpoint : caching::AllocatorState {
    c10::cuda::MempoolId_t id{};
    std::vector<dtr_block> blocks;
  };
  // While it stands, what the filter wants comes from the arena.
  struct Route {
    c10::DeviceIndex device = -1;
    c10::cuda::MempoolId_t id{};
    uint64_t arena = 0;
    std::function<bool(cudaStream_t)> filter;
  };

  // Under the mutex.
  PrivatePool& private_pool(c10::DeviceIndex device, c10::cuda::MempoolId_t id) {
    const auto found = private_pools_.find({device, id});
    TORCH_CHECK(found != private_pools_.end(), "dtr_alloc: device cuda:", static_cast<int>(device),
                " has no private memory pool (", id.first, ", ", id.second, ")");
    return found->second;
  }

  uint64_t arena_of(c10::DeviceIndex device, c10::cuda::MempoolId_t id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return private_pool(device, id).arena;
  }

  // The blocks in use of a private pool.
  std::vector<dtr_block> live_blocks(c10::DeviceIndex device, c10::cuda::MempoolId_t id) {
    const uint64_t arena = arena_of(device, id);
    std::vector<dtr_block> blocks = blocks_of(pool_of(device));
    std::erase_if(blocks, [&](const dtr_block& block) {
      return block.arena != arena || block.state != DTR_BLOCK_IN_USE;
    });
    return blocks;
  }

  // One more user of a private pool, which is made for its first; returns its arena.
  uint64_t add_use(c10::DeviceIndex device, c10::cuda::MempoolId_t id) {
    // Held while the core is asked, so that two threads do not open two: nothing else is
    // called under it, and the core calls nobody back.
    const std::lock_guard<std::mutex> opening(opening_);
    const PoolKey key{device, id};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = private_pools_.find(key);
      if (found != private_pools_.end()) {
        ++found->second.uses;
        return found->second.arena;
      }
    }
    uint64_t arena = 0;
    check(core->pool_arena_open(pool_of(device), &arena));
    const std::lock_guard<std::mutex> lock(mutex_);
    private_pools_[key] = {arena, 1};
    return arena;
  }

  // The arena that the stream's memory comes from now; 0: none, which is nearly always.
  uint64_t arena_for(c10::DeviceIndex device, cudaStream_t stream) {
    if (!routed_ || repeats) return 0;
    std::vector<Route> routes;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      routes = routes_;
    }
    for (const Route& route : routes)
      if (route.device == device && route.filter(stream)) return route.arena;
    return 0;
  }

  // See several_streams.
  void note(c10::DeviceIndex device, uint64_t stream) {
    if (several_streams.load(std::memory_order_relaxed)) return;
    uint64_t first = 0;
    if (!first_streams_[device].compare_exchange_strong(first, stream + 1) && first != stream + 1)
      several_streams = true;
  }

  void* memory(size_t size, c10::DeviceIndex device, cudaStream_t stream, uint64_t arena) {
    dtr_pool* pool = pool_of(device);
    note(device, number(stream));
    try {
      return allocate_block({c10::DeviceType::CUDA, device}, size, number(stream), arena);
    } catch (const c10::OutOfMemoryError&) {
      std::vector<caching::OutOfMemoryObserver> observers;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        observers = observers_;
      }
      const dtr_pool_stats stats = stats_of(pool);
      const uint64_t limit =
          stats.total_bytes ? std::min(stats.budget_bytes, stats.total_bytes) : stats.budget_bytes;
      for (const auto& observer : observers)
        observer(device, size, limit, limit - std::min(limit, stats.allocated_bytes));
      throw;
    }
  }

  // Null: the request is not a workspace's, or there is no memory for it.
  void* workspace(size_t size, c10::DeviceIndex device, cudaStream_t stream, uint64_t arena,
                  const void* caller, bool* beyond) {
    if (!serves_beyond_ || arena || size == 0 || !requesters_.is_workspace(caller)) return nullptr;
    pool_of(device);
    note(device, number(stream));
    return allocate_workspace({c10::DeviceType::CUDA, device}, size, number(stream), beyond);
  }

  void* raw_memory(size_t size, cudaStream_t stream, const void* caller) {
    const c10::DeviceIndex device = current_device();
    const uint64_t arena = arena_for(device, stream);
    bool beyond = false;
    void* address = workspace(size, device, stream, arena, caller, &beyond);
    return address ? address : memory(size, device, stream, arena);
  }

  void add_segments(int device, dtr_pool* pool, c10::cuda::MempoolId_t mempool,
                    std::vector<c10::CachingDeviceAllocator::SegmentInfo>* segments) {
    std::map<uint64_t, c10::cuda::MempoolId_t> pools;  // by arena
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [key, of] : private_pools_)
        if (key.first == device) pools[of.arena] = key.second;
    }
    const c10::cuda::MempoolId_t all{0, 0};
    const uint64_t chunk_bytes = stats_of(pool).chunk_bytes;
    bool open = false;
    for (const dtr_block& block : blocks_of(pool)) {
      const bool is_free = block.state == DTR_BLOCK_FREE;
      const auto private_pool = pools.find(block.arena);
      const c10::cuda::MempoolId_t id = private_pool == pools.end() ? all : private_pool->second;
      if ((is_free && !block.arena && block.size_bytes >= chunk_bytes) ||
          (mempool != all && mempool != id)) {
        open = false;
        continue;
      }
      if (!open || segments->back().address + segments->back().total_size != block.address ||
          segments->back().owner_private_pool_id != id) {
        auto& segment = segments->emplace_back();
        segment.device = static_cast<c10::DeviceIndex>(device);
        segment.address = block.address;
        segment.stream = reinterpret_cast<void*>(block.stream);
        segment.is_large = block.is_small == 0;
        segment.is_expandable = true;
        segment.owner_private_pool_id = id;
        open = true;
      }
      auto& segment = segments->back();
      auto& shown = segment.blocks.emplace_back();
      shown.size = block.size_bytes;
      shown.requested_size = block.requested_bytes;
      shown.allocated = block.state == DTR_BLOCK_IN_USE;
      shown.active = !is_free;
      segment.total_size += shown.size;
      segment.requested_size += shown.requested_size;
      if (shown.allocated) segment.allocated_size += shown.size;
      if (shown.active) segment.active_size += shown.size;
    }
  }

  const bool serves_beyond_;
  const Requesters requesters_;
  std::mutex mutex_;
  std::mutex opening_;  // of arenas; taken before mutex_
  std::vector<caching::OutOfMemoryObserver> observers_;
  std::map<PoolKey, PrivatePool> private_pools_;
  std::vector<Route> routes_;
  std::atomic<bool> routed_{false};                                  // whether there are any
  std::array<std::atomic<uint64_t>, most_devices> first_streams_{};  // plus 1; 0: none yet
  std::array<Limit, most_devices> limits_{};
  std::array<dtr_pool_stats, most_devices> counted_from_{};
};

}  // namespace

// Makes the core the source of all CUDA tensor memory, for good: PyTorch cannot change its
// allocator once it is in use. Returns NULL, or why it cannot be done (valid until the
// next call); then nothing has changed. serves_beyond: workspaces may be served beyond the budget.
DTR_EXPORT const char* dtr_bridge_install_cuda(bool serves_beyond) {
  // Never destroyed: tensors may outlive static objects at exit.
  static std::shared_ptr<CudaAllocator>* installed = nullptr;
  static std::string message;
  if (installed) return nullptr;
  try {
    if (caching::get()->initialized()) {
      message = "CUDA is initialized already, and PyTorch cannot change its allocator afterwards";
      return message.c_str();
    }
    if (auto other = pluggable::getCurrentAllocator()) {
      message = "another allocator is installed already: " + other->name();
      return message.c_str();
    }
    auto allocator = std::make_shared<CudaAllocator>(serves_beyond);
    set_current_stream(&current_stream);
    put_philox = &set_philox;
    // The route of torch.cuda.memory.change_current_allocator.
    pluggable::changeCurrentAllocator(allocator);
    // torch.accelerator.memory_* and c10's own storages ask the registry instead, which
    // that route leaves at PyTorch's allocator. Its own registration has priority 0.
    c10::SetAllocator(c10::DeviceType::CUDA, allocator.get(), 1);
    installed = new std::shared_ptr<CudaAllocator>(std::move(allocator));
    return nullptr;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

}  // namespace dtr_bridge
