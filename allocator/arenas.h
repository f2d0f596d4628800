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
#include <iterator>
#include <map>
#include <unordered_map>

#include "block.h"
#include "open_arenas.h"
#include "streams.h"

namespace dtr {

class Arenas {
 public:
  explicit Arenas(Streams& streams) : streams_(streams) {}

  uint64_t open() {
    arenas_.emplace(last_ + 1, Arena{});
    return ++last_;
  }
  // Throws InvalidArgument unless the arena is open.
  void require_open(uint64_t arena) { at(arena); }
  void close(uint64_t arena) {
    open_up(at(arena));
    arenas_.erase(arena);
  }
  void close_all() {
    for (const auto& [id, arena] : arenas_) open_up(arena);
    arenas_.clear();
  }

  // Who takes and frees for this arena on this stream. Throws as require_open().
  Owner owner_of(uint64_t arena, uint64_t stream) {
    Arena& of = at(arena);
    auto known = of.by_stream.find(stream);
    if (known != of.by_stream.end()) return known->second;
    const Owner owner = streams_.withhold(stream);
    try {
      owners_.emplace(owner, Held{arena});
      of.by_stream.emplace(stream, owner);
    } catch (...) {
      owners_.erase(owner);
      streams_.drop(owner);
      throw;
    }
    return owner;
  }
  // Who gets a block of this owner that other streams may still use.
  Owner apart_of(Owner owner) {
    Arena& of = arenas_.at(owners_.at(owner).arena);
    if (of.apart != kIdle) return of.apart;
    const Owner apart = streams_.withhold(streams_.stream_of(owner));
    try {
      owners_.emplace(apart, Held{owners_.at(owner).arena});
    } catch (...) {
      streams_.drop(apart);
      throw;
    }
    of.apart = apart;
    return apart;
  }

  bool own_any() const { return !owners_.empty(); }
  bool owns(Owner owner) const { return !owners_.empty() && owners_.count(owner) != 0; }
  bool is_open(Owner owner) const { return owners_.at(owner).open; }
  uint64_t arena_of(Owner owner) const { return owners_.at(owner).arena; }
  uint64_t live(Owner owner) const { return owners_.at(owner).live; }
  // A block in use more, or less.
  void took(Owner owner) { ++owners_.at(owner).live; }
  void gave(Owner owner) { --owners_.at(owner).live; }

  // After device_done(), when the heap has settled: forgets the owners that have nothing any more.
  void forget_done() {
    for (auto entry = owners_.begin(); entry != owners_.end();) {
      const bool done =
          !entry->second.open && entry->second.live == 0 && !streams_.withholds(entry->first);
      if (done) streams_.drop(entry->first);
      entry = done ? owners_.erase(entry) : std::next(entry);
    }
  }

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

  Arena& at(uint64_t arena) {
    auto found = arenas_.find(arena);
    if (found == arenas_.end()) throw_arena_not_open(arena);
    return found->second;
  }
  void open_up(const Arena& arena) {
    const auto open_up = [&](Owner owner) {
      owners_.at(owner).open = false;
      streams_.open_up(owner);
    };
    for (const auto& [stream, owner] : arena.by_stream) open_up(owner);
    if (arena.apart != kIdle) open_up(arena.apart);
  }

  Streams& streams_;
  uint64_t last_ = 0;
  std::map<uint64_t, Arena> arenas_;
  std::unordered_map<Owner, Held> owners_;
};

}  // namespace dtr
