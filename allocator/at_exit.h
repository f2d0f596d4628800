// at_exit.h: what is done at the end of a scope, however it ends.
#pragma once

#include <utility>

#include "not_copied.h"

namespace dtr {

template <typename Body>
class AtExit : NotCopied {
 public:
  explicit AtExit(Body body) : body_(std::move(body)) {}
  ~AtExit() { body_(); }

 private:
  Body body_;
};

}  // namespace dtr
