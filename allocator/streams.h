// Which work must be done before freed memory is used again.
//
// Words: a stream's *point* is a moment in its queue, marked by an event recorded there; points
// of a stream complete in order. A *fence* names a stream (as an Owner) and a point: "free for
// work on this stream at once, for others once the point is complete". The fence {kIdle, 0} is
// no fence.
//
// Rules:
//   S1  Memory freed on a stream gets a fence at that moment. While only one stream has ever
//       been seen no event is recorded and the memory is idle; when a second stream appears, it
//       is made to wait for all of the first stream's work so far (the *old work*), and so is
//       every later stream until that work is done. So idle memory is safe for every stream.
//   S2  Memory that other streams were recorded to use is pending until a point marked on each
//       of them when it was freed is complete.
//   S3  Idle memory may be unmapped only after settle_old_work(): until then S1's old work,
//       or the single stream's work, may still be running on it.
//
//   S4  On a stream that is being captured into a graph no event is recorded and none is waited
//       for: memory freed there is *withheld*.
//
// Withheld owners stand for no queue: no event ever completes their points. What they own serves
// nobody else until everything on the device is known to be done (device_done). Arenas (arenas.h)
// are made of them, and they take what a captured stream frees.
//
// A driver without streams has only kIdle and withheld owners, and nothing ever waits.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "block.h"
#include "driver.h"
#include "not_copied.h"

namespace dtr {

struct Fence {
  Owner owner = kIdle;
  uint64_t point = 0;
};

// A freed range that still waits for other streams.
struct Retired {
  uint64_t offset;
  Fence home;               // to be released with, once
  std::vector<Fence> uses;  // these are complete
};

class Streams : NotCopied {
 public:
  explicit Streams(Driver& driver) : driver_(driver), has_streams_(driver.has_streams()) {}
  ~Streams();
  // Destroys the events; what the destructor does, for a caller that wants to know of failure.
  void close();

  // The owner that stands for a stream; a stream seen for the first time is registered (S1).
  Owner owner_of(uint64_t stream) { return has_streams_ ? owner_among(stream) : kIdle; }

  // The stream of an owner; of a withheld one, what withhold() was given.
  uint64_t stream_of(Owner owner) const { return streams_[owner - 1].id; }

  // An owner of this kind, one that was dropped if there is any.
  Owner withhold(uint64_t stream);
  bool withheld(Owner owner) const { return owner != kIdle && streams_[owner - 1].withheld; }
  // All that was freed to it so far may be settled by the next device_done().
  void open_up(Owner owner) { streams_[owner - 1].opened = streams_[owner - 1].last; }
  // It owns nothing any more.
  void drop(Owner owner) {
    streams_[owner - 1].dropped = true;
    dropped_.push_back(owner);
  }
  // Whether device_done() would complete any point; of an owner, whether any point is not.
  bool withholds() const;
  bool withholds(Owner owner) const {
    return streams_[owner - 1].completed < streams_[owner - 1].last;
  }
  // Waits until the device is done and completes all points that are opened up; false if a stream
  // that is being captured forbids it.
  bool device_done();
  // Idle memory is from now on safe for every stream, known here or not: old work is waited for,
  // and every later one gets a point (S1). Throws StateError while the only stream is captured.
  void make_idle_safe();

  // The fence of memory that the owner frees now.
  Fence freed(Owner owner) { return owner == kIdle ? Fence{} : freed_on(owner); }
  // The same for memory that cannot stay in use any more: if the driver records no event, it is
  // withheld.
  Fence freed_in_any_case(Owner owner);
  // Whether work of the owner can be made to wait for another's.
  bool may_wait(Owner owner) const;
  // Makes work on `owner` wait (on the device) for a fence that is not complete.
  void wait(Owner owner, Fence fence);

