// Signals that ask a run to stop: TERM, INT, USR1, USR2 leave their number for the trainer to find.
//
// A process has one set of signals, so ranks that are threads of one process see the same one.
#pragma once

namespace lt2 {

// From here on the four signals are kept, on the calling thread even if whatever started the
// process had them blocked. A second TERM or INT acts as if nobody listened. A reader of the output
// that is gone, or a file at its limit, no longer ends the process: writes return errors.
void InstallSignalHandlers();

// The signal that came first and was not yet cleared, 0 if none.
int PendingSignal();
void ClearPendingSignal();

// "TERM", "INT", "USR1", "USR2".
const char* SignalName(int signal);

}  // namespace lt2
