#include "driver.h"

#include "errors.h"

namespace dtr {

namespace {

[[noreturn]] void missing(const char* verb) {
  throw StateError(std::string("this driver has no verb ") + verb);
}

}  // namespace

void Driver::alias(uint64_t, uint64_t) { missing("alias"); }
void Driver::unalias(uint64_t, uint64_t) { missing("unalias"); }
Driver::Event Driver::create_event(bool) { missing("create_event"); }
void Driver::destroy_event(Event) { missing("destroy_event"); }
void Driver::record_event(Event, uint64_t) { missing("record_event"); }
bool Driver::event_complete(Event) { missing("event_complete"); }
void Driver::synchronize_event(Event) { missing("synchronize_event"); }
void Driver::stream_wait_event(uint64_t, Event) { missing("stream_wait_event"); }
int64_t Driver::elapsed_ns(Event, Event) { missing("elapsed_ns"); }
uint64_t Driver::create_stream() { missing("create_stream"); }
void Driver::destroy_stream(uint64_t) { missing("destroy_stream"); }
void Driver::synchronize_stream(uint64_t) { missing("synchronize_stream"); }
bool Driver::capturing(uint64_t) { return false; }
bool Driver::synchronize_device() { return true; }
void Driver::add_peer(int32_t) { missing("add_peer"); }
uint64_t Driver::allocate_on_stream(uint64_t, uint64_t) { missing("allocate_on_stream"); }
void Driver::free_on_stream(uint64_t, uint64_t) { missing("free_on_stream"); }
void Driver::fill(uint64_t, uint8_t, uint64_t, uint64_t) { missing("fill"); }
void Driver::copy(uint64_t, uint64_t, uint64_t, uint64_t) { missing("copy"); }

std::unique_ptr<Driver> make_driver(const std::string& name, int32_t device) {
  if (device < 0 || (name != "cuda" && device != 0)) {
    throw InvalidArgument("device is " + std::to_string(device) +
                          "; allowed: 0, or an ordinal of a device for driver 'cuda'");
  }
  if (name == "host") return make_host_driver();
  if (name == "simulated") return make_simulated_driver();
  if (name == "cuda") return make_cuda_driver(device);
  throw InvalidArgument("driver is '" + name +
                        "'; allowed: 'host', 'cuda', 'simulated', 'counted', 'guarded'");
}

void Reservation::close() {
  if (!open_) return;
  driver_.release(base_, size_);
  open_ = false;
}

Reservation::~Reservation() {
  or_say("address space not released", [this] { close(); });
}

}  // namespace dtr
