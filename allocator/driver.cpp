#include "driver.h"

namespace dtr {

std::unique_ptr<Driver> make_driver(const std::string& name, int32_t device) {
  if (device < 0 || (name != "cuda" && device != 0))
    throw InvalidArgument("device is " + std::to_string(device) +
                          "; allowed: 0, or an ordinal of a device for driver 'cuda'");
  if (name == "host") return make_host_driver();
  if (name == "simulated") return make_simulated_driver();
  if (name == "cuda") return make_cuda_driver(device);
  throw InvalidArgument("driver is '" + name +
                        "'; allowed: 'host', 'cuda', 'simulated', 'counted', 'guarded'");
}

}  // namespace dtr
