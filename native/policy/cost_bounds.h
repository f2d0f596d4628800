// cost_bounds.h: what the columns of the candidates (candidates.h) are filled with: lower bounds of
// scores, made from a record alone or from a cost that was just computed.
#pragma once

#include "component.h"
#include "devices.h"
#include "foresight.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "score.h"
#include "swap_costs.h"

namespace dtr {

// Dead, and nothing that is needed was computed from it.
inline bool is_unneeded(const Storage* storage) {
  return !storage->live && storage->needed_by == 0;
}

// Unneeded, and can be recomputed. A constant has no other way to go but to be swapped out, so nothing
// is gained by taking it first.
inline bool goes_first(const Storage* storage) { return storage->parent && is_unneeded(storage); }

// The factor by which a storage's score counts.
inline double unneeded_factor(const Storage* storage) {
  return goes_first(storage) ? kUnneeded : 1;
}

class CostBounds {
 public:
  CostBounds(const Environment& environment, const Devices& devices, const SwapCosts& swap_costs,
             const Needs& needs, const Components& components, const Foresight& foresight)
      : environment_(environment),
        devices_(devices),
        swap_costs_(swap_costs),
        needs_(needs),
        components_(components),
        foresight_(foresight) {}

  // Of a candidate whose cost was computed.
  void set(Device& device, Storage* storage, double cost_ns);
  // Nothing is known of the candidate but its record.
  void reset(Storage* storage) { reset(devices_.of(storage), storage); }
  void reset(Device& device, Storage* storage) {
    storage->parked = false;
    set(device, storage, known_cost_ns(storage));
  }
  void reset_all();
  // The candidate's cost may have fallen to what is surely part of it.
  void lower(const Storage* storage);
  // The candidate's weight has changed, or it may be evicted again.
  void reweigh(Storage* storage);
  void unpark(Storage* storage) {
    if (storage->parked) reweigh(storage);
  }

 private:
  double known_cost_ns(const Storage* storage) const;
  double weight_of(const Storage* storage) const;

  const Environment& environment_;
  const Devices& devices_;
  const SwapCosts& swap_costs_;
  const Needs& needs_;
  const Components& components_;
  const Foresight& foresight_;
};

}  // namespace dtr
