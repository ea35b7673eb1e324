#include "launch/wishes.h"

#include "core/file.h"
#include "launch/signals.h"

namespace lt2 {

std::vector<double> Wishes::AtEndOf(int64_t step, double step_seconds, const Saver& saver) const {
  std::vector<double> wishes(kWishes, 0.0);
  wishes[kStopSignal] = PendingSignal();
  wishes[kStillWriting] = saver.Busy() ? 1 : 0;
  if (paths_) {
    const bool late = Late(step_seconds, saver);
    if (late || TakeTrigger(paths_->stop_trigger())) wishes[kStopFile] = 1;
    if (TakeTrigger(paths_->save_trigger()) || saver.Due(step)) wishes[kSave] = 1;
  }
  return wishes;
}

bool Wishes::Hurried(double step_seconds, const Saver& saver) const {
  const auto asked = [this] { return FileSystem::Get().Exists(paths_->stop_trigger()); };
  return PendingSignal() != 0 || Late(step_seconds, saver) || (paths_ && asked());
}

bool Wishes::Late(double step_seconds, const Saver& saver) const {
  return paths_ && deadline_->Near(step_seconds, saver.seconds());
}

}  // namespace lt2
