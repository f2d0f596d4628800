// A base of classes that are neither copied nor moved.
#pragma once

namespace dtr {

struct NotCopied {
  NotCopied() = default;
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;
};

}  // namespace dtr
