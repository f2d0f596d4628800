// Arenas: memory whose addresses stay its own, for CUDA graphs and torch.cuda.MemPool.
//
// A block of an arena is a block of the large heap with an owner of the arena's. An arena has a
// withheld owner (streams.h) for each stream: what is freed there serves only this arena on this
// stream, is never unmapped, and records no event, as the stream may be being captured. Closing
// opens these owners up: their free blocks are everybody's after the next device_done(), and a
// block that is still in use is a plain block when it is freed.
//
// A block that another stream was recorded to use is set apart: it serves nobody until then.
//
// The pool checks (P3) that live() is the number of an owner's blocks in use, and that the free
// blocks of an open arena are not settled.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "block.h"
#include "streams.h"

namespace dtr {

class Arenas {
 public:
  explicit Arenas(Streams& streams) : streams_(streams) {}

  uint64_t open();
  // Throws InvalidArgument unless the arena is open.
  void require_open(uint64_t arena) { at(arena); }
  void close(uint64_t arena);
  void close_all();

  // Who takes and frees for this arena on this stream. Throws as require_open().
  Owner owner_of(uint64_t arena, uint64_t stream);
  // Who gets a block of this owner that other streams may still use.
  Owner apart_of(Owner owner);

  bool own_any() const { return !owners_.empty(); }
  bool owns(Owner owner) const { return !owners_.empty() && owners_.count(owner) != 0; }
  bool is_open(Owner owner) const { return owners_.at(owner).open; }
  uint64_t arena_of(Owner owner) const { return owners_.at(owner).arena; }
  uint64_t live(Owner owner) const { return owners_.at(owner).live; }
  // A block in use more, or less.
  void took(Owner owner) { ++owners_.at(owner).live; }
  void gave(Owner owner) { --owners_.at(owner).live; }

  // After device_done(), when the heap has settled: forgets the owners that have nothing any more.
  void forget_done();

  uint64_t count() const { return arenas_.size(); }  // open ones

 private:
  struct Arena {
    std::map<uint64_t, Owner> by_stream;
    Owner apart = kIdle;
  };
  struct Held {
    uint64_t arena;
    uint64_t live = 0;
    bool open = true;
  };

  Arena& at(uint64_t arena);
  void open_up(const Arena& arena);

  Streams& streams_;
  uint64_t last_ = 0;
  std::map<uint64_t, Arena> arenas_;
  std::unordered_map<Owner, Held> owners_;
};

}  // namespace dtr
