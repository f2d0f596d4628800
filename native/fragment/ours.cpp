// Our own pool over simulated memory, as a model.
#include <algorithm>
#include <memory>
#include <new>

#include "errors.h"
#include "model.h"
#include "pool.h"

namespace dtr::fragment {

namespace {

constexpr uint64_t kManyBytes = uint64_t{1} << 37;  // an eighth of the addresses that it would have
constexpr uint64_t kLeastBudget = 64 << 10;         // the simulated driver's own chunk

PoolOptions pool_options(const dtr_fragment_options& options) {
  PoolOptions pool{};
  pool.driver = "simulated";
  // No pool has less than a chunk; one that should have less gives nothing.
  pool.budget_bytes = std::max(options.budget_bytes, std::max(options.chunk_bytes, kLeastBudget));
  pool.chunk_bytes = options.chunk_bytes;
  pool.small_bytes = options.small_bytes;
  pool.fixed = options.fixed;
  pool.placement = options.placement;
  // As many addresses as the simulated driver has, without a limit.
  if (pool.fixed) pool.budget_bytes = std::min(pool.budget_bytes, uint64_t{1} << 40);
  return pool;
}

// With the addresses that it would have; in a process of little address space, which cannot hold
// the records of so many, with four times what is needed.
std::unique_ptr<Pool> make_pool(const dtr_fragment_options& options, uint64_t needed_bytes) {
  PoolOptions given = pool_options(options);
  try {
    return std::make_unique<Pool>(given);
  } catch (const std::bad_alloc&) {
    const uint64_t most = std::min(given.budget_bytes, needed_bytes);
    if (most > kManyBytes) throw;
    given.reserve_bytes = 4 * most + 1024 * kLeastBudget + 64 * given.chunk_bytes;
  }
  return std::make_unique<Pool>(given);
}

class Ours final : public Model {
 public:
  Ours(const dtr_fragment_options& options, uint32_t count, uint64_t needed_bytes)
      : pool_(make_pool(options, needed_bytes)),
        hopeless_(options.budget_bytes < pool_->counts().chunk_bytes),
        live_(count) {}
  ~Ours() override {
    for (const uint64_t address : live_)
      if (address != 0) pool_->free(address);
    pool_->close();
  }
  uint64_t allocate(uint32_t id, uint64_t size, uint64_t stream) override {
    if (hopeless_) return kNoPlace;
    try {
      live_[id] = pool_->allocate(size, stream);
    } catch (const OutOfMemory&) {
      return kNoPlace;
    }
    return live_[id] - pool_->first_address();
  }
  void free(uint32_t id) override {
    pool_->free(live_[id]);
    live_[id] = 0;
  }
  uint64_t reserved_bytes() const override { return pool_->mapped_bytes(); }
  uint64_t used_bytes() const override { return pool_->counts().allocated_bytes; }
  std::vector<dtr_fragment_block> blocks() override {
    std::vector<dtr_fragment_block> all;
    for (const BlockInfo& block : pool_->mapped_snapshot())
      all.push_back({block.address - pool_->first_address(), block.size_bytes, block.stream,
                     block.state == DTR_BLOCK_FREE ? 0 : 1, 0});
    return all;
  }

 private:
  const std::unique_ptr<Pool> pool_;
  bool hopeless_;               // a budget of less than a chunk
  std::vector<uint64_t> live_;  // by id; 0: none
};

}  // namespace

std::unique_ptr<Model> make_ours(const dtr_fragment_options& options, uint32_t count,
                                 uint64_t needed_bytes) {
  return std::make_unique<Ours>(options, count, needed_bytes);
}

}  // namespace dtr::fragment
