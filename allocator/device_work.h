// What a pool queues on its device for those above it, besides handing out memory: order between
// streams, timers, copies to and from host memory. The pool's lock is held by the caller, except
// where it says otherwise.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <string>

#include "driver.h"
#include "errors.h"
#include "not_copied.h"
#include "timers.h"

namespace dtr {

class DeviceWork : NotCopied {
 public:
  explicit DeviceWork(Driver& driver) : driver_(driver), timers_(driver) {}
  // Reports to stderr what the driver refuses to take back.
  ~DeviceWork() {
    or_say("streams, events or host memory not returned", [this] { close(); });
  }

  // Gives back the stream and all events. Throws StateError while host memory is in use, having
  // done nothing. May be called again if the driver refuses.
  void close() {
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

  // Work queued on stream from now on starts after all that is now queued on `after`.
  void order(uint64_t stream, uint64_t after) {
    if (stream == after || !driver_.has_streams()) return;
    if (order_ == nullptr) order_ = driver_.create_event();
    driver_.record_event(order_, after);
    driver_.stream_wait_event(stream, order_);
  }
  Timers& timers() { return timers_; }

  // Host memory that the device can copy from and to while the host goes on (pinned).
  uint64_t host_allocate(uint64_t size_bytes) {
    if (size_bytes == 0) invalid("size_bytes", "0", "1 and more");
    const uint64_t host = driver_.allocate_host(size_bytes);
    try {
      host_.emplace(host, size_bytes);
    } catch (...) {
      driver_.free_host(host, size_bytes);
      throw;
    }
    return host;
  }
  // The copies that use it are done. Throws InvalidArgument for what host_allocate did not give.
  // What the driver refuses to take back just now is offered again, at the latest by close().
  void host_free(uint64_t host) {
    auto found = host_.find(host);
    if (found == host_.end())
      invalid("host", address_text(host), "the start of host memory of this pool");
    freed_.insert(host_.extract(found));
    try {
      return_freed();
    } catch (const DriverError&) {
      // The caller is rid of it all the same; nobody could do more about it than we can later.
    }
  }
  // In stream order. Throw InvalidArgument unless [host, host + size_bytes) is in one block of
  // host memory.
  void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream) {
    check_host(host, size_bytes);
    if (size_bytes != 0) driver_.copy_out(host, address, size_bytes, stream);
  }
  void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream) {
    check_host(host, size_bytes);
    if (size_bytes != 0) driver_.copy_in(address, host, size_bytes, stream);
  }

  // Waits on the host for the work that is now on the stream. Without the pool's lock.
  void synchronize(uint64_t stream) {
    if (driver_.has_streams()) driver_.synchronize_stream(stream);
  }
  // A stream of our own, the same at each call; 0 where there are none.
  uint64_t side_stream() {
    if (side_ == 0 && driver_.has_streams()) side_ = driver_.create_stream();
    return side_;
  }

 private:
  void check_host(uint64_t host, uint64_t size_bytes) const {
    auto next = host_.upper_bound(host);
    if (next != host_.begin()) {
      const auto& [start, size] = *std::prev(next);
      if (host - start <= size && size_bytes <= size - (host - start)) return;
    }
    invalid("host", address_text(host) + " for " + size_text(size_bytes),
            "a range in host memory of this pool");
  }
  void return_freed() {
    while (!freed_.empty()) {
      const auto first = freed_.begin();
      driver_.free_host(first->first, first->second);
      freed_.erase(first);
    }
  }

  Driver& driver_;
  Timers timers_;
  Driver::Event order_ = nullptr;  // a wait is for what an event meant then, so one is enough
  uint64_t side_ = 0;
  std::map<uint64_t, uint64_t> host_;   // bytes of each block of host memory in use
  std::map<uint64_t, uint64_t> freed_;  // of those that the driver has not taken back yet
};

}  // namespace dtr
