// What a pool queues on its device for those above it, besides handing out memory: order between
// streams, timers, copies to and from host memory. The pool's lock is held by the caller, except
// where it says otherwise.
#pragma once

#include <cstdint>
#include <map>

#include "driver.h"
#include "not_copied.h"
#include "timers.h"

namespace dtr {

class DeviceWork : NotCopied {
 public:
  explicit DeviceWork(Driver& driver) : driver_(driver), timers_(driver) {}
  // Reports to stderr what the driver refuses to take back.
  ~DeviceWork();

  // Gives back the stream and all events. Throws StateError while host memory is in use, having
  // done nothing. May be called again if the driver refuses.
  void close();

  // Work queued on stream from now on starts after all that is now queued on `after`.
  void order(uint64_t stream, uint64_t after);
  Timers& timers() { return timers_; }

  // Host memory that the device can copy from and to while the host goes on (pinned).
  uint64_t host_allocate(uint64_t size_bytes);
  // The copies that use it are done. Throws InvalidArgument for what host_allocate did not give.
  // What the driver refuses to take back just now is offered again, at the latest by close().
  void host_free(uint64_t host);
  // In stream order. Throw InvalidArgument unless [host, host + size_bytes) is in one block of
  // host memory.
  void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream);
  void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream);

  // Waits on the host for the work that is now on the stream. Without the pool's lock.
  void synchronize(uint64_t stream);
  // A stream of our own, the same at each call; 0 where there are none.
  uint64_t side_stream();

 private:
  void check_host(uint64_t host, uint64_t size_bytes) const;
  void return_freed();

  Driver& driver_;
  Timers timers_;
  Driver::Event order_ = nullptr;  // a wait is for what an event meant then, so one is enough
  uint64_t side_ = 0;
  std::map<uint64_t, uint64_t> host_;   // bytes of each block of host memory in use
  std::map<uint64_t, uint64_t> freed_;  // of those that the driver has not taken back yet
};

}  // namespace dtr
