// replay_api.cpp: the C functions on what a replay left behind.
#include "dtr_alloc.h"
#include "error.h"
#include "replay.h"

namespace {

const dtr::Replay& replay_of(const dtr_replay* replay) {
  return *reinterpret_cast<const dtr::Replay*>(replay);
}

}  // namespace

DTR_EXPORT void dtr_replay_destroy(dtr_replay* replay) {
  delete reinterpret_cast<dtr::Replay*>(replay);
}

DTR_EXPORT void dtr_replay_get_result(const dtr_replay* replay, dtr_replay_result* out) {
  *out = replay_of(replay).result;
}

DTR_EXPORT const char* dtr_replay_decisions(const dtr_replay* replay, uint64_t* length) {
  *length = replay_of(replay).decisions.size();
  return replay_of(replay).decisions.c_str();
}
