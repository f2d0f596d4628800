#include "cuda_driver.h"

#include "driver.h"
#include "errors.h"

namespace dtr {

std::unique_ptr<Driver> make_cuda_driver(int32_t) {
  throw DriverError("this build has no CUDA driver");
}

int32_t cuda_probe(const char*) { throw DriverError("this build has no CUDA driver"); }

void cuda_set_library(const char*) {}

}  // namespace dtr
