#include "make_pool.h"

#include <string_view>

#include "counted_pool.h"
#include "guarded_pool.h"

namespace dtr {

std::unique_ptr<AnyPool> make_pool(const PoolOptions& options) {
  const std::string_view driver = options.driver;
  if (driver == "counted") return std::make_unique<CountedPool>(options.budget_bytes);
  if (driver == "guarded") return std::make_unique<GuardedPool>(options.budget_bytes);
  return std::make_unique<Pool>(options);
}

}  // namespace dtr
