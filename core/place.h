// Where in a model a rank's computation is: for what is said of a rank that hangs.
#pragma once

#include <cstdint>
#include <string>

namespace lt2 {

struct Place {
  int16_t loop = -1, layer = -1;  // -1: outside of them
  bool backward = false;
  std::string ToString() const;  // "layer 3 of loop 0, backward"; "" outside of layers
  bool operator==(const Place&) const = default;
};

// The calling thread's.
Place CurrentPlace();

// Until the end of the scope the calling thread is at `place`.
class PlaceScope {
 public:
  explicit PlaceScope(Place place);
  ~PlaceScope();
  PlaceScope(const PlaceScope&) = delete;
  PlaceScope& operator=(const PlaceScope&) = delete;

 private:
  const Place before_;
};

// Lets other threads see where the thread that made it is. It must outlive the view's use.
class PlaceView {
 public:
  PlaceView();
  Place Get() const;

 private:
  const void* place_;
};

}  // namespace lt2
