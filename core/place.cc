#include "core/place.h"

#include <atomic>

#include "core/strings.h"

namespace lt2 {
namespace {

thread_local std::atomic<Place> current{Place{}};

}  // namespace

std::string Place::ToString() const {
  if (layer < 0) return "";
  return StrCat("layer ", static_cast<int>(layer), " of loop ", static_cast<int>(loop),
                backward ? ", backward" : ", forward");
}

Place CurrentPlace() { return current.load(std::memory_order_relaxed); }

PlaceScope::PlaceScope(Place place) : before_(CurrentPlace()) {
  current.store(place, std::memory_order_relaxed);
}
PlaceScope::~PlaceScope() { current.store(before_, std::memory_order_relaxed); }

PlaceView::PlaceView() : place_(&current) {}
Place PlaceView::Get() const {
  return static_cast<const std::atomic<Place>*>(place_)->load(std::memory_order_relaxed);
}

}  // namespace lt2
