// replay_api.cpp: the C functions of replays on the engine, and on what a replay left behind.
#include "dtr_alloc.h"
#include "error.h"
#include "replay.h"
#include "runtime.h"

namespace {

const dtr::Replay& replay_of(const dtr_replay* replay) {
  return *reinterpret_cast<const dtr::Replay*>(replay);
}

}  // namespace

DTR_EXPORT int32_t dtr_replay_runtime(const dtr_runtime_options* options, const int64_t* program,
                                      uint64_t numbers, const int64_t* workspace,
                                      const int64_t* workspace_at, uint64_t operators,
                                      dtr_replay** out) {
  *out = nullptr;
  return dtr::guard([&] {
    const dtr::Program log{program, numbers, workspace, workspace_at, operators};
    *out = reinterpret_cast<dtr_replay*>(dtr::replay_runtime(*options, log).release());
  });
}

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