  // Remembers that work of `owner` uses the range that begins at offset; see S2.
  void record_use(uint64_t offset, Owner owner);
  bool has_any_uses() const { return !uses_.empty(); }
  bool has_uses(uint64_t offset) const {
    return !uses_.empty() && uses_.find(offset) != uses_.end();
  }
  // Makes the owner's work from now on wait (on the device) for the uses of a range, and forgets
  // them; false, and nothing was done, if a stream that is being captured forbids it.
  bool await_uses(uint64_t offset, Owner owner);
  void forget_uses(uint64_t offset) { uses_.erase(offset); }
  // The same, but they are kept: the owner's work from now on reads what the uses may still write.
  bool follow_uses(uint64_t offset, Owner owner);
  // Marks points on all streams that use the range, freed by `home`, and makes it pending.
  void retire(uint64_t offset, Owner home);
  bool pending(uint64_t offset) const {
    return !retired_.empty() && retired_.find(offset) != retired_.end();
  }
  uint64_t pending_count() const { return retired_.size(); }

  // Makes the homes of all pending ranges wait (on the device) for what still uses them, so that
  // take_done() hands them over. True if there are any. What a capture forbids stays pending.
  bool hurry();

  // Asks the driver what is done. Returns true if anything completed since the last call.
  bool poll() { return !streams_.empty() && poll_all(); }
  // Waits until all points are complete.
  void synchronize();
  // See S3.
  void settle_old_work();
  // The same without waiting, where the work is that of one stream: an event, the caller's from now
  // on, that completes when idle memory may be unmapped. Null if only waiting helps, or none is
  // needed.
  Driver::Event mark_old_work();

  uint32_t owners() const { return static_cast<uint32_t>(streams_.size()) + 1; }
  uint64_t completed(Owner owner) const { return streams_[owner - 1].completed; }
  // Hands over the retired ranges whose uses are complete.
  std::vector<Retired> take_done();

 private:
  struct Stream {
    uint64_t id;
    uint64_t last = 0;                                      // the newest point
    uint64_t completed = 0;                                 // the newest point known to be complete
    std::deque<std::pair<uint64_t, Driver::Event>> events;  // of the points in between, in order
    bool withheld = false;
    bool dropped = false;
    uint64_t opened = 0;  // of a withheld one: device_done() completes points up to here
  };

  // An event that returns to the spare ones unless kept.
  class SpareEvent {
   public:
    explicit SpareEvent(Streams& streams);
    ~SpareEvent() {
      if (event_ != nullptr) streams_.spare_.push_back(event_);
    }
    Driver::Event get() const { return event_; }
    Driver::Event keep() {
      Driver::Event event = event_;
      event_ = nullptr;
      return event;
    }

   private:
    Streams& streams_;
    Driver::Event event_ = nullptr;
  };

  Owner owner_among(uint64_t stream);
  Fence freed_on(Owner owner);
  bool poll_all();
  void complete_first(Stream& stream);  // of its points that are not
  Fence mark(Owner owner);              // a new point of the stream, with an event
  bool complete(Fence fence) const {
    return fence.owner == kIdle || fence.point <= completed(fence.owner);
  }
  void drop_old_work();
  Owner add(uint64_t stream);
  Fence withhold_from(Owner owner);
  void record(Driver::Event event, uint64_t stream);

  Driver& driver_;
  bool has_streams_;
  std::vector<Stream> streams_;  // owner i is streams_[i - 1]
  std::unordered_map<uint64_t, Owner> owners_;
  std::unordered_map<uint64_t, std::vector<Owner>> uses_;
  std::unordered_map<uint64_t, Retired> retired_;
  std::vector<Driver::Event> spare_;
  Driver::Event old_work_ = nullptr;
  std::vector<Owner> dropped_;        // withheld owners for withhold() to use again
  Owner captured_ = kIdle;            // the withheld owner of what is freed without an event
  bool always_marks_ = false;         // also while there is only one stream
  bool freed_without_event_ = false;  // by the only stream, since its work was last waited for
};

}  // namespace dtr
