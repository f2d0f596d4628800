// A driver: where address space and physical memory come from. A short table of verbs.
//
// Preconditions, stated once for all verbs:
//   - A range given to map, unmap or release lies in one reservation of the same driver, and its
//     offset and size are multiples of the chunk that was given to reserve().
//   - map() gets ranges that are wholly unmapped, unmap() ranges that are wholly mapped.
//   - No work that is still running on a stream uses a range given to unmap().
//   - One caller at a time per driver object (the pool's lock), but for synchronize_stream, which
//     may run beside any other verb. Any thread.
//   - A verb that throws (DriverError) has done nothing: no half of a range stays mapped.
// Memory that is not mapped must not be touched; nothing above the driver ever reads or writes
// the managed memory, mapped or not, so a driver may hand out addresses without memory behind.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "errors.h"
#include "not_copied.h"

namespace dtr {

struct DriverTraits {
  std::string name;
  uint64_t alignment;        // every block starts at a multiple of it; a power of two
  uint64_t granularity;      // map and unmap work in multiples of it
  uint64_t default_chunk;    // a multiple of granularity
  uint64_t default_reserve;  // address space to reserve unless told otherwise
  uint64_t total_bytes;      // physical memory of the device; 0 if unknown
};

class Driver {
 public:
  using Event = void*;

  virtual ~Driver() = default;
  virtual const DriverTraits& traits() const = 0;

  // Reserves address space and returns its first address, a multiple of traits().alignment.
  // chunk_bytes is the unit in which it will be mapped.
  virtual uint64_t reserve(uint64_t size_bytes, uint64_t chunk_bytes) = 0;
  // Gives address space back; nothing in it is mapped.
  virtual void release(uint64_t base, uint64_t size_bytes) = 0;
  // Puts physical memory behind [address, address + size_bytes). Contents are undefined.
  virtual void map(uint64_t address, uint64_t size_bytes) = 0;
  // Returns that memory to the system.
  virtual void unmap(uint64_t address, uint64_t size_bytes) = 0;

  // ---- Optional: memory that is shown at two addresses, for a while. The chunk of memory behind
  // `from` is from now on that behind `to`, which was unmapped; at `from` it remains to be seen,
  // for work that was queued earlier, until unalias(from). To all other verbs `from` is unmapped.
  virtual bool can_alias() const { return false; }
  virtual void alias(uint64_t to, uint64_t from) { missing(__func__); }
  virtual void unalias(uint64_t address, uint64_t size_bytes) { missing(__func__); }

  // ---- Optional: streams. A driver without them runs all work at once, in the order of calls;
  // then none of these is called and memory can be reused as soon as it is freed.
  virtual bool has_streams() const { return false; }
  // A timed event can be given to elapsed_ns.
  virtual Event create_event(bool timed = false) { missing(__func__); }
  virtual void destroy_event(Event event) { missing(__func__); }
  // The event completes when all work now on the stream has. An event may be recorded again.
  virtual void record_event(Event event, uint64_t stream) { missing(__func__); }
  virtual bool event_complete(Event event) { missing(__func__); }
  virtual void synchronize_event(Event event) { missing(__func__); }
  // Work queued on the stream from now on starts after the event; the caller does not wait.
  virtual void stream_wait_event(uint64_t stream, Event event) { missing(__func__); }
  // Between two timed events that are complete.
  virtual int64_t elapsed_ns(Event begin, Event end) { missing(__func__); }
  // A stream that waits for no other unless told to.
  virtual uint64_t create_stream() { missing(__func__); }
  virtual void destroy_stream(uint64_t stream) { missing(__func__); }
  // Waits on the host for the work that is now on the stream.
  virtual void synchronize_stream(uint64_t stream) { missing(__func__); }
  // Whether what is queued on the stream is captured into a graph instead of being run. Nothing
  // may wait for an event recorded there, and the stream cannot wait for other events.
  virtual bool capturing(uint64_t stream) { return false; }
  // Waits on the host for all work of the device; false, and nothing was waited for, if a stream
  // that is being captured forbids it.
  virtual bool synchronize_device() { return true; }

  // ---- Optional: work of another device of this process may use what is mapped, now and later.
  virtual void add_peer(int32_t device) { missing(__func__); }

  // ---- Optional: memory outside of all reservations, for work on a stream. The device has it back
  // once the work is done that is on the stream when it is freed; the caller does not wait.
  virtual uint64_t allocate_on_stream(uint64_t size_bytes, uint64_t stream) { missing(__func__); }
  virtual void free_on_stream(uint64_t address, uint64_t stream) { missing(__func__); }

  // ---- Optional: contents, for moving blocks. In stream order where there are streams.
  virtual bool has_contents() const { return false; }
  virtual void fill(uint64_t address, uint8_t value, uint64_t size_bytes, uint64_t stream) {
    missing(__func__);
  }
  // The ranges may overlap only on drivers without streams.
  virtual void copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t stream) {
    missing(__func__);
  }

  // ---- Host memory, and copies between it and the device, in stream order. The caller keeps
  // host memory until the work that uses it is done.
  virtual uint64_t allocate_host(uint64_t size_bytes) = 0;
  virtual void free_host(uint64_t host, uint64_t size_bytes) = 0;
  virtual void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream) = 0;
  virtual void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream) = 0;

  // How many calls made the host wait for the device, and how long. Any thread.
  uint64_t host_waits() const { return host_waits_; }
  uint64_t host_wait_ns() const { return host_wait_ns_; }

 protected:
  // What `call` returns, which makes the host wait.
  template <typename Call>
  auto count_wait(Call&& call) {
    ++host_waits_;
    const auto begin = std::chrono::steady_clock::now();
    const auto result = call();
    const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - begin;
    host_wait_ns_ += static_cast<uint64_t>(taken.count());
    return result;
  }

 private:
  [[noreturn]] static void missing(const char* verb) {
    throw StateError(std::string("this driver has no verb ") + verb);
  }

  std::atomic<uint64_t> host_waits_{0}, host_wait_ns_{0};
};

std::unique_ptr<Driver> make_host_driver();
std::unique_ptr<Driver> make_simulated_driver();
std::unique_ptr<Driver> make_cuda_driver(int32_t device);

// The driver of that name: "host", "simulated" or "cuda". Throws InvalidArgument for another, and
// DriverError for a CUDA device that cannot map memory.
std::unique_ptr<Driver> make_driver(const std::string& name, int32_t device);

// Address space that gives itself back.
class Reservation : NotCopied {
 public:
  Reservation(Driver& driver, uint64_t size_bytes, uint64_t chunk_bytes)
      : driver_(driver), size_(size_bytes), base_(driver.reserve(size_bytes, chunk_bytes)) {}
  ~Reservation() {
    or_say("address space not released", [this] { close(); });
  }

  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }
  // What the destructor does, for a caller that wants to know of failure (and may try again).
  void close() {
    if (!open_) return;
    driver_.release(base_, size_);
    open_ = false;
  }

 private:
  Driver& driver_;
  uint64_t size_;
  uint64_t base_;
  bool open_ = true;
};

}  // namespace dtr
