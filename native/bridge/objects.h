// objects.h: what several parts of the bridge make their objects with.
#pragma once

namespace dtr_bridge {

// A base of classes that are neither copied nor moved.
struct NotCopied {
  NotCopied() = default;
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;
};

// The one object of a type, or of a type for somebody. It is never destroyed: threads may outlive
// static objects.
template <typename T, typename Whose = T>
T& only() {
  static auto* object = new T();
  return *object;
}

}  // namespace dtr_bridge
