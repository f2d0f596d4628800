// require.h: how a class says in its check() which rule (records.h) a storage breaks.
#pragma once

#include <string>

#include "base/error.h"
#include "records.h"

namespace dtr {

inline void require(bool holds, const char* rule, const Storage* storage) {
  if (!holds) throw StateError("storage " + std::to_string(storage->id) + " breaks " + rule);
}

}  // namespace dtr
