// regions.h: evicted neighborhoods as simrd caches them (simrd text, section 4.5).
//
// A region is what one resident storage sees in one direction: the evicted storages that it
// reaches through evicted ones (interior), and the resident ones at the edge (frontier). On an
// eviction the regions that have the storage in their frontier absorb its regions; on a
// rematerialization those around it are built anew. A cost is added as it was when its storage
// was absorbed, and later views of that storage do not change it: the engine's own neighborhoods
// (native/neighborhood.h) are exact instead, simrd's are what its published numbers stand on.
#pragma once

#include <cstdint>
#include <vector>

namespace dtr::simrd {

// The storage graph that regions are walks over.
struct Node {
  int64_t cost = 0;  // of all operators of its views
  bool material = false;
  uint32_t parent_edges = 0;      // tensor edges, those to itself and repeated ones included:
  uint32_t child_edges = 0;       // what a walk over the tensors would visit
  std::vector<uint32_t> parents;  // other storages, mostly without repetition
  std::vector<uint32_t> children;
};

struct Region {
  std::vector<uint32_t> interior;
  std::vector<uint32_t> frontier;
  int64_t cost = 0;
};

enum class Direction : uint8_t { ancestors, descendants };

// Both regions of every storage. Counts what it visits, as simrd does.
class Regions {
 public:
  explicit Regions(const std::vector<Node>& nodes) : nodes_(nodes) {}

  void add_storage() { pairs_.emplace_back(), marks_.push_back(0); }
  int64_t ancestors_cost(uint32_t storage) const { return pairs_[storage].ancestors.cost; }
  int64_t descendants_cost(uint32_t storage) const { return pairs_[storage].descendants.cost; }

  // After the storage was evicted. False: a region that should have it in its frontier has not
  // (storages that depend on views of one another), where simrd fails an assertion.
  bool evicted(uint32_t storage, uint64_t* accesses);
  // After these came back in one step.
  void revived(const std::vector<uint32_t>& storages, uint64_t* accesses);
  // Fills a region by a walk from a storage.
  void rebuild(Region& region, uint32_t storage, Direction direction, uint64_t* accesses);

 private:
  struct Pair {
    Region ancestors;
    Region descendants;
  };
  bool absorb(Region& region, const Region& of_storage, uint32_t storage, uint64_t* accesses);
  uint32_t next_mark() { return ++mark_; }

  const std::vector<Node>& nodes_;
  std::vector<Pair> pairs_;
  std::vector<uint32_t> marks_;
  uint32_t mark_ = 0;
  std::vector<uint32_t> pending_;
  std::vector<uint32_t> touched_;
};

}  // namespace dtr::simrd
