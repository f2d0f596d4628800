// Breaks each rule of pool.h, heap.h, chunks.h and slab.h by hand and prints what the checker says:
// one line "<rule> <message>" per corruption, where <rule> is the one that was broken.
#include <cstdio>
#include <memory>
#include <string>

#include "pool.h"

namespace dtr {

struct Corruptor {
  // A pool with blocks, holes, an idle chunk and slabs with and without room.
  std::unique_ptr<Pool> pool =
      std::make_unique<Pool>(PoolOptions{"simulated", 0, 64 << 20, 0, 0, 0});
  uint64_t first, second, small, arena;

  Corruptor() {
    first = pool->allocate(100000, 0);
    uint64_t hole = pool->allocate(300000, 0);
    second = pool->allocate(100000, 0);
    small = pool->allocate(2048, 0);
    for (int i = 1; i < 32; ++i) pool->allocate(2048, 0);
    pool->allocate(64, 0);
    pool->free(hole);
    arena = pool->arena_open();
    pool->arena_allocate(arena, 400000, 0);
  }

  Heap& heap() { return pool->large_; }
  Chunks& chunks() { return pool->chunks_; }
  Block* block(uint64_t address) { return heap().find(address - pool->reservation_.base()); }
  Block* hole() { return block(first)->next(); }
  Slab* slab() {
    uint32_t index;
    return pool->slabs_.find(pool->small_.begin() + chunks().chunk_bytes(), &index);
  }

  void wrong_size() { block(first)->size -= 512; }
  void lost_from_the_index() { heap().owners_[kIdle]->index.erase(hole()); }
  void not_merged() {
    Block* part = heap().take(hole(), 512);
    heap().used_.erase(part);
    heap().enter(part);
  }
  void not_found() { heap().used_.erase(block(second)); }
  void points_out_of_order() {
    heap().release(block(first), 1, 5);
    heap().release(block(second), 1, 6);
    heap().nodes_.detail(heap().owners_[1]->oldest).point = 7;
  }
  void start_mistaken() { heap().starts_.replace(block(first), block(second)); }
  void chunk_forgotten() { chunks().untouch(0, 1, 0, chunks().chunk_bytes()); }
  void chunk_not_mapped() {
    chunks().mapped_.clear(0);
    --chunks().mapped_count_;
  }
  void absent_chunk_mapped() {
    chunks().mapped_.set(chunks().number(heap().largest_absent()->offset));
    ++chunks().mapped_count_;
  }
  void mapped_miscounted() { ++chunks().mapped_count_; }
  void slab_miscounted() { --slab()->live; }
  void slab_list_broken() { slab()->free = 0; }
  void slab_in_no_list() { pool->slabs_.unlink(slab()); }
  void empty_slabs_miscounted() { ++pool->slabs_.empty_; }
  void budget_exceeded() { pool->budget_ = chunks().chunk_bytes(); }
  void bytes_miscounted() { pool->counts_.allocated_bytes += 64; }
  void blocks_miscounted() { ++pool->counts_.live_blocks; }
  void above_the_budget() {
    const uint64_t chunk = chunks().chunk_bytes();
    heap().empty(pool->budget_ / 2, pool->budget_ / 2 + chunk);
    heap().fill(2 * pool->budget_, 2 * pool->budget_ + chunk);
    pool->fixed_ = true;
  }
  void arena_miscounted() { pool->arenas_.took(pool->arenas_.owner_of(arena, 0)); }
};

}  // namespace dtr

int main() {
  using dtr::Corruptor;
  struct Case {
    const char* rule;
    void (Corruptor::*corrupt)();
  };
  const Case cases[] = {
      {"H1", &Corruptor::wrong_size},          {"H2", &Corruptor::lost_from_the_index},
      {"H3", &Corruptor::not_merged},          {"H4", &Corruptor::not_found},
      {"H5", &Corruptor::points_out_of_order}, {"H7", &Corruptor::start_mistaken},
      {"H6", &Corruptor::absent_chunk_mapped}, {"C1", &Corruptor::mapped_miscounted},
      {"C2", &Corruptor::chunk_not_mapped},    {"C3", &Corruptor::chunk_forgotten},
      {"L1", &Corruptor::slab_miscounted},     {"L2", &Corruptor::slab_list_broken},
      {"L3", &Corruptor::slab_in_no_list},     {"L4", &Corruptor::empty_slabs_miscounted},
      {"P1", &Corruptor::budget_exceeded},     {"P2", &Corruptor::bytes_miscounted},
      {"P2", &Corruptor::blocks_miscounted},   {"P3", &Corruptor::arena_miscounted},
      {"P4", &Corruptor::above_the_budget},
  };
  for (const Case& entry : cases) {
    auto corruptor = std::make_unique<Corruptor>();
    std::string before = corruptor->pool->check_invariants();
    if (!before.empty()) {
      std::printf("%s broken before the corruption: %s\n", entry.rule, before.c_str());
      continue;
    }
    ((*corruptor).*entry.corrupt)();
    std::printf("%s %s\n", entry.rule, corruptor->pool->check_invariants().c_str());
    corruptor.release();  // broken as it is, it cannot be taken apart
  }
}
