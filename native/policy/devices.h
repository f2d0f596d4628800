// devices.h: the devices whose memory is managed, in the order in which they got their pools.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device.h"

namespace dtr {

class Devices {
 public:
  Device& add(uint8_t type, int8_t index, dtr_pool* pool) {
    all_.push_back(std::unique_ptr<Device>(new Device{type, index, pool, all_.size()}));
    return *all_.back();
  }

  // Of a storage whose memory is ours.
  Device& of(const Storage* storage) const {
    for (const auto& device : all_)
      if (device->type == storage->device_type && device->index == storage->device_index)
        return *device;
    throw StateError("storage " + std::to_string(storage->id) + " is on a device without a pool");
  }
  Device& with(const dtr_pool* pool) const {
    for (const auto& device : all_)
      if (device->pool == pool) return *device;
    throw InvalidArgument("pool is not one of the engine's; allowed: given to dtr_engine_add_pool");
  }

  // Of memory that is ours.
  dtr_pool* pool_of(const void* address) const {
    for (const auto& device : all_)
      if (all_.size() == 1 || dtr_pool_contains(device->pool, address)) return device->pool;
    return nullptr;
  }

  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<std::unique_ptr<Device>> all_;
};

}  // namespace dtr
