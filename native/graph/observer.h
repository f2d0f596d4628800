// observer.h: who hears what becomes of contents: the recorder of op logs, and simulations of them.
//
// Called under the engine's mutex, in the order in which things happen: an observer may only note
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "records.h"

namespace dtr {

// Why a storage lost its content: for room, by a user's request, or because it died or was
// overwritten.
enum class EvictionCause : int64_t { room = 0, by_user = 1, gone = 2 };

class Observer {
 public:
  virtual ~Observer() = default;
  // A pool asks for room for a request of so many bytes; nothing has been evicted for it yet.
  virtual void asked_for_room(uint64_t) {}
  // Its content is given up, or goes to host memory.
  virtual void evicted(const Storage*) {}
  // Its content is no longer in its memory, whatever the cause.
  virtual void lost(const Storage*, EvictionCause) {}
  // Its memory, at its address, goes back because nothing refers to it any more.
  virtual void died(const Storage*) {}
  // The storage with this id was removed for good although others were computed from it.
  virtual void banished(uint64_t) {}
  // An operator was run again.
  virtual void ran_again(const Op*) {}
  // The framework let go of a live one.
  virtual void released(const Storage*) {}
};

class Observers {
 public:
  // An observer must outlive this, or be removed.
  void add(Observer* observer) { all_.push_back(observer); }
  void remove(Observer* observer) { std::erase(all_, observer); }

  template <typename... Parameters, typename... Arguments>
  void notify(void (Observer::*what)(Parameters...), Arguments... arguments) const {
    for (Observer* observer : all_) (observer->*what)(arguments...);
  }

 private:
  std::vector<Observer*> all_;
};

}  // namespace dtr
