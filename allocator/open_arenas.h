// Which arenas of a pool are open, by number: for pools that need to know no more (see arenas.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "errors.h"

namespace dtr {

[[noreturn]] inline void throw_arena_not_open(uint64_t arena) {
  invalid("arena", arena, "an arena of this pool that is open");
}

[[noreturn]] inline void throw_not_freed_in_arena(uint64_t address, uint64_t stream) {
  invalid("address", address_text(address),
          "where the arena has enough free memory of stream " + std::to_string(stream));
}

class OpenArenas {
 public:
  uint64_t open() {
    open_.insert(last_ + 1);
    return ++last_;
  }
  // Throws InvalidArgument unless the arena is open.
  void require_open(uint64_t arena) const {
    if (open_.count(arena) == 0) throw_arena_not_open(arena);
  }
  // Throws as require_open().
  void close(uint64_t arena) {
    require_open(arena);
    open_.erase(arena);
  }

 private:
  std::set<uint64_t> open_;
  uint64_t last_ = 0;
};

}  // namespace dtr
