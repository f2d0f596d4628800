#include "arenas.h"

#include <iterator>

#include "open_arenas.h"

namespace dtr {

uint64_t Arenas::open() {
  arenas_.emplace(last_ + 1, Arena{});
  return ++last_;
}

Arenas::Arena& Arenas::at(uint64_t arena) {
  auto found = arenas_.find(arena);
  if (found == arenas_.end()) throw_arena_not_open(arena);
  return found->second;
}

Owner Arenas::owner_of(uint64_t arena, uint64_t stream) {
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

Owner Arenas::apart_of(Owner owner) {
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

void Arenas::open_up(const Arena& arena) {
  const auto open_up = [&](Owner owner) {
    owners_.at(owner).open = false;
    streams_.open_up(owner);
  };
  for (const auto& [stream, owner] : arena.by_stream) open_up(owner);
  if (arena.apart != kIdle) open_up(arena.apart);
}

void Arenas::close(uint64_t arena) {
  open_up(at(arena));
  arenas_.erase(arena);
}

void Arenas::close_all() {
  for (const auto& [id, arena] : arenas_) open_up(arena);
  arenas_.clear();
}

void Arenas::forget_done() {
  for (auto entry = owners_.begin(); entry != owners_.end();) {
    const bool done =
        !entry->second.open && entry->second.live == 0 && !streams_.withholds(entry->first);
    if (done) streams_.drop(entry->first);
    entry = done ? owners_.erase(entry) : std::next(entry);
  }
}

}  // namespace dtr
