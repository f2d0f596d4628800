#include "driver.h"

namespace dtr {

std::unique_ptr<Driver> make_driver(const std::string& name, int32_t device) {
  if (device < 0 || (name != "cuda" && device != 0))
    invalid("device", device, "0, or an ordinal of a device for driver 'cuda'");
  if (name == "host") return make_host_driver();
  if (name == "simulated") return make_simulated_driver();
  if (name == "cuda") return make_cuda_driver(device);
  invalid("driver", "'" + name + "'", "'host', 'cuda', 'simulated', 'counted', 'guarded'");
}

}  // namespace dtr
