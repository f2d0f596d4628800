// schedule_api.cpp: the C functions of the search for schedules.
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/handles.h"
#include "dtr_alloc.h"
#include "search.h"

namespace dtr {

struct Schedule {
  dtr_schedule_result result{};
  std::vector<int64_t> evictions;
};

}  // namespace dtr

extern "C" {

int32_t dtr_schedule_search(const dtr_search_options* options, const int64_t* program,
                            uint64_t numbers, dtr_schedule** out) {
  return dtr::guard([&] {
    using namespace dtr::schedule;
    dtr::require(out, "out");
    *out = nullptr;
    dtr::require(options, "options");
    dtr::require_array(program, numbers, "program");
    if (!(options->seconds >= 0))
      dtr::invalid("seconds", std::to_string(options->seconds), "0 (no limit) and more");
    const Plan plan(program, numbers);
    Search search(plan, options->budget_bytes, options->seed);
    auto schedule = std::make_unique<dtr::Schedule>();
    search.sweep();
    schedule->result.swept_cost = search.best().remat_cost;
    schedule->result.steps = search.walk(options->steps, options->seconds);
    const Outcome& best = search.best();
    schedule->result.found = best.status == Status::ok;
    if (schedule->result.found) {
      schedule->result.dealloc = best.keeps ? DTR_DEALLOC_IGNORE : DTR_DEALLOC_EAGER;
      schedule->result.remat_cost = best.remat_cost;
      schedule->result.evictions = best.evictions.size();
      for (const Eviction& eviction : best.evictions) {
        schedule->evictions.push_back(eviction.after);
        schedule->evictions.push_back(plan.storages[eviction.storage].root);
      }
    }
    *out = dtr::make_handle<dtr_schedule>(std::move(schedule));
  });
}

int32_t dtr_schedule_destroy(dtr_schedule* schedule) {
  return dtr::guard([&] { dtr::destroy(schedule); });
}

int32_t dtr_schedule_get_result(const dtr_schedule* schedule, dtr_schedule_result* out) {
  return dtr::guard([&] {
    dtr::require(out, "out");
    *out = dtr::of(schedule).result;
  });
}

const int64_t* dtr_schedule_evictions(const dtr_schedule* schedule) {
  return dtr::answer(static_cast<const int64_t*>(nullptr),
                     [&] { return dtr::of(schedule).evictions.data(); });
}

}  // extern "C"
