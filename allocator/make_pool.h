// The pool that options ask for: the one place that knows both kinds.
#pragma once

#include <memory>

#include "any_pool.h"
#include "pool.h"

namespace dtr {

// Throws InvalidArgument, or DriverError.
std::unique_ptr<AnyPool> make_pool(const PoolOptions& options);

}  // namespace dtr
