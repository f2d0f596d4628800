#include "deferred.h"

#include "dead_storages.h"
#include "host_copy.h"

namespace dtr {

Deferred::~Deferred() {
  if (banish_) {
    std::lock_guard<EngineMutex> lock(mutex_);
    dead_.banish_queued(*this);
  }
  // Deleters may enter the engine and fill a Deferred of their own, never this one.
  for (size_t i = 0; i < count_; ++i) perform(few_[i]);
  for (const Action& action : more_) perform(action);
}

void Deferred::free_blocks() {
  const auto free_if_block = [&](Action& action) {
    if (action.kind != Kind::block) return;
    perform(action);
    action.kind = Kind::done;
  };
  for (size_t i = 0; i < count_; ++i) free_if_block(few_[i]);
  for (Action& action : more_) free_if_block(action);
}

void Deferred::perform(const Action& action) const {
  switch (action.kind) {
    case Kind::strong:
      environment_.framework->release_strong(action.what);
      break;
    case Kind::weak:
      environment_.framework->release_weak(action.what);
      break;
    case Kind::host:
      give_back(static_cast<HostCopy*>(action.what));
      break;
    case Kind::closure:
      environment_.framework->drop_closure(action.what);
      break;
    case Kind::block:
      dtr_pool_free(environment_.pool_of(action.device_type, action.device_index), action.what);
      break;
    case Kind::done:
      break;
  }
}

}  // namespace dtr
