#include "device_work.h"

#include <iterator>
#include <string>

#include "errors.h"

namespace dtr {

DeviceWork::~DeviceWork() {
  or_say("streams, events or host memory not returned", [this] { close(); });
}

void DeviceWork::close() {
  if (!host_.empty()) {
    uint64_t bytes = 0;
    for (const auto& [host, size] : host_) bytes += size;
    throw StateError("the pool has " + std::to_string(host_.size()) +
                     " blocks of host memory in use, " + size_text(bytes) +
                     "; free them before it is destroyed");
  }
  return_freed();
  timers_.close();
  if (order_ != nullptr) driver_.destroy_event(order_);
  order_ = nullptr;
  if (side_ != 0) driver_.destroy_stream(side_);
  side_ = 0;
}

void DeviceWork::order(uint64_t stream, uint64_t after) {
  if (stream == after || !driver_.has_streams()) return;
  if (order_ == nullptr) order_ = driver_.create_event();
  driver_.record_event(order_, after);
  driver_.stream_wait_event(stream, order_);
}

uint64_t DeviceWork::host_allocate(uint64_t size_bytes) {
  if (size_bytes == 0) throw InvalidArgument("size_bytes is 0; allowed: 1 and more");
  const uint64_t host = driver_.allocate_host(size_bytes);
  try {
    host_.emplace(host, size_bytes);
  } catch (...) {
    driver_.free_host(host, size_bytes);
    throw;
  }
  return host;
}

void DeviceWork::host_free(uint64_t host) {
  auto found = host_.find(host);
  if (found == host_.end()) {
    throw InvalidArgument("host is " + address_text(host) +
                          "; allowed: the start of host memory of this pool");
  }
  freed_.insert(host_.extract(found));
  try {
    return_freed();
  } catch (const DriverError&) {
    // The caller is rid of it all the same; nobody could do more about it than we can later.
  }
}

void DeviceWork::return_freed() {
  while (!freed_.empty()) {
    const auto first = freed_.begin();
    driver_.free_host(first->first, first->second);
    freed_.erase(first);
  }
}

void DeviceWork::check_host(uint64_t host, uint64_t size_bytes) const {
  auto next = host_.upper_bound(host);
  if (next != host_.begin()) {
    const auto& [start, size] = *std::prev(next);
    if (host - start <= size && size_bytes <= size - (host - start)) return;
  }
  throw InvalidArgument("host is " + address_text(host) + " for " + size_text(size_bytes) +
                        "; allowed: a range in host memory of this pool");
}

void DeviceWork::copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream) {
  check_host(host, size_bytes);
  if (size_bytes != 0) driver_.copy_out(host, address, size_bytes, stream);
}

void DeviceWork::copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream) {
  check_host(host, size_bytes);
  if (size_bytes != 0) driver_.copy_in(address, host, size_bytes, stream);
}

void DeviceWork::synchronize(uint64_t stream) {
  if (driver_.has_streams()) driver_.synchronize_stream(stream);
}

uint64_t DeviceWork::side_stream() {
  if (side_ == 0 && driver_.has_streams()) side_ = driver_.create_stream();
  return side_;
}

}  // namespace dtr
