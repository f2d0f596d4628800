// settling.h: before a content that cannot be recomputed is lost for good, its dependents become
// independent of it.
//
// Walking down from the storage that will be lost: a resident live dependent becomes
// a constant and ends the walk there; a dead one passes the demand on to its own
// dependents and vanishes with its last one; a live evicted one must be
// rematerialized first, by the caller.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "deferred.h"
#include "environment.h"
#include "graph.h"
#include "lifecycle.h"
#include "spans.h"

namespace dtr {

class Settling {
 public:
  static constexpr uint64_t kAnyBytes = std::numeric_limits<uint64_t>::max();

  Settling(const Environment& environment, Graph& graph, Lifecycle& lifecycle)
      : environment_(environment), graph_(graph), lifecycle_(lifecycle) {}

  // True: nothing depends on `lost` any more that could be computed again. False: nothing was changed, and *targets
  // (if given) got the live evicted dependents, or more than most_bytes would have
  // become constant. part: only these bytes will be lost, and ops that read others stay.
  bool settle(Storage* lost, std::vector<Storage*>* targets, uint64_t most_bytes,
              Deferred& deferred, const Range& part = kWholeStorage);
  // The same for all of these, if their live dependents take at least so many bytes. Else nothing is
  // changed, and it is true.
  bool settle(const std::vector<Storage*>& lost, std::vector<Storage*>* targets,
              uint64_t least_bytes, Deferred& deferred);

  // The first for each of these, in their order, with one walk for all: an optimizer overwrites hundreds,
  // with mostly the same dependents. False: for one of them.
  struct Loss {
    Storage* storage;
    Range part;
  };
  bool settle_each(const std::vector<Loss>& losses, std::vector<Storage*>* targets,
                   Deferred& deferred);

  // Has all that depends on a dead constant, and on other dead ones that this was computed from,
  // become constants, if that takes no more than what is free then. What is evicted becomes one when
  // it is back, and the memory is free once all is.
  void settle_with_others(Storage* lost, Deferred& deferred);

  // Whether the dead records that the storage's history consists of take more memory than
  // the storage itself. Then it had better be a constant: a running average would keep
  // its whole past, and free a few bytes when evicted. *counted: the dead records met.
  bool history_outweighs(const Storage* storage, uint64_t* counted);

  // Cuts the oldest ops off until no more than history_ops remain (DTR has no such
  // rule; without it a running average would keep its whole past). True: done. False: *targets,
  // if given, got what must be rematerialized first.
  bool settle_history(std::vector<Storage*>* targets, Deferred& deferred);

 private:
  // Gives those the mark whose dependents, none of which they may lose, are not all there. Returns
  // the mark.
  uint64_t mark_blocked(const std::vector<Loss>& losses, std::vector<Storage*>* targets);
  // Of pending_. in_part: the one of which only these bytes will be lost, or null.
  bool settle_pending(const Storage* in_part, const Range& part, std::vector<Storage*>* targets,
                      uint64_t least_bytes, uint64_t most_bytes, Deferred& deferred);

  const Environment& environment_;
  Graph& graph_;
  Lifecycle& lifecycle_;
  std::vector<const Storage*> pending_;
  std::vector<Storage*> resident_;
};

}  // namespace dtr
