// search_context.h: what stays the same during one search for what to evict.
#pragma once

#include <cstdint>

namespace dtr {

struct SearchContext {
  int64_t now_ns;
  uint64_t most_free;  // Candidates::search()
};

}  // namespace dtr
