#include "make_pool.h"

#include "counted_pool.h"
#include "guarded_pool.h"

namespace dtr {

std::unique_ptr<AnyPool> make_pool(const PoolOptions& options) {
  if (options.driver == "counted") return std::make_unique<CountedPool>(options.budget_bytes);
  if (options.driver == "guarded") return std::make_unique<GuardedPool>(options.budget_bytes);
  return std::make_unique<Pool>(options);
}

}  // namespace dtr
