#include "make_pool.h"

#include <utility>

#include "counted_pool.h"
#include "segmented_pool.h"

namespace dtr {

std::unique_ptr<AnyPool> make_pool(const PoolOptions& options) {
  if (options.driver == "counted") return std::make_unique<CountedPool>(options.budget_bytes);
  std::shared_ptr<Driver> driver = make_driver(options.driver, options.device);
  if (!driver->maps_chunks()) return std::make_unique<SegmentedPool>(std::move(driver), options);
  return std::make_unique<Pool>(std::move(driver), options);
}

}  // namespace dtr
